"""People with keys: an access key for boto3 and a token for REST, of one role and team."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import everstep
from tests.api.serving import TOKEN, Server

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Holder:
    """``sagemaker`` and ``everstep`` are boto3 clients, ``rest`` calls the REST door with the token."""

    name: str
    key_id: str
    secret: str
    token_id: str
    token: str
    sagemaker: Any
    everstep: Any
    rest: httpx.Client


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
    keys = {"aws_access_key_id": key["KeyId"], "aws_secret_access_key": key["Secret"]}
    options = keys | {"endpoint_url": server.url, "region_name": "us-east-1"}
    once = Config(retries={"total_max_attempts": 1})
    rest = httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token['Secret']}"}, verify=False)
    sagemaker, own = server.client(**keys), everstep.client("everstep", config=once, **options)
    try:
        yield Holder(name, key["KeyId"], key["Secret"], token["KeyId"], token["Secret"], sagemaker, own, rest)
    finally:
        for client in (sagemaker, own, rest):
            client.close()


def refused(call: Callable[..., Any], **members: Any) -> tuple[str, str]:
    """The code and the message with which a boto3 call is refused."""
    with pytest.raises(ClientError) as caught:
        call(**members)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]
