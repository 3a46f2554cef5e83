"""The object store's client, for the library: S3 as its environment variables tell it, folders as ``file://``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from obstore.store import from_url

from everstep.checkpoint.settings import environment

_ENDPOINTS = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_KEYS = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def open_store(url: str) -> Any:
    """Of ``file://FOLDER``, ``s3://BUCKET/PREFIX``, or any other URL that obstore knows. Raises ValueError."""
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return from_url(url, mkdir=True)
    return from_url(url, **_of_s3(environment())) if scheme == "s3" else from_url(url)


def _of_s3(seen: Mapping[str, str]) -> dict[str, Any]:
    """Keys that are not there are asked of the machine. An endpoint inside of the cluster may speak plain HTTP, and know buckets by path alone."""
    endpoint = next((seen[name] for name in _ENDPOINTS if seen.get(name)), None)
    config = {name: seen[variable] for name, variable in _KEYS.items() if seen.get(variable)}
    config["region"] = seen.get("AWS_REGION") or seen.get("AWS_DEFAULT_REGION") or "us-east-1"
    if endpoint:
        config |= {"endpoint": endpoint, "virtual_hosted_style_request": "false"}
    return {
        "config": config,
        "client_options": {
            "connect_timeout": "5s",
            "timeout": "120s",
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        },
        "retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
    }
