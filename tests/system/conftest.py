"""A whole stack, real in every part, shared by the tests of this folder; it ends with them, and its nodes with it."""

import os
import time

import pytest

from everstep.embedded import control
from everstep.embedded.home import Home
from tests.system.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    home = Home.at(tmp_path_factory.mktemp("stack"))
    control.start_detached(home, 0, {**os.environ, "EVERSTEP_LOCAL_CAPACITY": "12"}, lambda _service, _state: None)
    try:
        stack = Stack(home, control.exports(home))
        yield stack
        stack.close()
    finally:
        control.shut_down(home)


@pytest.fixture
def cluster_name(stack, request):
    """A name of its own for a test's cluster, which is deleted at the end, whatever happened."""
    name = f"t-{request.node.name[:24].strip('_').replace('_', '-').rstrip('-')}-{time.time_ns() % 100_000}"
    yield name
    stack.delete_cluster(name)
