"""NVIDIA's adapter, against a library that answers, refuses, errs and loses its devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from agent.accelerators import nvml
from agent.accelerators.base import Refusal
from agent.accelerators.choice import Clocks, Host, choose
from agent.accelerators.nvml import Nvidia
from everstep.examination import Verdict
from everstep.hardware import FaultClass, HardwareState
from tests.agent.accelerators.fake_nvml import FakeNvml

SOURCES = Path(__file__).parents[3] / "agent" / "accelerators"
UNCORRECTED_DRAM = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_MEMORY_LOCATION_DRAM)


class Scene:
    """A host with the fake library, a kernel log, and clocks that go by hand."""

    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml()
        self.now = 1_000.0
        self.log = folder / "kern.log"
        self.log.touch()
        self._folder = folder

    def adapter(self, **environment: str) -> Nvidia:
        found = choose(
            {"EVERSTEP_ACCELERATORS": "nvidia", "EVERSTEP_KERNEL_LOG": str(self.log), **environment},
            state_dir=self._folder / "state",
            node="i-1",
            clocks=Clocks(lambda: self.now, lambda: self.now),
            host=Host(proc=self._folder / "proc", dev=self._folder / "dev", sysfs=self._folder / "sys", library=lambda: self.nvml),
        )
        assert isinstance(found, Nvidia)
        return found

    def say(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(line + "\n")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def codes(adapter: Nvidia) -> list[str]:
    return [fault.code for fault in adapter.events()]


def test_every_question_is_one_that_the_real_library_knows() -> None:
    asked = set()
    for source in SOURCES.glob("nvml*.py"):
        asked |= set(re.findall(r"\bnvml(?:Device|Event|Init|Shutdown|Clocks)\w*|\bNVML_[A-Z_0-9]+[A-Z0-9]\b", source.read_text()))
    asked -= {"NVML_NVLINK_ERROR_DL"}  # the beginning of several
    assert len(asked) > 30
    assert {name for name in asked if not hasattr(pynvml, name)} == set()


def test_devices_are_found_with_what_they_are(scene: Scene) -> None:
    seen = scene.adapter().detect()
    assert seen.state is HardwareState.HEALTHY
    assert seen.says == ""
    first = seen.devices[0]
    assert (first.id, first.index, first.model, first.memory_mib, first.links) == ("GPU-0", 0, "NVIDIA H100", 81_920, 4)


def test_readings_have_the_names_that_all_vendors_share(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    readings = {(one.name, tuple(one.labels.values())): one.value for one in adapter.poll() if one.device == "GPU-0"}
    assert readings["accel_utilization_ratio", ()] == 0.75
    assert readings["accel_power_watts", ()] == 350.0
    assert readings["accel_temperature_celsius", ()] == 61.0
    assert readings["accel_memory_used_bytes", ()] == 2**30
    assert readings["accel_link_errors_total", ()] == 1
    assert readings["accel_links_up", ()] == 4
    assert readings["accel_ecc_errors_total", ("uncorrected", "dram")] == 0


def test_a_xid_in_the_log_is_put_down_to_its_device(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    adapter.events()
    scene.say("NVRM: Xid (PCI:0000:11:00): 79, pid=12, name=python, GPU has fallen off the bus.")
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class, fault.pid) == ("xid:79", "GPU-1", FaultClass.REPLACE, 12)
    seen = adapter.detect()
    assert [device.state for device in seen.devices] == [HardwareState.HEALTHY, HardwareState.UNHEALTHY]
    assert seen.state is HardwareState.UNHEALTHY
    assert "xid:79" in seen.says


def test_the_librarys_own_events_are_heard_while_the_log_is_deaf(scene: Scene) -> None:
    scene.log.unlink()
    adapter = scene.adapter()
    adapter.detect()
    scene.nvml.events = [(scene.nvml.gpus[1], 48), (scene.nvml.gpus[1], 48)]
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class) == ("xid:48", "GPU-1", FaultClass.REBOOT)
    assert adapter.detect().state is HardwareState.UNHEALTHY


def test_a_set_of_events_that_cannot_be_used_is_given_back(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    scene.nvml.register_error = pynvml.NVML_ERROR_UNKNOWN
    assert [adapter.events() for _ in range(3)] == [[], [], []]
    assert scene.nvml.sets == 0
    scene.nvml.register_error, scene.nvml.wait_error = None, pynvml.NVML_ERROR_GPU_IS_LOST
    assert [adapter.events() for _ in range(3)] == [[], [], []]
    assert scene.nvml.sets == 0
    scene.nvml.wait_error = None
    adapter.events()
    assert scene.nvml.sets == 1
    adapter.close()
    assert (scene.nvml.sets, scene.nvml.opened) == (0, 0)


def test_an_event_that_the_log_has_too_is_told_once(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    adapter.events()
    scene.say("NVRM: Xid (PCI:0000:11:00): 48, pid=12")
    scene.nvml.events = [(scene.nvml.gpus[1], 48)]
    assert codes(adapter) == ["xid:48"]
    assert codes(adapter) == []


@pytest.mark.parametrize(
    ("change", "code", "of_class"),
    [
        (lambda gpu: setattr(gpu, "rows", (0, 1, 1, 0)), "remap:pending", FaultClass.REBOOT),
        (lambda gpu: setattr(gpu, "rows", (0, 9, 0, 1)), "remap:failure", FaultClass.REPLACE),
        (lambda gpu: setattr(gpu, "sram_threshold", 1), "ecc:sram_threshold", FaultClass.REPLACE),
        (lambda gpu: setattr(gpu, "repair", (0, 1)), "repair:pending", FaultClass.REBOOT),
        (lambda gpu: (setattr(gpu, "rows", None), gpu.ecc.update({UNCORRECTED_DRAM: 1})), "ecc:uncorrectable", FaultClass.REPLACE),
        (lambda gpu: setattr(gpu, "links", 3), "link:down", FaultClass.REBOOT),
        (lambda gpu: setattr(gpu, "is_lost", True), "lost", FaultClass.REPLACE),
    ],
)
def test_what_a_device_shows_is_a_fault(scene: Scene, change: Callable[..., object], code: str, of_class: FaultClass) -> None:
    adapter = scene.adapter()
    adapter.detect()
    assert codes(adapter) == []
    change(scene.nvml.gpus[0])
    adapter.detect()
    seen = adapter.detect()
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class) == (code, "GPU-0", of_class)
    assert seen.devices[0].state is HardwareState.UNHEALTHY
    adapter.detect()
    assert codes(adapter) == []


def test_a_link_that_is_back_at_the_next_look_was_not_down(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    for up in (3, 4, 3, 4):
        scene.nvml.gpus[0].links = up
        assert adapter.detect().state is HardwareState.HEALTHY
    assert codes(adapter) == []


def test_a_contained_error_on_a_device_that_remaps_costs_nothing(scene: Scene) -> None:
    adapter = scene.adapter()
    scene.nvml.gpus[0].ecc[UNCORRECTED_DRAM] = 1
    assert adapter.detect().state is HardwareState.HEALTHY
    assert codes(adapter) == []


def test_a_device_that_is_reached_no_more_is_missing_within_two_looks(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter.detect()
    scene.nvml.unreachable = {1}
    assert adapter.detect().state is HardwareState.UNKNOWN
    assert codes(adapter) == []
    seen = adapter.detect()
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class) == ("count", "GPU-1", FaultClass.REBOOT)
    assert seen.state is HardwareState.UNHEALTHY
    assert seen.says == "1 devices are there, 2 should be; struck by count"


def test_a_device_that_never_came_up_is_missing_once_its_time_is_over(scene: Scene) -> None:
    adapter = scene.adapter(EVERSTEP_NODE_ACCELERATORS="3")
    adapter.detect()
    assert adapter.detect().state is HardwareState.UNKNOWN
    scene.now += 121.0
    adapter.detect()
    adapter.detect()
    assert codes(adapter) == ["count"]
    assert adapter.expected("ml.p5.48xlarge") == 3


def test_a_question_without_an_answer_leaves_its_device_in_doubt(scene: Scene) -> None:
    adapter = scene.adapter()
    scene.nvml.gpus[1].errors["PowerUsage"] = pynvml.NVML_ERROR_UNKNOWN
    seen = adapter.detect()
    assert [device.state for device in seen.devices] == [HardwareState.HEALTHY, HardwareState.UNKNOWN]
    assert "device 1 does not answer nvmlDeviceGetPowerUsage" in seen.says


@pytest.mark.parametrize("question", ["PowerUsage", "MemoryErrorCounter", "SramEccErrorStatus", "NvLinkState", "RepairStatus"])
def test_a_question_that_a_device_does_not_support_is_left_out(scene: Scene, question: str) -> None:
    for gpu in scene.nvml.gpus:
        gpu.errors[question] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert scene.adapter().detect().state is HardwareState.HEALTHY


def test_a_driver_that_does_not_answer_is_unknown_and_asked_again(scene: Scene) -> None:
    adapter = scene.adapter()
    scene.nvml.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    seen = adapter.detect()
    assert (seen.state, seen.devices) == (HardwareState.UNKNOWN, ())
    assert "does not answer" in seen.says
    scene.nvml.init_error = None
    assert adapter.detect().state is HardwareState.HEALTHY
    scene.nvml.count_error = pynvml.NVML_ERROR_UNKNOWN
    broken = adapter.detect()
    assert [device.state for device in broken.devices] == [HardwareState.UNKNOWN] * 2
    scene.nvml.count_error = None
    assert adapter.detect().state is HardwareState.HEALTHY
    adapter.close()
    assert scene.nvml.opened == 0


def test_a_log_that_cannot_be_read_is_no_doubt_while_the_library_tells(scene: Scene) -> None:
    scene.log.unlink()
    adapter = scene.adapter()
    adapter.detect()
    adapter.events()
    assert adapter.detect().state is HardwareState.HEALTHY


def test_a_process_sees_the_devices_it_is_given(scene: Scene) -> None:
    adapter = scene.adapter()
    assert adapter.env(adapter.detect().devices[1:]) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}


def test_what_cannot_be_done_is_refused_with_a_reason(scene: Scene) -> None:
    with pytest.raises(Refusal, match="cannot be partitioned"):
        scene.adapter().partition({"GPU-0": "1g.10gb"})


def test_a_diagnosis_says_how_many_devices_there_are(scene: Scene) -> None:
    (finding,) = scene.adapter(EVERSTEP_NODE_ACCELERATORS="2").diagnose(1)
    assert (finding.verdict, finding.measured, finding.threshold) == (Verdict.PASSED, 2.0, 2.0)


@pytest.fixture
def dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a ``dcgmi`` that notes how it is called and then does this."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(script: str) -> None:
        (tmp_path / "dcgmi").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{script}\n')
        (tmp_path / "dcgmi").chmod(0o755)

    return install


@pytest.mark.parametrize(("level", "run"), [(2, 2), (3, 3), (4, 3), (9, 3)])
def test_the_deepest_diagnosis_that_fits_is_run_and_another_than_was_wished_is_said(
    scene: Scene, dcgm: Callable[[str], None], tmp_path: Path, level: int, run: int
) -> None:
    dcgm("exit 0")
    (_, finding) = scene.adapter().diagnose(level)
    assert (tmp_path / "asked").read_text() == f"diag -r {run}\n"
    assert (finding.verdict, f"level {run}" in finding.says) == (Verdict.PASSED, True)
    assert (f"in place of {level}" in finding.says) == (run != level)


def test_the_deepest_diagnosis_that_runs_out_of_time_is_nothing_against_the_node(dcgm: Callable[[str], None]) -> None:
    dcgm("exec sleep 60")
    found = {level: nvml._dcgm(level, {2: 0.05, 3: 0.05}).verdict for level in (2, 3)}
    assert found == {2: Verdict.FAILED, 3: Verdict.SKIPPED}


def test_a_diagnosis_that_finds_something_fails_the_node(dcgm: Callable[[str], None]) -> None:
    dcgm("echo memory: fail; exit 226")
    finding = nvml._dcgm(3)
    assert (finding.verdict, "226: memory: fail" in finding.says) == (Verdict.FAILED, True)


def test_a_library_that_is_not_installed_is_no_health(scene: Scene) -> None:
    adapter = scene.adapter()
    adapter._nvml = None
    assert adapter.detect().state is HardwareState.UNKNOWN
    assert "everstep[gpu]" in adapter.detect().says
