"""``everstep.client("sagemaker")``: boto3's client, with the waiters for clusters that botocore lacks.

The endpoint, the keys and the region are found as every boto3 client finds them: ``AWS_ENDPOINT_URL_SAGEMAKER``, the usual chain of
credentials, ``AWS_DEFAULT_REGION``; ``everstep env`` prints the lines that set them.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import resources
from types import ModuleType
from typing import Any, cast

import boto3
from botocore import xform_name
from botocore.waiter import WaiterModel, create_waiter_with_client

from everstep.errors import EverstepError


class UnknownService(EverstepError):
    """There is no client for this service."""


class ClusterWaiters:
    """Mixed into boto3's client class. ``cluster_in_service`` and ``cluster_deleted`` stand beside botocore's own waiters."""

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
        UnknownService: the service is not ``sagemaker``.
    """
    if service == "everstep":
        message = (
            "everstep.client('everstep') needs a later version: jobs are served by REST (/v1/jobs) and by `everstep job` for now."
        )
        raise UnknownService(message)
    if service != "sagemaker":
        message = f"everstep.client({service!r}): the services are 'sagemaker' and, in a later version, 'everstep'."
        raise UnknownService(message)
    session: Any = boto3.session.Session()
    session.events.register("creating-client-class.sagemaker", _mix_in)
    return session.client(service, **options)


def _mix_in(base_classes: list[type], **_context: Any) -> None:
    base_classes.insert(0, ClusterWaiters)


@cache
def _waiters() -> WaiterModel:
    text = resources.files("everstep").joinpath("service_models", "sagemaker-waiters.json").read_text("utf-8")
    return WaiterModel(json.loads(text))


class _Callable(ModuleType):
    """``everstep.client`` is this module once anybody has imported it; calling it must go on to work."""

    def __call__(self, service: str, **options: Any) -> Any:
        return client(service, **options)


sys.modules[__name__].__class__ = _Callable
