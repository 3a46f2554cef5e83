"""Neuron's adapter, against programs that play the vendor's, and the driver's tree in both layouts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.accelerators.base import Refusal
from agent.accelerators.choice import Clocks, Host, choose
from agent.accelerators.neuron import Neuron
from agent.accelerators.neuron_sources import devices_in
from everstep.examination import Verdict
from everstep.hardware import FaultClass, HardwareState
from tests.live import wait_for

GOLDEN = Path(__file__).parent / "golden"


class Scene:
    """A host with programs on a path of its own, a driver's tree, a kernel log, and a clock that goes by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.bin = folder / "bin"
        self.sysfs = folder / "sysfs"
        self.log = folder / "kern.log"
        for place in (self.bin, self.sysfs):
            place.mkdir()
        self.log.touch()
        self._folder = folder
        self._adapters: list[Neuron] = []

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        draft = self.bin / f"{name}.draft"
        draft.write_text(f"#!/bin/sh\n{script}\n")
        draft.chmod(0o755)
        draft.replace(path)

    def ls(self, text: str | None = None) -> None:
        (self.bin / "ls.json").write_text(text if text is not None else (GOLDEN / "neuron_ls.json").read_text())
        self.program("neuron-ls", f'[ "$1" = --json-output ] && exec cat {self.bin}/ls.json\nexit 2')

    def monitor(self, *lines: str, then: str = "exec sleep 60") -> None:
        (self.bin / "said.json").write_text("".join(f"{line}\n" for line in lines))
        self.program("neuron-monitor", f"echo started >> {self.bin}/starts\ncat {self.bin}/said.json\n{then}")

    def starts(self) -> int:
        return len((self.bin / "starts").read_text().split())

    def old_layout(self, index: int, **counters: int) -> None:
        """Drivers before 2.31: counters under ``stats/hardware``, each a folder with its total."""
        self._tree(index, "stats/hardware/{}/total", counters, "info/serial_number", "info/architecture/device_name", "core_count")

    def new_layout(self, index: int, **counters: int) -> None:
        """Drivers from 2.31 on: elsewhere."""
        self._tree(index, "hardware/ecc/{}", counters, "device/serial_number", "device/device_name", "device/core_count")

    def _tree(self, index: int, counter: str, counters: dict[str, int], serial: str, model: str, cores: str) -> None:
        device = self.sysfs / f"neuron{index}"
        texts = {serial: f"00ff{index}", model: "Trainium1", cores: "2", "neuron_core0/stats/status/hw_error/total": "0"}
        for name, text in {**texts, **{counter.format(name): str(value) for name, value in counters.items()}}.items():
            (device / name).parent.mkdir(parents=True, exist_ok=True)
            (device / name).write_text(f"{text}\n")

    def adapter(self, **environment: str) -> Neuron:
        found = choose(
            {
                "EVERSTEP_ACCELERATORS": "neuron",
                "EVERSTEP_KERNEL_LOG": str(self.log),
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                **environment,
            },
            state_dir=self._folder / "state",
            node="i-1",
            clocks=Clocks(lambda: self.now, lambda: self.now),
            host=Host(proc=self._folder / "proc", dev=self._folder / "dev", sysfs=self.sysfs, library=lambda: None),
        )
        assert isinstance(found, Neuron)
        self._adapters.append(found)
        return found

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def said() -> str:
    return (GOLDEN / "neuron_monitor.json").read_text().strip()


def is_heard(adapter: Neuron) -> bool:
    return "neuron-monitor has said nothing yet" not in adapter.detect().says


def trees(scene: Scene, number: int = 3) -> None:
    for index in range(number):
        scene.old_layout(index, mem_ecc_uncorrected=0, sram_ecc_uncorrected=0)


def test_devices_are_found_with_what_they_are(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    seen = scene.adapter().detect()
    assert seen.state is HardwareState.HEALTHY, seen.says
    first = seen.devices[0]
    assert (first.id, first.model, first.memory_mib, first.cores, first.pci, first.links) == (
        "neuron-00ff0", "Trainium1", 32_768, 2, "0000:10:1c.0", 2,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["old_layout", "new_layout"])
def test_counters_are_read_in_both_layouts_of_the_drivers_tree(scene: Scene, layout: str) -> None:
    scene.ls(json.dumps(json.loads((GOLDEN / "neuron_ls.json").read_text())[:1]))
    getattr(scene, layout)(0, mem_ecc_uncorrected=0, sram_ecc_uncorrected=4)
    adapter = scene.adapter()
    seen = adapter.detect()
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class) == ("ecc:sram_uncorrectable", "neuron-00ff0", FaultClass.REPLACE)
    assert seen.devices[0].model == "Trainium1"
    values = {tuple(one.labels.items()): one.value for one in adapter.poll() if one.name == "accel_ecc_errors_total"}
    assert values[("type", "uncorrected"), ("location", "sram")] == 4


def test_what_the_monitor_says_is_counted_and_judged(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(said())
    adapter = scene.adapter()
    assert adapter.detect().state is HardwareState.UNKNOWN
    wait_for(lambda: is_heard(adapter))
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.fault_class) == ("ecc:uncorrectable", "neuron-00ff1", FaultClass.REPLACE)
    readings = {(one.name, one.device): one.value for one in adapter.poll() if not one.labels}
    assert readings["accel_utilization_ratio", "neuron-00ff0"] == pytest.approx(0.7)
    assert readings["accel_utilization_ratio", "neuron-00ff2"] == pytest.approx(0.05)
    assert readings["accel_memory_used_bytes", "neuron-00ff0"] == 3_000


def test_a_monitor_that_dies_is_started_again_and_nothing_is_healthy_meanwhile(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(then="exit 3")
    adapter = scene.adapter()
    wait_for(lambda: "ended with 3" in adapter.detect().says)
    seen = adapter.detect()
    assert {device.state for device in seen.devices} == {HardwareState.UNKNOWN}
    assert seen.state is HardwareState.UNKNOWN
    assert scene.starts() == 1
    scene.monitor(json.dumps({"system_data": {}}))
    scene.now += 1.0
    wait_for(lambda: adapter.detect().state is HardwareState.HEALTHY)
    assert scene.starts() == 2


@pytest.mark.parametrize("nonsense", ['{"half": ', "[1, 2]", "Segmentation fault", "\\xff\\xfe"])
def test_a_monitor_that_talks_nonsense_is_started_again(scene: Scene, nonsense: str) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(said(), nonsense)
    adapter = scene.adapter()
    wait_for(lambda: "speaks no JSON" in adapter.detect().says)
    assert adapter.detect().state is not HardwareState.HEALTHY
    assert {device.state for device in adapter.detect().devices} <= {HardwareState.UNKNOWN, HardwareState.UNHEALTHY}


def test_each_failure_of_the_monitor_is_followed_by_a_longer_pause(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(then="exit 1")
    adapter = scene.adapter()
    begun = []
    for _ in range(3):
        before = scene.starts() if begun else 0
        while not (scene.bin / "starts").exists() or scene.starts() == before:
            adapter.detect()
            scene.now += 0.25
            wait_for(lambda: adapter._monitor._child is None or adapter._monitor._child.poll() is not None)
        begun.append(scene.now)
    assert begun[2] - begun[1] > begun[1] - begun[0]


def test_a_monitor_that_falls_silent_is_not_relied_on(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(json.dumps({"system_data": {}}))
    adapter = scene.adapter()
    wait_for(lambda: adapter.detect().state is HardwareState.HEALTHY)
    scene.now += 21.0
    seen = adapter.detect()
    assert seen.state is HardwareState.UNKNOWN
    assert "has said nothing for 20 s" in seen.says


@pytest.mark.parametrize(("then", "wanted"), [("exec sleep 60", Verdict.PASSED), ("exit 1", Verdict.FAILED)])
def test_a_diagnosis_waits_for_the_monitors_first_word(scene: Scene, then: str, wanted: Verdict) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(*([json.dumps({"system_data": {}})] if wanted is Verdict.PASSED else []), then=then)
    (finding,) = scene.adapter().diagnose(1)
    assert finding.verdict is wanted, finding.says


HALF = 'printf "{\\"system_"'
"""A program that says half of ``{"system_data": {}}``."""
REST = """printf 'data": {}}\\n'; exec sleep 60"""


def test_a_diagnosis_waits_for_the_end_of_half_a_line(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    os.mkfifo(scene.bin / "go")
    scene.monitor(then=f"{HALF}\nread word < {scene.bin}/go\n{REST}")
    adapter = scene.adapter()
    wait_for(lambda: bool(adapter.detect() and adapter._monitor._buffer))
    assert adapter.detect().state is HardwareState.UNKNOWN
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(adapter.diagnose, 1)
        (scene.bin / "go").write_text("on\n")
        assert [finding.verdict for finding in found.result()] == [Verdict.PASSED]


def test_a_monitor_that_ends_within_a_line_is_asked_once_more_before_a_diagnosis_ends(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(then=f"{HALF}\n[ $(wc -l < {scene.bin}/starts) = 1 ] && exit 3\n{REST}")
    adapter = scene.adapter()
    assert [finding.verdict for finding in adapter.diagnose(1)] == [Verdict.PASSED]
    assert scene.starts() == 2


def test_half_a_line_is_never_taken_for_health(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(then=f"{HALF}\nexit 3")
    adapter = scene.adapter()
    (finding,) = adapter.diagnose(1)
    assert finding.verdict is not Verdict.PASSED
    assert "ended with 3 within a line" in finding.says
    assert (adapter.detect().state, scene.starts()) == (HardwareState.UNKNOWN, 2)


def test_a_monitor_that_closes_its_output_and_stays_is_waited_for_no_longer(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    scene.monitor(then="exec sleep 60 >&-")
    adapter = scene.adapter()
    began = time.process_time()
    adapter.diagnose(1)
    assert time.process_time() - began < 1.0
    assert adapter.detect().state is HardwareState.UNKNOWN


def test_a_device_that_vanishes_from_the_drivers_tree_is_missing(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    adapter = scene.adapter()
    adapter.detect()
    scene.ls(json.dumps(json.loads((GOLDEN / "neuron_ls.json").read_text())[:2]))
    (scene.sysfs / "neuron2").rename(scene.sysfs / "gone")
    adapter.detect()
    seen = adapter.detect()
    (fault,) = adapter.events()
    assert (fault.code, fault.type, fault.fault_class) == ("count", "NeuronHealth", FaultClass.REBOOT)
    assert seen.state is HardwareState.UNHEALTHY


def test_a_device_that_only_the_tool_misses_is_found_out_within_half_a_minute(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    adapter = scene.adapter()
    adapter.detect()
    scene.ls(json.dumps(json.loads((GOLDEN / "neuron_ls.json").read_text())[:2]))
    for _ in range(5):
        scene.now += 10.0
        adapter.detect()
    assert [fault.code for fault in adapter.events()] == ["count"]


def test_an_error_in_the_log_is_put_down_to_its_device(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    adapter = scene.adapter()
    adapter.detect()
    adapter.events()
    with scene.log.open("a") as log:
        log.write("NEURON_HW_ERR=DMA_ERROR instance-id=i-1 hostname=h nd-id=2 nc-id=0 serial-num=x action=TERMINATE_INSTANCE\n")
    (fault,) = adapter.events()
    assert (fault.code, fault.device, fault.reason) == ("neuron:DMA_ERROR", "neuron-00ff2", "NeuronHasError_DMA_ERROR")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo no driver >&2; exit 1", "neuron-ls ended with 1: no driver"),
        ("echo nonsense", "speaks no JSON"),
        ("echo '{}'", "lists no devices"),
    ],
)
def test_a_listing_that_cannot_be_read_is_unknown(scene: Scene, script: str, says: str) -> None:
    scene.sysfs.rmdir()
    scene.program("neuron-ls", script)
    seen = scene.adapter().detect()
    assert seen.state is HardwareState.UNKNOWN
    assert says in seen.says


def test_the_drivers_tree_stands_in_for_a_listing_that_cannot_be_read(scene: Scene) -> None:
    scene.program("neuron-ls", "exit 1")
    trees(scene, 2)
    seen = scene.adapter().detect()
    assert [(device.index, device.cores) for device in seen.devices] == [(0, 2), (1, 2)]
    assert seen.state is HardwareState.HEALTHY


def test_a_newer_tool_is_asked_in_its_own_form(scene: Scene) -> None:
    listed = json.dumps({"instance_type": "trn1.32xlarge", "devices": json.loads((GOLDEN / "neuron_ls.json").read_text())})
    (scene.bin / "new.json").write_text(listed)
    scene.program(
        "neuron-ls", f'[ "$1 $2" = "--output-format json" ] && exec cat {scene.bin}/new.json\necho "unknown flag" >&2; exit 2'
    )
    trees(scene)
    assert len(scene.adapter().detect().devices) == 3


@pytest.mark.parametrize("text", ["", "{", "[3]", '[{"nc_count": 2}]', '[{"neuron_device": "x"}]', "null", '{"a": [{"b": 1}]}'])
def test_a_listing_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neuron-ls"):
        devices_in(text)


def test_devices_without_any_counter_are_not_called_healthy(scene: Scene) -> None:
    scene.ls()
    for index in range(3):
        scene.old_layout(index)
    seen = scene.adapter().detect()
    assert seen.state is HardwareState.UNKNOWN
    assert "no counters of device 0 can be read" in seen.says


def test_a_process_sees_the_cores_of_the_devices_it_is_given(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    adapter = scene.adapter()
    assert adapter.env(adapter.detect().devices[1:]) == {"NEURON_RT_VISIBLE_CORES": "2,3,4,5"}


def test_a_device_is_reset_through_the_drivers_tree(scene: Scene) -> None:
    scene.ls()
    trees(scene)
    adapter = scene.adapter()
    device = adapter.detect().devices[1]
    adapter.reset(device)
    assert (scene.sysfs / "neuron1" / "reset").read_text() == "1"
    (scene.sysfs / "neuron1").rename(scene.sysfs / "gone")
    with pytest.raises(Refusal, match="device 1 cannot be reset"):
        adapter.reset(device)
