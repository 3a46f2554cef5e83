"""Faults are told as occurrences: a burst is one, a restart of the agent tells none anew, and each leaves its mark on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.accelerators.faults import Faults
from agent.accelerators.kernel_lines import Named
from agent.accelerators.kernel_log import File
from agent.accelerators.readings import Reading
from agent.accelerators.roll import Roll
from agent.accelerators.watch import WINDOW_S, Watch
from everstep.hardware import Device, FaultClass, HardwareState

XID_79 = "NVRM: Xid (PCI:0000:10:00): 79, pid=12, name=x, GPU has fallen off the bus."


class Scene:
    """A host's log and its clock; ``watch`` starts an agent's watch over it, in the same boot or another."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000.0
        self._folder = folder
        self.log = folder / "kmsg"

    def watch(self, boot: str = "one") -> Watch:
        def open_log(place: str | None) -> File:
            return File(self.log, place, from_start=True, may_be_missing=True)

        return Watch(
            "nvidia",
            Faults.read({}),
            node="i-1",
            boot=boot,
            store=self._folder / "w.json",
            open_log=open_log,
            wall=lambda: self.now,
        )

    def say(self, *lines: str) -> None:
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def device_of(name: Named) -> str | None:
    return f"gpu-{name.pci}" if name.pci else None


def test_a_burst_is_one_occurrence_and_what_comes_later_is_another(scene: Scene) -> None:
    watch = scene.watch()
    scene.say(XID_79, XID_79, XID_79)
    (first,) = watch.hear(device_of)
    assert (first.code, first.fault_class, first.device, first.pid) == ("xid:79", FaultClass.REPLACE, "gpu-0000:10:00", 12)
    scene.now += WINDOW_S - 0.1
    scene.say(XID_79)
    assert watch.hear(device_of) == []
    scene.now += WINDOW_S + 0.1
    scene.say(XID_79)
    (second,) = watch.hear(device_of)
    assert second.id != first.id


def test_a_storm_without_end_is_told_again_every_minute(scene: Scene) -> None:
    watch = scene.watch()
    told = 0
    for _ in range(200):
        scene.say(XID_79)
        told += len(watch.hear(device_of))
        scene.now += 1.0
    assert 3 <= told <= 4


def test_other_codes_and_other_devices_are_other_occurrences(scene: Scene) -> None:
    watch = scene.watch()
    scene.say(XID_79, XID_79.replace(" 79", " 48"), XID_79.replace(":10:", ":11:"))
    assert [(fault.code, fault.device) for fault in watch.hear(device_of)] == [
        ("xid:79", "gpu-0000:10:00"),
        ("xid:48", "gpu-0000:10:00"),
        ("xid:79", "gpu-0000:11:00"),
    ]


def test_a_line_that_follows_up_a_switchs_fault_is_the_same_occurrence(scene: Scene) -> None:
    watch = scene.watch()
    scene.say(
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Data {0x00000000}",
    )
    assert [fault.fault_class for fault in watch.hear(lambda _: None)] == [FaultClass.APPLICATION]


def test_an_action_that_grows_is_told_again(scene: Scene) -> None:
    watch = scene.watch()
    line = "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x0 (None) to 0x{} (x)"
    scene.say(line.format(0), line.format(2))
    assert [fault.fault_class for fault in watch.hear(device_of)] == [FaultClass.APPLICATION, FaultClass.REBOOT]


def test_a_restart_after_everything_has_arrived_tells_nothing_again(scene: Scene) -> None:
    before = scene.watch()
    scene.say(XID_79)
    before.hear(device_of)
    before.told()
    after = scene.watch()
    assert after.hear(device_of) == []
    scene.say(XID_79)
    assert after.hear(device_of) == []  # still the same burst
    assert after.state_of("gpu-0000:10:00") is HardwareState.UNHEALTHY


def test_a_restart_before_it_has_arrived_tells_the_same_occurrence(scene: Scene) -> None:
    scene.say(XID_79, "something else", XID_79.replace(" 79", " 31"))
    first = scene.watch().hear(device_of)
    again = scene.watch().hear(device_of)
    assert [fault.id for fault in again] == [fault.id for fault in first]
    assert len({fault.id for fault in first}) == 2


def test_a_fault_that_was_heard_and_not_told_is_told_after_a_crash_whatever_was_kept_meanwhile(scene: Scene) -> None:
    watch = scene.watch()
    scene.say(XID_79)
    (heard,) = watch.hear(device_of)
    (lacking,) = watch.miss(["gpu-b"], "one of two")
    watch.meet(["gpu-a", "gpu-b"])  # keeps
    watch.forgive("gpu-a")  # keeps
    after = scene.watch()
    (again,) = after.hear(device_of)
    (lacking_still,) = after.miss(["gpu-b"], "one of two")
    assert (again.id, lacking_still.id) == (heard.id, lacking.id)
    assert after.known() == ("gpu-a", "gpu-b")


def test_what_was_heard_after_the_last_word_arrived_is_told_after_a_crash(scene: Scene) -> None:
    watch = scene.watch()
    scene.say(XID_79)
    watch.hear(device_of)
    watch.told()
    scene.now += WINDOW_S + 0.1
    scene.say(XID_79)
    (second,) = watch.hear(device_of)
    watch.meet(["gpu-a"])  # keeps
    assert [fault.id for fault in scene.watch().hear(device_of)] == [second.id]


def test_two_nodes_never_share_the_name_of_an_occurrence(scene: Scene, tmp_path: Path) -> None:
    scene.say(XID_79)
    (ours,) = scene.watch().hear(device_of)
    others = Watch(
        "nvidia",
        Faults.read({}),
        node="i-2",
        boot="one",
        store=tmp_path / "other.json",
        open_log=lambda place: File(scene.log, place, from_start=True),
        wall=lambda: scene.now,
    )
    (theirs,) = others.hear(device_of)
    assert ours.id != theirs.id


def test_a_host_that_is_started_anew_is_healthy_until_it_is_struck_again(scene: Scene) -> None:
    before = scene.watch("one")
    scene.say(XID_79)
    (first,) = before.hear(device_of)
    before.told()
    after = scene.watch("two")
    assert after.state_of("gpu-0000:10:00") is HardwareState.HEALTHY
    scene.say(XID_79)
    (second,) = after.hear(device_of)  # at once: a burst does not outlive its boot
    assert second.id != first.id


def test_a_line_at_the_same_place_is_another_occurrence_after_another_start_or_in_a_log_that_was_cut_off(scene: Scene) -> None:
    scene.say(XID_79)
    watch = scene.watch("one")
    (first,) = watch.hear(device_of)
    (of_another_start,) = scene.watch("two").hear(device_of)
    scene.log.write_text("")
    assert watch.hear(device_of) == []
    scene.now += WINDOW_S + 0.1
    scene.say(XID_79.replace("pid=12", "pid=34"))
    (after_the_cut,) = watch.hear(device_of)
    assert len({first.id, of_another_start.id, after_the_cut.id}) == 3


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(31, HardwareState.HEALTHY), (94, HardwareState.HEALTHY), (73, HardwareState.UNHEALTHY), (79, HardwareState.UNHEALTHY),
     (4242, HardwareState.UNKNOWN)],
)  # fmt: skip
def test_a_class_leaves_its_mark_on_the_device(scene: Scene, code: int, wanted: HardwareState) -> None:
    watch = scene.watch()
    scene.say(XID_79.replace(" 79", f" {code}"))
    watch.hear(device_of)
    assert watch.state_of("gpu-0000:10:00") is wanted


def test_a_doubt_ends_after_an_hour_without_another(scene: Scene) -> None:
    watch = scene.watch()
    scene.say("NVRM: Xid nonsense")
    (fault,) = watch.hear(device_of)
    assert fault.evidence == "NVRM: Xid nonsense"
    assert watch.state_of("") is HardwareState.UNKNOWN
    scene.now += 3_601.0
    assert watch.state_of("") is HardwareState.HEALTHY


def test_evidence_is_cut_at_a_kibibyte_of_whole_letters(scene: Scene) -> None:
    watch = scene.watch()
    scene.say("NVRM: Xid " + "é" * 2_000)
    (fault,) = watch.hear(device_of)
    assert 1_020 <= len(fault.evidence.encode()) <= 1_024


def test_a_counter_is_told_at_each_of_its_values_once(scene: Scene) -> None:
    device = Device("gpu-0", 0, "m", 1)
    watch = scene.watch()
    (pending,) = watch.judge([Reading(device, counts={"remap_pending": 1, "ecc_corrected_dram": 9})])
    assert (pending.code, pending.fault_class) == ("remap:pending", FaultClass.REBOOT)
    assert watch.judge([Reading(device, counts={"remap_pending": 1})]) == []
    (again,) = scene.watch().judge([Reading(device, counts={"remap_pending": 1})])
    assert again.id == pending.id
    (after_reboot,) = scene.watch("two").judge([Reading(device, counts={"remap_pending": 1})])
    assert after_reboot.id != pending.id


def test_the_same_absence_is_one_occurrence_over_a_restart(scene: Scene) -> None:
    watch = scene.watch()
    watch.meet(["a", "b"])
    (first,) = watch.miss(["b"], "1 of 2")
    assert (first.code, first.device) == ("count", "b")
    assert watch.miss(["b"], "1 of 2") == []
    watch.told()
    after = scene.watch()
    assert after.miss(["b"], "1 of 2") == []
    assert after.miss([], "") == []
    (later,) = after.miss(["b"], "1 of 2")
    assert later.id != first.id


def test_a_broken_memory_is_no_reason_to_stop(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("{nonsense")
    scene.say(XID_79)
    assert len(scene.watch().hear(device_of)) == 1


def test_a_log_that_cannot_be_read_is_said_and_heard_again_later(scene: Scene, tmp_path: Path) -> None:
    watch = Watch(
        "nvidia",
        Faults.read({}),
        node="i-1",
        boot="b",
        store=tmp_path / "w.json",
        open_log=lambda place: File(scene.log, place, from_start=True),
        wall=lambda: scene.now,
    )
    assert watch.hear(device_of) == []
    assert "cannot be read" in watch.deafness
    scene.say(XID_79)
    assert len(watch.hear(device_of)) == 1
    assert watch.deafness == ""


# ---------------------------------------------------------------- the roll


def test_a_device_is_missing_at_the_second_look() -> None:
    roll = Roll(patience_s=120.0)
    assert roll.call(["a", "b"], ["a", "b"], 2, 0.0) == ()
    assert roll.call(["a"], ["a", "b"], 2, 10.0) == ()
    assert roll.is_in_doubt
    assert roll.call(["a"], ["a", "b"], 2, 20.0) == ("b",)
    assert not roll.is_in_doubt


def test_a_device_that_was_never_seen_has_time_to_show_itself() -> None:
    roll = Roll(patience_s=120.0)
    looks = {now: roll.call(["a"], ["a"], 2, float(now)) for now in range(0, 150, 10)}
    assert roll.is_in_doubt is False
    assert [now for now, absent in looks.items() if absent] == [130, 140]


def test_a_device_that_was_exchanged_is_not_missing() -> None:
    roll = Roll(patience_s=0.0)
    assert [roll.call(["a", "c"], ["a", "b"], 2, now) for now in (0.0, 1.0, 2.0)] == [(), (), ()]


NAMES = st.sets(st.sampled_from("abcdefgh"))


@settings(max_examples=60, deadline=None)
@given(looks=st.lists(NAMES, min_size=2, max_size=6), known=NAMES, expected=st.none() | st.integers(0, 8))
def test_nothing_is_missing_that_is_there_and_nothing_that_lacks_is_called_certain_health(
    looks: list[set[str]], known: set[str], expected: int | None
) -> None:
    roll = Roll(patience_s=0.0)
    for now, present in enumerate(looks):
        absent = roll.call(sorted(present), sorted(known), expected, float(now))
        assert not present & set(absent)
        lacks = known - present if expected is None else set(range(max(0, expected - len(present))))
        assert bool(lacks) == (bool(absent) or roll.is_in_doubt)
