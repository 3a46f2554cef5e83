"""A client in a process of its own: real boto3, one call after another, so that a server's CPU can be told from its client's.

``python -m benchmarks.load URL`` reads questions from standard input, a line of JSON each, and answers each with a line: the seconds of every call,
in order. A question is an operation, how often it is to be called (``"all"``: for each page of a listing), and its members.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

KEY_ID = "AKIAEVERSTEPBENCH001"
SECRET = "secret/of+the/bench"  # noqa: S105  (of a server that lives for one measurement)


@dataclass(frozen=True)
class Load:
    """The client's process. It is ready, and connected, from its first answer on."""

    process: subprocess.Popen[str]

    def call(self, operation: str, count: int | str, members: dict[str, Any]) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([operation, count, members]) + "\n")
        self.process.stdin.flush()
        took: list[float] = json.loads(self.process.stdout.readline())
        return took


@contextmanager
def load(url: str) -> Iterator[Load]:
    command = [sys.executable, "-m", "benchmarks.load", url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parent.parent, **pipes) as process:
        yield Load(process)
        process.stdin.close()


def client(url: str) -> Any:
    return boto3.client(
        "sagemaker",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
    )


def _repeat(call: Any, count: int, members: dict[str, Any]) -> list[float]:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        call(**members)
        took.append(time.perf_counter() - started)
    return took


def _walk(call: Any, members: dict[str, Any]) -> list[float]:
    took, token = [], {}
    while True:
        started = time.perf_counter()
        page = call(**members, **token)
        took.append(time.perf_counter() - started)
        if "NextToken" not in page:
            return took
        token = {"NextToken": page["NextToken"]}


def main(url: str) -> None:
    speaker = client(url)
    for line in sys.stdin:
        operation, count, members = json.loads(line)
        call = getattr(speaker, operation)
        print(json.dumps(_walk(call, members) if count == "all" else _repeat(call, count, members)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
