"""Kernel logs as the drivers write them come to the class and the words that the policy gives them; what cannot be read is never healthy."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.accelerators.counts import devices_of
from agent.accelerators.faults import OWN, Faults
from agent.accelerators.kernel_lines import bus_address, named
from everstep.hardware import FaultClass

GOLDEN = Path(__file__).parent / "golden" / "kernel.golden"
FOLLOWS = {
    FaultClass.APPLICATION: "nothing",
    FaultClass.TRANSIENT: "restart",
    FaultClass.REBOOT: "reboot",
    FaultClass.REPLACE: "replace",
    FaultClass.UNKNOWN: "policy",
}
IN_THE_FACTS = {
    13,
    31,
    43,
    45,
    48,
    63,
    64,
    71,
    73,
    74,
    79,
    92,
    94,
    95,
    109,
    119,
    120,
    137,
    140,
    *range(143, 151),
    154,
    158,
    171,
    172,
}
FAULTS = Faults.read({})


@dataclass(frozen=True)
class Golden:
    wanted: str
    line: str


def goldens() -> list[Golden]:
    lines = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    return [Golden(wanted.removeprefix("= "), line) for wanted, line in zip(lines[::2], lines[1::2], strict=True)]


def come_to(line: str) -> str:
    name = named(line)
    if name is None:
        return "-"
    meaning = FAULTS.meaning(name.vendor, name.code, name.variant)
    return f"{name.vendor} | {name.code} | {meaning.fault_class} | {meaning.type} | {FOLLOWS[meaning.fault_class]}"


@pytest.mark.parametrize("golden", goldens(), ids=lambda golden: golden.line[:60])
def test_a_line_comes_to_what_the_golden_file_says(golden: Golden) -> None:
    assert come_to(golden.line) == golden.wanted


def test_every_code_of_the_table_occurs_in_the_golden_file() -> None:
    table = tomllib.loads(OWN.read_text())
    spoken = {code for vendor in table.values() for code in vendor["codes"] if re.match(r"(xid|neuron):", code)}
    heard = set()
    for golden in goldens():
        name = named(golden.line)
        if name is not None:
            heard |= {name.code, f"{name.code}:{name.variant}"}
    rare = {f"xid:154:0x{action}" for action in (5, 6, 7)}
    severities = {code for code in spoken if code.endswith(("fatal", "non-fatal"))}
    plain_links = {f"xid:{code}" for code in range(146, 151)}
    assert spoken - heard <= rare | severities | plain_links
    assert {f"xid:{code}" for code in IN_THE_FACTS} <= heard


@pytest.mark.parametrize("code", range(144, 151))
@pytest.mark.parametrize(("word", "wanted"), [("Fatal", "reboot"), ("Nonfatal", "nothing"), ("", "policy")])
def test_a_fault_of_a_fast_link_is_judged_by_its_severity(code: int, word: str, wanted: str) -> None:
    assert come_to(f"NVRM: Xid (PCI:0001:01:00): {code}, EVENT  {word}   XC0 i0 Link 08 (0x1 0x2)").endswith(wanted)


@pytest.mark.parametrize("action", range(1, 8))
def test_an_action_that_the_driver_asks_for_has_a_class(action: int) -> None:
    assert come_to(f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x{action:x} (any)").endswith(
        "reboot"
    )


def test_who_and_which_device_is_taken_from_the_line() -> None:
    name = named("NVRM: Xid (PCI:0000:3b:00): 94, pid=9001, name=python, Contained")
    assert name is not None
    assert (name.pid, name.pci) == (9001, "0000:3b:00")
    other = named("NEURON_HW_ERR=DMA_ERROR hostname=h nd-id=12 nc-id=0 action=X")
    assert other is not None
    assert other.index == 12


@pytest.mark.parametrize("text", ["0000:3b:00", "00000000:3B:00.0", "3b:00.0", "PCI:0000:3b:00".removeprefix("PCI:")])
def test_an_address_is_the_same_however_it_is_written(text: str) -> None:
    assert bus_address(text) == "00:3b:00"


GARBAGE = st.text(max_size=60)
NAMES = st.sampled_from(
    ["Xid", "SXid", "NEURON_HW_ERR", "NVRM: Xid (PCI:", "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): ", "NEURON_HW_ERR="]
)


@settings(max_examples=150, deadline=None)
@given(before=GARBAGE, name=NAMES, after=GARBAGE)
def test_a_line_that_names_a_fault_is_never_taken_for_health(before: str, name: str, after: str) -> None:
    heard = named(before + name + after)
    assert heard is not None
    meaning = FAULTS.meaning(heard.vendor, heard.code, heard.variant)
    known = heard.code in FAULTS.codes[heard.vendor] or heard.code.startswith("sxid:")
    assert known or meaning.fault_class is FaultClass.UNKNOWN


@settings(max_examples=150, deadline=None)
@given(line=st.one_of(st.text(), st.binary().map(lambda raw: raw.decode(errors="replace"))))
def test_garbage_is_read_without_a_crash(line: str) -> None:
    named(line)
    bus_address(line)


def test_the_counts_of_devices_are_those_of_the_catalogue() -> None:
    catalogue = tomllib.loads((Path(__file__).parents[3] / "models" / "catalogue.toml").read_text())
    wanted = {name: entry.get("accelerators") or None for name, entry in catalogue.items()}
    assert {name: devices_of(name) for name in catalogue} == wanted
    assert devices_of("p5.48xlarge") == 8
    assert devices_of("toaster") is None
