from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.providers import ec2_front


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for all tests: a control plane sees nothing but what carries its own tag."""
    with ec2_front.moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="session")
def lasting_door() -> Iterator[ec2_front.Door]:
    with ec2_front.Door().open() as door:
        yield door


@pytest.fixture
def front(moto_url: str, lasting_door: ec2_front.Door) -> ec2_front.Front:
    lasting_door.front = ec2_front.Front(moto_url)
    return lasting_door.front


@pytest.fixture
def door(front: ec2_front.Front, lasting_door: ec2_front.Door) -> str:
    """The address of the front's door."""
    return lasting_door.url
