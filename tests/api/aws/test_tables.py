"""Tables are total: no error, no state and no operation without its word on the wire."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from api import sigv4
from api.aws.errors import CRASH, ERRORS, code_of
from api.aws.schema import sagemaker as model
from api.aws.table.kinds import Listing
from api.aws.table.sagemaker import SAGEMAKER
from api.aws.translate.attachments import VOLUME_STATUS
from api.aws.translate.batches import INSTANCE_CODES
from api.aws.translate.batches import REFUSALS as REFUSALS_OF_ADDITIONS
from api.aws.translate.software import UPDATE_STATUS
from api.aws.translate.states import CLUSTER_STATUS, GROUP_STATUS, HELD, NODE_STATUS, OPERATION_STATUS
from api.operations.additions import Refusal
from api.operations.batches import Trouble
from api.rest import errors as rest
from models import errors as domain
from models.cluster.states import CLUSTER, GROUP, ClusterState, GroupState
from models.node.states import NodeState
from models.operation.states import OperationState
from models.software.states import UpdateState
from models.volume.states import AttachmentState
from tests.api.installed import SERVED


def descendants(cls: type) -> set[type]:
    return {cls}.union(*(descendants(sub) for sub in cls.__subclasses__()))


DOMAIN = sorted((cls for cls in descendants(domain.DomainError) if cls.__module__ == "models.errors"), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("error", DOMAIN)
def test_every_domain_error_has_its_own_line_in_both_doors(error):
    assert error in ERRORS
    assert error in rest.STATUSES


@pytest.mark.parametrize("error", sorted(descendants(sigv4.SignatureError) - {sigv4.SignatureError}, key=lambda cls: cls.__name__))
def test_every_refusal_of_a_signature_has_a_code(error):
    assert code_of(error("x")) is ERRORS[error]
    assert rest.status_of(error("x")) == 401


def test_only_what_passes_by_itself_is_answered_with_5xx():
    assert {cls for cls, code in ERRORS.items() if code.status >= 500} == {
        domain.StaleLease,
        OperationalError,
        InterfaceError,
        PoolExhausted,
    }
    assert code_of(RuntimeError()) is CRASH


def test_modelled_codes_are_spelt_as_the_model_spells_them():
    names = set(model().shape_names)
    for cls in (domain.NotFound, domain.AlreadyExists, domain.LimitExceeded, domain.InTransition):
        assert ERRORS[cls].name in names


@pytest.mark.parametrize(
    "states, table, shape",
    [
        (ClusterState, CLUSTER_STATUS, "ClusterStatus"),
        (GroupState, GROUP_STATUS, "InstanceGroupStatus"),
        (NodeState, NODE_STATUS, "ClusterInstanceStatus"),
        (AttachmentState, VOLUME_STATUS, "VolumeAttachmentStatus"),
        (Refusal, REFUSALS_OF_ADDITIONS, "BatchAddClusterNodesErrorCode"),
        (Trouble, INSTANCE_CODES, "BatchRebootClusterNodesErrorCode"),
    ],
)
def test_every_state_is_projected_onto_the_model_s_enum(states, table, shape):
    assert set(table) == set(states)
    assert {word for word in table.values() if word is not None} <= set(model().shape_for(shape).enum)


@pytest.mark.parametrize(
    "states, table, shape",
    [(OperationState, OPERATION_STATUS, "ClusterOperationStatus"), (UpdateState, UPDATE_STATUS, "SoftwareUpdateStatus")],
)
def test_states_of_what_a_newer_model_tells_have_its_words_too(states, table, shape):
    assert set(table) == set(states)
    if shape in model().shape_names:
        assert set(table.values()) == set(model().shape_for(shape).enum)
    assert set(HELD.values()) <= set(model().shape_for("ClusterInstanceStatus").enum)


def test_only_states_that_are_over_are_not_shown():
    assert {state for state, word in CLUSTER_STATUS.items() if word is None} == {s for s in ClusterState if CLUSTER.is_terminal(s)}
    assert {state for state, word in GROUP_STATUS.items() if word is None} == {s for s in GroupState if GROUP.is_terminal(s)}


@pytest.mark.parametrize("name", SERVED)
def test_every_served_operation_is_in_the_model_and_pages_where_the_model_pages(name):
    operation = model().operation_model(name)
    has_token = "NextToken" in (operation.output_shape.members if operation.output_shape else {})
    assert isinstance(SAGEMAKER[name], Listing) == (has_token and name != "ListTags")
