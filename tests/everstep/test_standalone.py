from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from everstep.resilience import torch_parts

SCRIPTS = Path(__file__).parent / "scripts"


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_") and name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_everstep_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys, everstep; print([m for m in ('torch', 'numpy', 'pydantic', 'boto3') if m in sys.modules], everstep.__all__)"
    )
    assert python("-c", program, folder=tmp_path).stdout.startswith("[] ")


def test_what_the_documents_name_is_there_after_the_one_import(tmp_path: Path) -> None:
    program = "import everstep; print(everstep.checkpoint.async_save.__name__, everstep.data.OrderedBatches.__name__)"
    done = python("-c", program, folder=tmp_path)
    assert done.stdout.split() == ["async_save", "OrderedBatches"], done.stderr


def test_a_script_runs_alone_without_any_agent(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("[]")
    done = python(str(SCRIPTS / "small.py"), "plain", str(tmp_path), "12", str(tmp_path / "faults"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in tmp_path.glob("left-*")] == ["trained 12 steps, left as rank 0 of 1"]


def test_the_script_of_the_documentation_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DOCUMENTED)
    done = python("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trained", "20"]


def test_misuse_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "misuse.py").write_text(MISUSE)
    said = python("misuse.py", folder=tmp_path).stdout.splitlines()
    assert said[0].startswith("NotInitialised everstep.init() has not been called")
    assert said[1].startswith("NotInAJob")
    assert "everstep job submit" in said[1]
    assert said[2].startswith("UnsupportedWrapper")
    assert "static_graph" in said[2]
    assert said[3].startswith("EverstepError run.update(7) while step 0 is being trained")


def test_a_gradient_that_was_reduced_on_a_broken_accelerator_is_not_in_hand(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN_ACCELERATOR)
    done = python("broken.py", folder=tmp_path)
    assert done.stdout.splitlines() == ["CollectiveFailed aborted", "False 1.0"], done.stderr


def test_a_torch_without_a_private_part_is_refused_by_name(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "del DistributedDataParallel._update_process_group\n"
        "import everstep.resilience\n"
    )
    said = python("-c", program, folder=tmp_path).stderr
    assert "DistributedDataParallel._update_process_group" in said
    assert "torch 2." in said


def test_every_private_part_is_there_in_the_torch_that_is_installed() -> None:
    torch_parts.check()


def test_an_interval_of_checkpoints_below_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        everstep.Checkpointer(every=0)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        _ = everstep.fly


DOCUMENTED = """
import types

import torch

import everstep


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return types.SimpleNamespace(loss=self.inner(batch).square().mean())


data = [torch.randn(4) for _ in range(64)]
run = everstep.init()
model = torch.nn.parallel.DistributedDataParallel(Model())
opt = torch.optim.AdamW(model.parameters())
sched = torch.optim.lr_scheduler.LinearLR(opt)
state = everstep.State(model=model, optimizer=opt, scheduler=sched)
ckpt = everstep.Checkpointer(every=10, durable_every=500)


@everstep.resilient(state, ckpt)
def train(run):
    for step, batch in run.steps(data, global_batch=16, until=20):
        loss = model(batch).loss / run.accumulation
        loss.backward()
        with run.update(step):
            opt.step()
            sched.step()
            opt.zero_grad()


train()
print("trained", run.step)
"""

MISUSE = """
import os

import torch

import everstep
from everstep.errors import EverstepError


def refused(misuse):
    try:
        misuse()
    except EverstepError as error:
        print(type(error).__name__, error)


state = everstep.State(model=torch.nn.Linear(1, 1))
refused(everstep.resilient(state)(lambda run: None))
os.environ["WORLD_SIZE"] = "2"
refused(everstep.init)
del os.environ["WORLD_SIZE"]
everstep.init()
wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), static_graph=True)
refused(lambda: everstep.State(model=wrapped))


@everstep.resilient(state)
def out_of_step(run):
    for _ in run.steps([torch.ones(1)], global_batch=1, until=2):
        with run.update(7):
            pass


refused(out_of_step)
"""

BROKEN_ACCELERATOR = """
import torch

from everstep.errors import CollectiveFailed
from everstep.resilience import State, settings
from everstep.resilience.membership import Membership
from everstep.resilience.run import Run


class Accelerator:
    def add(self, group, store, rank, size):
        pass

    def abort(self):
        pass

    def why_broken(self):
        return "aborted"


seen = settings.read({})
membership = Membership(seen, Accelerator())
run = Run(seen, membership)
model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
run.attach(State(model=model, optimizer=optimizer))
try:
    for step, batch in run.steps([torch.ones(1)], global_batch=1, until=1):
        model(batch).sum().backward()
        with run.update(step):
            optimizer.step()
except CollectiveFailed as error:
    print("CollectiveFailed", error)
print(membership.place.is_reduced, model.weight.item())
"""


def test_a_script_that_ends_while_it_saves_ends_with_its_own_code(tmp_path: Path) -> None:
    """And what it was saving is there: it has only forgotten to close."""
    program = (
        "import sys, torch, everstep\n"
        "model = torch.nn.Linear(3000, 3000)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "tiers = everstep.Tiers.from_environment(EVERSTEP_DURABLE_URL=sys.argv[1])\n"
        "everstep.Checkpointer(durable_every=1, tiers=tiers).step(everstep.State(model=model, optimizer=optimizer), 1)\n"
        "sys.exit(3)\n"
    )
    done = python("-c", program, (tmp_path / "objects").as_uri(), folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert len(list((tmp_path / "objects").rglob("manifests/*.json"))) == 1
