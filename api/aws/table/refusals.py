"""Operations of the cluster family that are refused, each with what to do instead.

They answer 400 UnknownOperationException, which no AWS SDK retries and which says what is so: this endpoint has no such operation, whatever the
input. A ValidationException would blame the caller's input; an empty success would be a lie.
"""

from __future__ import annotations

from typing import Final

_EXTENSION: Final = (
    "There are no cluster extensions here. Install software on nodes with LifeCycleConfig, or build it into their image."
)
_PLAN: Final = (
    "There are no training plans or reserved capacity here. Capacity comes from the provider: ask for it with CreateCluster, in a Continuous "
    "cluster with MinInstanceCount if fewer nodes would be of no use."
)

REFUSALS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "CreateClusterExtension",
            "DescribeClusterExtension",
            "UpdateClusterExtension",
            "DeleteClusterExtension",
            "ListClusterExtensions",
            "ListClusterExtensionVersions",
        ),
        _EXTENSION,
    ),
    **dict.fromkeys(
        (
            "SearchTrainingPlanOfferings",
            "CreateTrainingPlan",
            "DescribeTrainingPlan",
            "ListTrainingPlans",
            "ExtendTrainingPlan",
            "DescribeTrainingPlanExtensionHistory",
            "DescribeReservedCapacity",
            "ListUltraServersByReservedCapacity",
        ),
        _PLAN,
    ),
}
