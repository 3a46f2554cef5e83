"""A running API, its credentials, and clients of it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import boto3
import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from api.settings import Bootstrap, Settings
from tests.api import contract
from tests.patience import PATIENCE

KEY_ID = "AKIAEVERSTEPTEST0001"
SECRET = "s3cret/of+the/test"
TOKEN = "token-of-the-test"
ROLE = "arn:aws:iam::123456789012:role/everstep"
NOWHERE = "redis://127.0.0.1:1/0"


def settings_for(database_url: str, broker_url: str = NOWHERE) -> Settings:
    return Settings(
        database_url=database_url,
        broker_url=broker_url,
        master_key=base64.b64decode("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
        bootstrap=Bootstrap(KEY_ID, SECRET, TOKEN),
        rate_limit=0,
    )


def group(name: str = "workers", count: int = 2, **members: Any) -> dict[str, Any]:
    """The smallest specification of an instance group, and whatever is added."""
    wire = {"InstanceGroupName": name, "InstanceCount": count, "InstanceType": "ml.c5.xlarge", "ExecutionRole": ROLE}
    return wire | members


@dataclass(frozen=True)
class Server:
    """A running API: its address, and how it was set up."""

    url: str
    settings: Settings

    def client(self, **options: Any) -> Any:
        """An unmodified boto3 client of SageMaker, whose every answer is held against the service model.

        One attempt, so that a wrong 5xx fails the test instead of being tried again.
        """
        given = {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "config": Config(retries={"total_max_attempts": 1}),
        } | options
        client = boto3.session.Session().client("sagemaker", **given)
        client.meta.events.register("after-call.sagemaker", contract.check_answer)
        return client

    def call(self, operation: str, members: Any, **changes: Any) -> httpx.Response:
        """A hand-signed call, for what no client would send. ``changes`` are those of ``Signing``."""
        return Signing(**changes).send(self.url, operation, members)


@dataclass(frozen=True)
class Signing:
    """One hand-made request and what is odd about it."""

    key_id: str = KEY_ID
    secret: str = SECRET
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    service: str = "sagemaker"
    region: str = "us-east-1"
    path: str = "/"
    target_prefix: str = "SageMaker"
    session_token: str | None = None
    scope_date: str | None = None
    sent_instead: bytes | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    """Set after signing; None takes a header away."""

    def send(self, url: str, operation: str, members: Any) -> httpx.Response:
        body = members if isinstance(members, bytes) else json.dumps(members).encode()
        headers = self._signed(url, operation, body)
        for name, value in self.headers.items():
            headers.pop(name, None)
            if value is not None:
                headers[name] = value
        sent = body if self.sent_instead is None else self.sent_instead
        # Plain HTTP: reading the machine's certificates would cost each call 50 ms.
        return httpx.post(url + self.path, content=sent, headers=headers, verify=False, timeout=20.0 * PATIENCE)

    def _signed(self, url: str, operation: str, body: bytes) -> dict[str, str]:
        stamp = self.at.strftime("%Y%m%dT%H%M%SZ")
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "host": url.removeprefix("http://"),
            "x-amz-date": stamp,
            "x-amz-target": f"{self.target_prefix}.{operation}",
        }
        if self.session_token:
            headers["x-amz-security-token"] = self.session_token
        request = AWSRequest("POST", url + self.path, data=body, headers=dict(headers))
        request.context["timestamp"] = f"{self.scope_date}{stamp[8:]}" if self.scope_date else stamp
        signer = SigV4Auth(Credentials(self.key_id, self.secret), self.service, self.region)
        signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={';'.join(sorted(headers))}, Signature={signature}"
        )
        return headers
