from __future__ import annotations

from pathlib import Path

import pytest

from everstep.testing import Fault, InjectedFault, arm, faults, point


@pytest.fixture(autouse=True)
def disarmed() -> None:
    yield
    faults._Armed.faults = ()


def test_a_fault_fires_once_at_its_rank_step_and_phase(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(1, "vote", step=3, kind="raise")])
    for rank, step, phase in ((0, 3, "vote"), (1, 2, "vote"), (1, 3, "forward")):
        faults.stand(rank, step, 1)
        point(phase)
    faults.stand(1, 3, 1)
    with pytest.raises(InjectedFault, match="rank 1, step 3, phase vote"):
        point("vote")
    point("vote")
    arm(tmp_path / "faults")
    point("vote")


def test_a_fault_of_a_generation_waits_for_it(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(0, "agree", generation=4, kind="raise")])
    faults.stand(0, 9, 3)
    point("agree")
    faults.stand(0, 9, 4)
    with pytest.raises(InjectedFault):
        point("agree")


def test_nothing_fires_in_a_rehearsal(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(0, "vote", kind="raise")])
    faults.stand(0, 0, 0, is_quiet=True)
    point("vote")
