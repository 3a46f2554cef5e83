"""A client in a process of its own: real boto3, one call after another, so that a server's CPU can be told from its client's.

Usage: python -m benchmarks.load URL OPERATION COUNT JSON   → one line of JSON: seconds of each call, in order.
       python -m benchmarks.load URL OPERATION all JSON     → the same for each page of a listing, from the first to the last.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
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


def elsewhere(url: str, operation: str, count: int | str, members: dict[str, Any]) -> list[float]:
    """The same from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.load", url, operation, str(count), json.dumps(members)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    took: list[float] = json.loads(ended.stdout)
    return took


def repeat(url: str, operation: str, count: int, members: dict[str, Any]) -> list[float]:
    call, took = getattr(client(url), operation), []
    for _ in range(count):
        started = time.perf_counter()
        call(**members)
        took.append(time.perf_counter() - started)
    return took


def walk(url: str, operation: str, members: dict[str, Any]) -> list[float]:
    call, took, token = getattr(client(url), operation), [], {}
    while True:
        started = time.perf_counter()
        page = call(**members, **token)
        took.append(time.perf_counter() - started)
        if "NextToken" not in page:
            return took
        token = {"NextToken": page["NextToken"]}


def main(url: str, operation: str, count: str, members: str) -> None:
    given = json.loads(members)
    print(json.dumps(walk(url, operation, given) if count == "all" else repeat(url, operation, int(count), given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
