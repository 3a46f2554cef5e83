"""What the installed botocore knows: tests of the wire run with older ones, too (`make test-botocore`), and ask instead of assuming."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from api.aws.schema import sagemaker as model
from api.aws.table.sagemaker import SAGEMAKER

SERVED = tuple(sorted(set(SAGEMAKER) & set(model().operation_names)))
"""What is served and can be asked for: an operation that the installed model lacks is refused as unknown."""


def knows(operation: str, member: str = "") -> bool:
    """The installed model has the operation and, where one is named, the member of its input."""
    return operation in model().operation_names and (not member or member in model().operation_model(operation).input_shape.members)


def needs(operation: str, member: str = "") -> None:
    """Ends a test of something that the installed model has no word for."""
    if not knows(operation, member):
        pytest.skip(f"this botocore knows no {operation}{member and '.'}{member}")


def needs_fractions_of_seconds(client: Any) -> None:
    """Ends a test of times that the installed botocore cannot send: older ones cut the fraction off."""
    sent: list[bytes] = []

    def seen(request: Any, **_: Any) -> None:
        sent.append(request.body)

    client.meta.events.register("before-send.sagemaker.ListClusters", seen)
    client.list_clusters(CreationTimeAfter=datetime(2031, 5, 1, 12, 0, 0, 500_000, tzinfo=UTC))
    client.meta.events.unregister("before-send.sagemaker.ListClusters", seen)
    if b".5" not in sent[0]:
        pytest.skip("this botocore sends times in whole seconds")
