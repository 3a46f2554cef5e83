"""The ``aws`` command line as tests call it, and what it knows: it brings a service model of its own, older than the pinned botocore's."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import awscli
from botocore import xform_name

DRIVER = Path(__file__).with_name("scripts") / "aws_commands.py"


class Told(NamedTuple):
    status: int
    answer: Any
    complaint: str

    @property
    def code(self) -> str:
        """The code of the error that the service told; empty when there was none."""
        found = re.search(r"An error occurred \((\w+)\)", self.complaint)
        return found[1] if found else ""


class Aws:
    """``aws("list-clusters", "--page-size", "1")``; ``aws.call("ListClusters", {"MaxResults": 1})`` gives the members as one document."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        assert process.stdout
        self._to, self._from = process.stdin, process.stdout

    def __call__(self, command: str, *arguments: str) -> Told:
        self._to.write(json.dumps(["sagemaker", command, *arguments, "--output", "json"]) + "\n")
        self._to.flush()
        status, said, complaint = json.loads(self._from.readline())
        return Told(status, json.loads(said or "null"), complaint)

    def call(self, operation: str, members: Mapping[str, Any]) -> Told:
        return self(xform_name(operation, "-"), "--cli-input-json", json.dumps(members))


@contextmanager
def aws_commands(environment: Mapping[str, str]) -> Iterator[Aws]:
    command = [sys.executable, "-W", "ignore", str(DRIVER)]
    with subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Aws(process)
        assert process.stdin
        process.stdin.close()


@cache
def operations_known() -> frozenset[str]:
    """The operations of clusters, of what governs them and of tags that this command line has commands for."""
    (model,) = (Path(awscli.__file__).parent / "botocore" / "data" / "sagemaker").glob("*/service-2.json*")
    raw = gzip.decompress(model.read_bytes()) if model.suffix == ".gz" else model.read_bytes()
    ours = re.compile(r"Cluster|ComputeQuota|(Add|List|Delete)Tags$")
    return frozenset(name for name in json.loads(raw)["operations"] if ours.search(name))
