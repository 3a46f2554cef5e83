"""``Idempotency-Key`` at the routes of our own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.live import ThreadedApi

Call = Callable[..., httpx.Response]
KEY = {"idempotency-key": "k1"}


@pytest.fixture
def call(api: ThreadedApi, bearer: str) -> Call:
    def call(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {bearer}"} | more.pop("headers", {})
        return httpx.request(method, f"{api.url}{path}", headers=headers, timeout=20.0, verify=False, **more)

    return call


def test_a_release_that_is_registered_twice_with_its_key_is_registered_once(call: Call) -> None:
    body = {"Version": "9.9.9", "ImageId": "ami-00000000000000001"}
    first, second = (call("POST", "/v1/image-releases", json=body, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code, first.json()) == (201, 201, second.json())
    assert second.headers["idempotency-replayed"] == "true"
    assert call("POST", "/v1/image-releases", json=body).status_code == 409
    assert call("POST", "/v1/image-releases", json=body | {"Version": "9.9.8"}, headers=KEY).status_code == 422


def test_no_answer_with_a_secret_is_kept_to_be_given_again(call: Call) -> None:
    body = {"Name": "eve", "Role": "Viewer", "Kind": "Token"}
    answer = call("POST", "/v1/keys", json=body, headers=KEY)
    assert (answer.status_code, "secret" in answer.json()["detail"]) == (422, True)
    assert call("POST", "/v1/keys", json=body).status_code == 201
