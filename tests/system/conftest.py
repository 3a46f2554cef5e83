"""A whole stack, real in every part, shared by the tests of this folder; it ends with them, and its nodes with it."""

import time

import pytest

from tests.system.stack import running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
def cluster_name(stack, request):
    """A name of its own for a test's cluster, which is deleted at the end, whatever happened."""
    name = f"t-{request.node.name[:24].strip('_').replace('_', '-').rstrip('-')}-{time.time_ns() % 100_000}"
    yield name
    stack.delete_cluster(name)
