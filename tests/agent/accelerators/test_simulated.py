"""Simulated accelerators follow their script, and a start of the host clears what a start clears."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.accelerators.base import Accelerators, Refusal
from agent.accelerators.choice import Clocks, Host, Wanted, choose
from agent.accelerators.cpu import Cpu
from agent.accelerators.neuron import Neuron
from agent.accelerators.nvml import Nvidia
from agent.accelerators.simulated import Script
from agent.settings import SettingsError
from everstep.hardware import FaultClass, HardwareState
from tests.agent.accelerators.fake_nvml import FakeNvml


def adapter(state_dir: Path, kind: str = "simulated", start: int = 1, **environment: str) -> Accelerators:
    return choose(
        {"EVERSTEP_ACCELERATORS": kind, "EVERSTEP_HOST_START": str(start), **environment},
        state_dir=state_dir,
        node="i-1",
        clocks=Clocks(lambda: 1000.0, lambda: 1000.0),
    )


def codes(found: Accelerators) -> list[str]:
    return [fault.code for fault in found.events()]


def test_there_are_as_many_as_the_environment_says(tmp_path: Path) -> None:
    assert len(adapter(tmp_path).detect().devices) == 8
    assert len(adapter(tmp_path, EVERSTEP_SIMULATED_DEVICES="3").detect().devices) == 3
    assert len(adapter(tmp_path, EVERSTEP_NODE_ACCELERATORS="4").detect().devices) == 4
    assert len(adapter(tmp_path, EVERSTEP_NODE_INSTANCE_TYPE="ml.g5.xlarge").detect().devices) == 1
    assert adapter(tmp_path, EVERSTEP_SIMULATED_DEVICES="3").expected("ml.p5.48xlarge") == 3


@pytest.mark.parametrize(("vendor", "code", "of_class"), [
    ("nvidia", "xid:79", FaultClass.REPLACE), ("neuron", "neuron:HBM_UNCORRECTABLE_ERROR", FaultClass.REPLACE),
])  # fmt: skip
def test_both_vendors_go_the_same_way_and_only_the_words_differ(
    tmp_path: Path, vendor: str, code: str, of_class: FaultClass
) -> None:
    found, script = adapter(tmp_path, f"simulated:{vendor}"), Script(tmp_path)
    devices = found.detect().devices
    if vendor == "nvidia":
        script.xid(79, 2, pid=77)
    else:
        script.neuron_error("HBM_UNCORRECTABLE_ERROR", 2)
    (fault,) = found.events()
    assert (fault.vendor, fault.code, fault.fault_class, fault.device) == (vendor, code, of_class, devices[2].id)
    seen = found.detect()
    assert [device.index for device in seen.devices if device.state is HardwareState.UNHEALTHY] == [2]
    script.lose(5)
    found.detect()
    found.detect()
    assert codes(found) == ["count"]


@pytest.mark.parametrize(
    ("code", "wanted"), [(31, "application"), (94, "transient"), (73, "reboot"), (74, "replace"), (4242, "unknown")]
)
def test_each_class_can_be_played(tmp_path: Path, code: int, wanted: str) -> None:
    found = adapter(tmp_path)
    found.detect()
    Script(tmp_path).xid(code)
    assert [fault.fault_class for fault in found.events()] == [wanted]


@pytest.mark.parametrize("vendor", ["nvidia", "neuron"])
def test_an_agent_that_hears_the_log_before_it_looks_knows_whose_fault_it_is_unless_the_host_started_anew(
    tmp_path: Path, vendor: str
) -> None:
    kind, script = f"simulated:{vendor}", Script(tmp_path)
    third = adapter(tmp_path, kind).detect().devices[2].id

    def strike() -> None:
        script.xid(79, 2) if vendor == "nvidia" else script.neuron_error("HBM_UNCORRECTABLE_ERROR", 2)

    strike()
    assert [fault.device for fault in adapter(tmp_path, kind).events()] == [third]
    anew = adapter(tmp_path, kind, start=2)
    strike()
    assert [fault.device for fault in anew.events()] == [None], "another device may be in its place"


def test_a_switch_that_fails_is_nobodys_device(tmp_path: Path) -> None:
    found = adapter(tmp_path)
    found.detect()
    Script(tmp_path).sxid(20034)
    (fault,) = found.events()
    assert (fault.fault_class, fault.device) == (FaultClass.REPLACE, None)
    assert found.detect().state is HardwareState.UNHEALTHY


def test_a_lost_device_is_back_after_the_hosts_next_start(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.lose(0)
    script.lose(1, for_good=True)
    script.count("remap_pending", 2, 1)
    script.xid(73, 3)
    first = adapter(tmp_path, start=1)
    assert len(first.detect().devices) == 6
    first.detect()
    assert sorted(codes(first)) == ["count", "remap:pending", "xid:73"]
    again = adapter(tmp_path, start=1)
    assert len(again.detect().devices) == 6
    second = adapter(tmp_path, start=2)
    seen = second.detect()
    assert [device.index for device in seen.devices] == [0, 2, 3, 4, 5, 6, 7]
    assert {device.state for device in seen.devices} == {HardwareState.HEALTHY}
    second.detect()
    assert codes(second) == ["count"]


def test_a_restored_device_ends_the_lack(tmp_path: Path) -> None:
    found, script = adapter(tmp_path), Script(tmp_path)
    script.lose(3)
    found.detect()
    assert found.detect().state is HardwareState.UNHEALTHY
    script.restore(3)
    assert found.detect().state is HardwareState.HEALTHY


def test_a_silent_monitor_is_unknown(tmp_path: Path) -> None:
    found, script = adapter(tmp_path), Script(tmp_path)
    found.detect()
    script.silence()
    assert {device.state for device in found.detect().devices} == {HardwareState.UNKNOWN}
    script.silence(is_silent=False)
    assert found.detect().state is HardwareState.HEALTHY
    (tmp_path / "accelerators" / "devices.json").write_text("{nonsense")
    assert found.detect().state is HardwareState.UNKNOWN


def test_a_gauge_shows_what_the_script_says(tmp_path: Path) -> None:
    found = adapter(tmp_path)
    Script(tmp_path).show("temperature_celsius", 1, 88.5)
    found.detect()
    assert [(one.device, one.value) for one in found.poll() if one.name == "accel_temperature_celsius"] == [
        ("simulated-i-1-1", 88.5)
    ]


def test_a_device_that_was_reset_is_as_good_as_new(tmp_path: Path) -> None:
    found = adapter(tmp_path)
    device = found.detect().devices[0]
    Script(tmp_path).xid(73, 0)
    found.events()
    assert found.detect().state is HardwareState.UNHEALTHY
    found.reset(device)
    assert found.detect().state is HardwareState.HEALTHY


def test_a_process_sees_what_it_is_given(tmp_path: Path) -> None:
    nvidia, neuron = adapter(tmp_path / "a"), adapter(tmp_path / "b", "simulated:neuron")
    assert nvidia.env(nvidia.detect().devices[1:3]) == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert neuron.env(neuron.detect().devices[1:3]) == {"NEURON_RT_VISIBLE_CORES": "2,3,4,5"}


# ---------------------------------------------------------------- which adapter


def host(folder: Path, library: FakeNvml | None = None) -> Host:
    (folder / "bin").mkdir(exist_ok=True)
    return Host(proc=folder / "proc", dev=folder / "dev", sysfs=folder / "sys", library=lambda: library)


def chosen(folder: Path, where: Host, **environment: str) -> Accelerators:
    clocks = Clocks(lambda: 0.0, lambda: 0.0)
    return choose({"PATH": str(folder / "bin"), **environment}, state_dir=folder / "state", node="i-1", clocks=clocks, host=where)


def test_a_host_with_neither_vendor_has_none_and_is_healthy(tmp_path: Path) -> None:
    found = chosen(tmp_path, host(tmp_path))
    assert (found.vendor, found.detect().state, found.detect().devices, found.events(), found.poll()) == (
        "cpu", HardwareState.HEALTHY, (), (), (),
    )  # fmt: skip
    assert found.expected("ml.p5.48xlarge") is None
    with pytest.raises(Refusal, match="no accelerators"):
        found.partition({})
    found.close()


def test_a_host_that_should_have_some_and_shows_none_is_in_doubt(tmp_path: Path) -> None:
    found = chosen(tmp_path, host(tmp_path), EVERSTEP_NODE_ACCELERATORS="8")
    assert isinstance(found, Cpu)
    assert found.detect().state is HardwareState.UNKNOWN
    assert "8 accelerators should be here" in found.detect().says


def test_nvidias_devices_are_found_by_their_library_or_driver(tmp_path: Path) -> None:
    assert isinstance(chosen(tmp_path, host(tmp_path, FakeNvml())), Nvidia)
    other = tmp_path / "other"
    (other / "proc" / "driver" / "nvidia").mkdir(parents=True)
    assert isinstance(chosen(other, host(other)), Nvidia)
    assert chosen(other, host(other)).detect().state is HardwareState.UNKNOWN
    third = tmp_path / "third"
    third.mkdir()
    assert isinstance(chosen(third, host(third, FakeNvml(0))), Cpu)


def test_neurons_devices_are_found_by_their_files_or_tools(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "neuron0").touch()
    assert isinstance(chosen(tmp_path, host(tmp_path)), Neuron)


def test_a_host_that_has_lost_all_its_devices_is_no_host_without_any(tmp_path: Path) -> None:
    library = FakeNvml()
    before = chosen(tmp_path, host(tmp_path, library))
    before.detect()
    library.gpus.clear()
    after = chosen(tmp_path, host(tmp_path, library))
    after.detect()
    assert after.detect().state is HardwareState.UNHEALTHY
    assert codes(after) == ["count"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("EVERSTEP_ACCELERATORS", "tpu", "it must be one of auto, nvidia, neuron, cpu, simulated"),
        ("EVERSTEP_ACCELERATORS", "simulated:amd", "it must be one of"),
        ("EVERSTEP_SIMULATED_DEVICES", "many", "a whole number from 0 to 1024"),
        ("EVERSTEP_NODE_ACCELERATORS", "-1", "a whole number from 0 to 1024"),
        ("EVERSTEP_FAULTS_FILE", "/nowhere/faults.toml", "cannot be read"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused_by_name(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as refused:
        Wanted.read({name: value})
    assert name in str(refused.value)
