"""The policy file: an operator's own is laid over ours, and a wrong one is refused with one sentence that names the entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.accelerators.faults import VARIABLE, Faults, FaultsFileError
from everstep.hardware import FaultClass


def with_file(folder: Path, text: str) -> Faults:
    path = folder / "faults.toml"
    path.write_text(text)
    return Faults.read({VARIABLE: str(path)})


def test_a_code_that_nobody_knows_has_the_stated_default() -> None:
    meaning = Faults.read({}).meaning("nvidia", "xid:4242")
    assert (meaning.fault_class, meaning.reason) == (FaultClass.UNKNOWN, "XidNotKnown")


@pytest.mark.parametrize(
    ("code", "reason"),
    [("xid:31", "XidUserAppError"), ("xid:94", "NvidiaGpuXidRestartApp"), ("xid:73", "XidHardwareFailure"),
     ("xid:79", "NvidiaGpuXidErrorPendingReplacement")],
)  # fmt: skip
def test_a_code_speaks_in_the_words_of_hyperpod(code: str, reason: str) -> None:
    assert Faults.read({}).meaning("nvidia", code).reason == reason


@pytest.mark.parametrize(
    ("vendor", "code", "wanted"),
    [
        ("nvidia", "count", "reboot"),
        ("neuron", "count", "reboot"),
        ("nvidia", "remap:pending", "reboot"),
        ("nvidia", "remap:failure", "replace"),
        ("nvidia", "ecc:uncorrectable", "replace"),
        ("nvidia", "ecc:sram_threshold", "replace"),
        ("nvidia", "lost", "replace"),
        ("neuron", "ecc:uncorrectable", "replace"),
        ("neuron", "ecc:sram_uncorrectable", "replace"),
    ],
)
def test_what_is_read_off_a_device_has_a_class(vendor: str, code: str, wanted: str) -> None:
    assert Faults.read({}).meaning(vendor, code).fault_class == wanted


def test_an_operators_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    faults = with_file(tmp_path, '[nvidia.codes]\n"xid:79" = { class = "reboot", note = "we try that first" }\n')
    assert faults.meaning("nvidia", "xid:79").fault_class is FaultClass.REBOOT
    assert faults.meaning("nvidia", "xid:79").type == "NvidiaErrorReboot"
    assert faults.meaning("nvidia", "xid:74").fault_class is FaultClass.REPLACE


def test_an_operator_may_say_what_follows_from_unknown_codes(tmp_path: Path) -> None:
    faults = with_file(tmp_path, '[nvidia.default]\nclass = "reboot"\n')
    assert faults.meaning("nvidia", "xid:4242").fault_class is FaultClass.REBOOT
    assert faults.meaning("neuron", "neuron:X").fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[amd.codes]\n", "amd is no vendor; use nvidia or neuron"),
        ("[nvidia.kodes]\n", "nvidia.kodes is no section; use default, words or codes"),
        (
            '[nvidia.codes]\n"xid:1" = { class = "explode" }\n',
            "nvidia.codes.\"xid:1\".class is 'explode'; it must be one of application, ",
        ),
        ('[nvidia.codes]\n"xid:1" = { note = "x" }\n', 'nvidia.codes."xid:1".class is None; it must be one of'),
        ('[nvidia.codes]\n"xid:1" = "reboot"\n', 'nvidia.codes."xid:1" must be a table'),
        ('[nvidia.codes]\n"xid:1" = { class = "reboot", colour = "red" }\n', "colour is no member; use class, type, reason, note"),
        ('[nvidia.codes]\n"xid:1" = { class = "reboot", note = 4 }\n', "note must be a text that is not empty"),
        ('[neuron.words]\nreboot = { type = "X" }\n', "neuron.words.reboot must have a type and a reason, and nothing else"),
        ('[neuron.words]\nrest = { type = "X", reason = "Y" }\n', "neuron.words.rest is no class; use one of"),
        ("nvidia = 3\n", "nvidia must be a table"),
        ("[[[", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FaultsFileError) as refused:
        with_file(tmp_path, text)
    assert says in str(refused.value)
    assert VARIABLE in str(refused.value)
    assert "\n" not in str(refused.value).rstrip()


def test_a_file_that_is_not_there_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(FaultsFileError, match="cannot be read"):
        Faults.read({VARIABLE: str(tmp_path / "absent.toml")})
