"""A client in a process of its own: real boto3, one call after another, so that a server's CPU can be told from its client's.

Usage: python -m benchmarks.load URL OPERATION COUNT JSON   → one line of JSON: seconds of each call, in order.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import boto3

KEY_ID = "AKIAEVERSTEPBENCH001"
SECRET = "secret/of+the/bench"  # noqa: S105  (of a server that lives for one measurement)


def client(url: str) -> Any:
    return boto3.client(
        "sagemaker",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
    )


def repeat(url: str, operation: str, count: int, members: dict[str, Any]) -> list[float]:
    call, took = getattr(client(url), operation), []
    for _ in range(count):
        started = time.perf_counter()
        call(**members)
        took.append(time.perf_counter() - started)
    return took


if __name__ == "__main__":
    print(json.dumps(repeat(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))))
