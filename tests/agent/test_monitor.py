"""The monitor tells what has changed and each fault as it is seen, and never dies of what a driver does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.accelerators.base import Seen
from agent.accelerators.cpu import Cpu
from agent.accelerators.simulated import Script
from agent.metrics import FAMILIES
from agent.monitor import Monitor, Pace
from agent.settings import SettingsError
from everstep.hardware import FaultClass, HardwareFault, HardwareReport, HardwareState
from everstep.protocol import ProcessReport, ProcessStatus, Report

ROOT = Path(__file__).parents[2]
FAST = Pace(events_s=0.01, state_s=0.02)
IMPATIENT = replace(FAST, hangs_after_s=0.2)


class Told:
    """What the monitor reports, and when it has arrived."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._news = asyncio.Event()
        self.arrives = asyncio.Event()

    def put(self, report: Report) -> None:
        self.reports.append(report)
        self._news.set()

    async def until(self, claim: Callable[[Report], bool], within_s: float = 8.0) -> Report:
        async with asyncio.timeout(within_s):
            while True:
                for report in self.reports:
                    if claim(report):
                        return report
                self._news.clear()
                await self._news.wait()

    async def state(self, state: HardwareState) -> HardwareReport:
        found = await self.until(lambda report: isinstance(report, HardwareReport) and report.state is state)
        assert isinstance(found, HardwareReport)
        return found

    async def fault(self, code: str) -> HardwareFault:
        found = await self.until(lambda report: isinstance(report, HardwareFault) and report.code == code)
        assert isinstance(found, HardwareFault)
        return found

    def faults(self) -> list[str]:
        return [report.code for report in self.reports if isinstance(report, HardwareFault)]


@asynccontextmanager
async def monitor(
    state_dir: Path,
    told: Told,
    *,
    pace: Pace = FAST,
    adapter: Callable[[], object] | None = None,
    arrives: Callable[[], Awaitable[object]] | None = None,
    jobs: Sequence[str] = (),
    **environment: str,
) -> AsyncIterator[Monitor]:
    async def arrived() -> None:
        if arrives is not None:
            await arrives()

    found = Monitor(
        node_id="i-1",
        state_dir=state_dir,
        environment={"EVERSTEP_ACCELERATORS": "simulated", "EVERSTEP_HOST_START": "1", **environment},
        report=told.put,
        told=arrived,
        inventory=lambda: [ProcessReport(job, f"{job}-0", ProcessStatus.READY) for job in jobs],
        adapter=adapter,
        pace=pace,
    )
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())


@pytest.mark.parametrize("vendor", ["nvidia", "neuron"])
def test_a_start_a_fault_and_a_loss_are_told_by_both_vendors_alike(tmp_path: Path, vendor: str) -> None:
    async def work() -> None:
        told, script = Told(), Script(tmp_path)
        async with monitor(tmp_path, told, EVERSTEP_ACCELERATORS=f"simulated:{vendor}", EVERSTEP_SIMULATED_DEVICES="4"):
            first = await told.state(HardwareState.HEALTHY)
            assert (first.vendor, len(first.devices), first.expected) == (vendor, 4, 4)
            if vendor == "nvidia":
                script.xid(79, 1)
            else:
                script.neuron_error("DMA_ERROR", 1)
            await told.fault("xid:79" if vendor == "nvidia" else "neuron:DMA_ERROR")
            struck = await told.state(HardwareState.UNHEALTHY)
            assert [device.index for device in struck.devices if device.state is HardwareState.UNHEALTHY] == [1]
            script.lose(3)
            lost = await told.fault("count")
            assert lost.device == first.devices[3].id
        assert told.faults().count("count") == 1

    run(work)


def test_a_fault_is_told_within_half_a_second_and_a_loss_within_a_minute_at_the_real_pace(tmp_path: Path) -> None:
    real = Pace.read({"EVERSTEP_ACCELERATORS": "nvidia"})
    assert real.events_s <= 0.5
    assert 3 * real.state_s <= 60.0  # just missed, then two looks

    async def work() -> None:
        told, script = Told(), Script(tmp_path)
        async with monitor(tmp_path, told, pace=replace(real, state_s=1.0)):
            await told.state(HardwareState.HEALTHY)
            began = time.monotonic()
            script.xid(31)
            await told.fault("xid:31")
            assert time.monotonic() - began < 3.0  # half a second, on a machine that has better things to do

    run(work)


def test_nothing_is_told_while_nothing_changes(tmp_path: Path) -> None:
    async def work() -> None:
        told = Told()
        looks = Counted()
        async with monitor(tmp_path, told, adapter=lambda: looks):
            await asyncio.wait_for(looks.many.wait(), 8.0)
        assert len(told.reports) == 1

    run(work)


class Counted(Cpu):
    """Says when it has been looked at often, or does what it is told to."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        super().__init__()
        self.many = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._acts = list(acts)
        self._looks = 0
        self.confirmed = 0

    def detect(self) -> Seen:
        self._looks += 1
        if self._acts:
            self._acts.pop(0)()
        if self._looks == 10:
            self._loop.call_soon_threadsafe(self.many.set)
        return super().detect()

    def told(self) -> None:
        self.confirmed += 1


def test_an_adapter_that_fails_leaves_the_state_unknown_and_is_asked_again(tmp_path: Path) -> None:
    def fail() -> None:
        message = "the driver was unloaded"
        raise RuntimeError(message)

    async def work() -> None:
        told = Told()
        broken = Counted(fail, fail)
        async with monitor(tmp_path, told, adapter=lambda: broken):
            unknown = await told.state(HardwareState.UNKNOWN)
            assert "the driver was unloaded" in unknown.says
            await told.state(HardwareState.HEALTHY)

    run(work)


class Struck(Cpu):
    """Hears of one fault, and fails at every look after it."""

    def __init__(self, fault: HardwareFault, look: Callable[[], object]) -> None:
        super().__init__()
        self._faults = [fault]
        self._look = look

    def detect(self) -> Seen:
        self._look()
        return super().detect()

    def events(self) -> Sequence[HardwareFault]:
        faults, self._faults = self._faults, []
        return faults


FELL_OFF = HardwareFault("f-1", "nvidia", "xid:79", FaultClass.REPLACE, "t", "r", "e", 1.0)


def test_a_fault_is_told_even_if_the_driver_fails_at_the_look_that_follows(tmp_path: Path) -> None:
    def fail() -> None:
        message = "the device fell off"
        raise RuntimeError(message)

    async def work() -> None:
        told = Told()
        async with monitor(tmp_path, told, adapter=lambda: Struck(FELL_OFF, fail)):
            await told.fault("xid:79")
            assert "fell off" in (await told.state(HardwareState.UNKNOWN)).says
        assert told.faults() == ["xid:79"]

    run(work)


def test_a_fault_is_told_even_if_the_driver_hangs_at_the_look_that_follows(tmp_path: Path) -> None:
    release = threading.Event()

    async def work() -> None:
        told = Told()
        async with monitor(tmp_path, told, adapter=lambda: Struck(FELL_OFF, release.wait)):
            await told.fault("xid:79")
            release.set()

    try:
        run(work)
    finally:
        release.set()


class Deaf(Counted):
    """Cannot say, once, what it has heard."""

    def __init__(self) -> None:
        super().__init__()
        self._is_deaf = True

    def events(self) -> Sequence[HardwareFault]:
        if self._is_deaf:
            self._is_deaf = False
            message = "half a line"
            raise RuntimeError(message)
        return ()


def test_what_was_heard_and_lost_is_never_confirmed(tmp_path: Path) -> None:
    async def work() -> None:
        told, deaf, sound = Told(), Deaf(), Counted()
        async with monitor(tmp_path / "a", told, adapter=lambda: deaf):
            await asyncio.wait_for(deaf.many.wait(), 8.0)
        async with monitor(tmp_path / "b", Told(), adapter=lambda: sound):
            await asyncio.wait_for(sound.many.wait(), 8.0)
        assert deaf.confirmed == 0
        assert sound.confirmed > 0

    run(work)


def test_a_driver_that_hangs_is_unknown_and_keeps_nobody_from_ending(tmp_path: Path) -> None:
    release = threading.Event()

    async def work() -> None:
        told = Told()
        hung = Counted(lambda: None, release.wait)
        async with monitor(tmp_path, told, adapter=lambda: hung, pace=IMPATIENT):
            await told.state(HardwareState.HEALTHY)
            unknown = await told.state(HardwareState.UNKNOWN)
            assert "has not answered" in unknown.says
            release.set()
            await told.until(lambda report: report is not told.reports[0] and report.state is HardwareState.HEALTHY)

    run(work)


def test_ending_does_not_wait_for_a_driver_that_never_answers(tmp_path: Path) -> None:
    release = threading.Event()

    async def work() -> None:
        told, silent = Told(), Counted(release.wait)
        async with monitor(tmp_path, told, adapter=lambda: silent, pace=IMPATIENT):
            assert "has not answered" in (await told.state(HardwareState.UNKNOWN)).says
            began = time.monotonic()
        assert time.monotonic() - began < 15.0  # the driver is let go after 3 s

    try:
        run(work)
    finally:
        release.set()


def test_a_fault_is_confirmed_only_when_it_has_arrived(tmp_path: Path) -> None:
    async def work() -> None:
        told, script = Told(), Script(tmp_path)
        async with monitor(tmp_path, told, arrives=told.arrives.wait):
            await told.state(HardwareState.HEALTHY)
            script.xid(73)
            first = await told.fault("xid:73")
        again = Told()
        async with monitor(tmp_path, again, arrives=again.arrives.wait):
            repeated = await again.fault("xid:73")
            assert repeated.id == first.id
            script.xid(48)
            await again.fault("xid:48")
            again.arrives.set()
            store = tmp_path / "accelerators" / "watch.json"
            async with asyncio.timeout(8.0):
                while "xid:48" not in store.read_text():
                    await asyncio.sleep(0.01)
        last = Told()
        async with monitor(tmp_path, last):
            await last.state(HardwareState.UNHEALTHY)
            script.xid(31)
            await last.fault("xid:31")
        assert last.faults() == ["xid:31"]

    run(work)


# ---------------------------------------------------------------- metrics


async def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


@pytest.mark.parametrize("vendor", ["nvidia", "neuron"])
def test_metrics_have_the_same_names_and_only_the_vendor_differs(tmp_path: Path, vendor: str) -> None:
    async def work() -> None:
        told, script = Told(), Script(tmp_path)
        script.show("temperature_celsius", 0, 71.5)
        script.count("ecc_corrected_dram", 0, 3)
        kind = f"simulated:{vendor}"
        async with monitor(tmp_path, told, jobs=["job-1"], EVERSTEP_ACCELERATORS=kind, EVERSTEP_SIMULATED_DEVICES="2") as found:
            await told.state(HardwareState.HEALTHY)
            script.log("NVRM: Xid (PCI:0000:10:00): 31, pid=5" if vendor == "nvidia" else "NEURON_HW_ERR=NEW nd-id=0 x")
            code = "xid:31" if vendor == "nvidia" else "neuron:NEW"
            await told.fault(code)
            status, text = await get(found.port)
            assert status == "HTTP/1.1 200 OK"
            assert (tmp_path / "metrics.port").read_text() == str(found.port)
        labels = f'device="simulated-i-1-0",job="job-1",node="i-1",vendor="{vendor}"'
        lines = text.splitlines()
        assert f"accel_temperature_celsius{{{labels}}} 71.5" in lines
        assert any(
            line.startswith("accel_ecc_errors_total") and 'type="corrected"' in line and line.endswith(" 3") for line in lines
        )
        assert any(line.startswith("accel_faults_total") and f'code="{code}"' in line and line.endswith(" 1") for line in lines)
        assert any(line.startswith("accel_health_state") and "device" not in line and line.endswith(" 1") for line in lines)
        names = {line.split("{")[0] for line in lines if not line.startswith("#")}
        assert names <= set(FAMILIES)

    run(work)


def test_only_metrics_are_served_at_the_port(tmp_path: Path) -> None:
    async def work() -> None:
        told = Told()
        async with monitor(tmp_path, told) as found:
            assert (await get(found.port, "/secrets"))[0].endswith("404 Not Found")
            assert (await get(found.port, method="POST"))[0].endswith("405 Method Not Allowed")
            _, writer = await asyncio.open_connection("127.0.0.1", found.port)
            writer.write(b"x" * 20_000 + b"\r\n\r\n")
            writer.close()
            assert (await get(found.port))[0].endswith("200 OK")

    run(work)


def test_a_port_that_is_taken_does_not_stop_the_watch(tmp_path: Path) -> None:
    async def work() -> None:
        told = Told()
        async with (
            monitor(tmp_path / "a", Told()) as first,
            monitor(tmp_path / "b", told, pace=replace(FAST, port=first.port)) as found,
        ):
            await told.state(HardwareState.HEALTHY)
            assert found.port == 0

    run(work)


@pytest.mark.parametrize(
    ("name", "value"),
    [("EVERSTEP_METRICS_PORT", "70000"), ("EVERSTEP_HARDWARE_POLL_S", "often"), ("EVERSTEP_HARDWARE_POLL_S", "31"),
     ("EVERSTEP_ACCELERATORS", "abacus")],
)  # fmt: skip
def test_a_variable_that_cannot_be_followed_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Pace.read({name: value})


def test_an_agent_whose_policy_of_faults_is_wrong_says_so_and_ends(tmp_path: Path) -> None:
    wrong = tmp_path / "faults.toml"
    wrong.write_text('[nvidia.codes]\n"xid:79" = { class = "pray" }\n')
    given = {
        "NODE_ID": "i-1", "AGENT_STATE": str(tmp_path), "API_URL": "http://127.0.0.1:9", "BOOT_TOKEN": "x", "NODE_ADDRESS": "127.0.0.1",
        "FAULTS_FILE": str(wrong),
    }  # fmt: skip
    environment = {f"EVERSTEP_{name}": value for name, value in given.items()}
    done = subprocess.run(
        [sys.executable, "-m", "agent"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nvidia.codes.\"xid:79\".class is 'pray'; it must be one of application" in done.stderr


# ---------------------------------------------------------------- the budget

_ALONE = """
import asyncio, os, resource, sys
from pathlib import Path
from agent.accelerators.simulated import Script
from agent.monitor import Monitor

async def watch():
    place = Path(sys.argv[1])
    if os.geteuid() == 0:
        os.chown(place, 65534, 65534)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for index in range(8):
        Script(place).show("temperature_celsius", index, 60.0)
    seen = []
    monitor = Monitor(node_id="i-1", state_dir=place, environment={"EVERSTEP_ACCELERATORS": "simulated"}, report=seen.append)
    await monitor.start()
    await asyncio.sleep(0.5)
    before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    await asyncio.sleep(3.0)
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before
    await monitor.stop()
    # Not ru_maxrss: that of whoever started this program counts in it.
    highest = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    print(spent / 3.0, highest, len(seen[0].devices))

asyncio.run(watch())
"""


def test_watching_eight_devices_takes_less_than_half_a_processor_and_half_a_gibibyte() -> None:
    """Of processor time, so that other tests beside it do not count. Without any rights of root's: the child gives them up."""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [sys.executable, "-c", _ALONE, place], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    processors, most_kib, devices = done.stdout.split()
    assert int(devices) == 8
    assert float(processors) < 0.25
    assert int(most_kib) < 256 * 1024
    print(f"{float(processors):.4f} processors, {int(most_kib) // 1024} MiB")
