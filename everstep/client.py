"""``everstep.client("everstep")`` and ``everstep.client("sagemaker")``: boto3 clients of a control plane.

The first is made from the service model that is shipped in ``service_models``; the second is boto3's own, with the waiters for clusters that
botocore lacks. The endpoint, the keys and the region are found as every boto3 client finds them: ``AWS_ENDPOINT_URL_EVERSTEP`` and
``AWS_ENDPOINT_URL_SAGEMAKER``, the usual chain of credentials, ``AWS_DEFAULT_REGION``; ``everstep env`` prints the lines that set them.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import boto3
import botocore.session
from botocore import xform_name
from botocore.waiter import WaiterModel, create_waiter_with_client

from everstep.errors import EverstepError

MODELS: Final = Path(__file__).parent / "service_models"
"""Where botocore finds the model of ``everstep``; the AWS CLI takes it by ``aws configure add-model``."""
_REALS: Final = frozenset({"float", "double"})


class UnknownService(EverstepError):
    """There is no client for this service."""


class ClusterWaiters:
    """Mixed into boto3's client class: waiters for clusters and nodes beside botocore's own."""

    def get_waiter(self, waiter_name: str) -> Any:
        ours = {xform_name(name): name for name in _waiters().waiter_names}
        if xform_name(waiter_name) in ours:
            return create_waiter_with_client(ours[xform_name(waiter_name)], _waiters(), cast("Any", self))
        return super().get_waiter(waiter_name)  # type: ignore[misc]

    @property
    def waiter_names(self) -> list[str]:
        return [*super().waiter_names, *(xform_name(name) for name in _waiters().waiter_names)]  # type: ignore[misc]


def client(service: str, **options: Any) -> Any:
    """A boto3 client; ``options`` are those of ``boto3.client``.

    Raises:
        UnknownService: the service is neither ``everstep`` nor ``sagemaker``.
    """
    if service not in {"everstep", "sagemaker"}:
        message = f"everstep.client({service!r}): the services are 'everstep' and 'sagemaker'."
        raise UnknownService(message)
    core: Any = botocore.session.Session()
    core.get_component("data_loader").search_paths.insert(0, str(MODELS))  # before an older copy in ~/.aws/models
    core.register("creating-client-class.sagemaker", _mix_in)
    core.register("after-call.everstep", _read_reals)
    session: Any = boto3.session.Session(botocore_session=core)
    return session.client(service, **options)


def _mix_in(base_classes: list[type], **_context: Any) -> None:
    base_classes.insert(0, ClusterWaiters)


def _read_reals(http_response: Any, parsed: dict[str, Any], model: Any, **_context: Any) -> None:
    """The protocol spells NaN and the infinities as text, and botocore leaves it so."""
    if http_response.status_code < 300 and model.output_shape is not None:  # noqa: PLR2004  (HTTP's own border)
        _real(model.output_shape, parsed)


def _real(shape: Any, value: Any) -> Any:
    if shape.type_name in _REALS:
        return float(value)
    if shape.type_name == "structure" and value is not None:
        for name in shape.members.keys() & value.keys():
            value[name] = _real(shape.members[name], value[name])
    elif shape.type_name == "list":
        return [_real(shape.member, item) for item in value]
    elif shape.type_name == "map":
        return {key: _real(shape.value, item) for key, item in value.items()}
    return value


@cache
def _waiters() -> WaiterModel:
    return WaiterModel(json.loads((MODELS / "sagemaker-waiters.json").read_text("utf-8")))


class _Callable(ModuleType):
    """``everstep.client`` is this module once anybody has imported it; calling it must go on to work."""

    def __call__(self, service: str, **options: Any) -> Any:
        return client(service, **options)


sys.modules[__name__].__class__ = _Callable
