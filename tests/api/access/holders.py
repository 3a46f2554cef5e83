"""People with keys: an access key for boto3 and a token for REST, of one role and team."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import everstep
from tests.api.serving import TOKEN, Server

_numbers = itertools.count(1)
ONCE = Config(retries={"total_max_attempts": 1})


@dataclass(frozen=True)
class Holder:
    """``sagemaker`` and ``everstep`` are boto3 clients, ``rest`` calls the REST door with the token. Each is made when it is asked for."""

    url: str
    name: str
    key_id: str
    secret: str
    token_id: str
    token: str

    @cached_property
    def sagemaker(self) -> Any:
        return _boto().client("sagemaker", config=ONCE, **self._options)

    @cached_property
    def everstep(self) -> Any:
        return everstep.client("everstep", config=ONCE, **self._options)

    @cached_property
    def rest(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.token}"}, verify=False)

    @property
    def _options(self) -> dict[str, str]:
        keys = {"aws_access_key_id": self.key_id, "aws_secret_access_key": self.secret}
        return keys | {"endpoint_url": self.url, "region_name": "us-east-1"}

    def close(self) -> None:
        for client in vars(self).keys() & {"sagemaker", "everstep", "rest"}:
            getattr(self, client).close()


def bootstrap(server: Server) -> httpx.Client:
    """REST, as the installation's own admin."""
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False)


@contextmanager
def give(server: Server, *, role: str, team: str | None, name: str | None = None) -> Iterator[Holder]:
    name = name or f"{team or 'nobody'}-{role.lower()}-{next(_numbers)}"
    with bootstrap(server) as admin:
        wish = {"Name": name, "Role": role} | ({"Team": team} if team else {})
        key, token = (
            admin.post("/v1/keys", json=wish | {"Kind": kind}).raise_for_status().json() for kind in ("AccessKey", "Token")
        )
    holder = Holder(server.url, name, key["KeyId"], key["Secret"], token["KeyId"], token["Secret"])
    try:
        yield holder
    finally:
        holder.close()


def refused(call: Callable[..., Any], **members: Any) -> tuple[str, str]:
    """The code and the message with which a boto3 call is refused."""
    with pytest.raises(ClientError) as caught:
        call(**members)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


@cache
def _boto() -> Any:
    """One session: each of its own would read SageMaker's model again."""
    return boto3.session.Session()
