"""What the agent of a simulated host knows, does and says. No network in here: ``connection`` carries it to the control plane's door.

It keeps the agents' rules: assignments are whole, a process id is never started twice, reports are numbered within a boot and wait in order
until they are confirmed, and nothing but the control plane's word that the node is gone ends what runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from everstep.examination import Check, Finding, HealthReport, Verdict
from everstep.hardware import Device, FaultClass, HardwareFault, HardwareReport, HardwareState
from everstep.notices import Evacuation, NoticeKind, SpotNotice
from everstep.protocol import (
    VERSION,
    Assignment,
    Directive,
    Fault,
    FaultOutcome,
    FaultReport,
    Generation,
    LifecycleReport,
    LifecycleStarted,
    Process,
    ProcessReport,
    ProcessStatus,
    ProgressReport,
    Registration,
    Report,
    StepReport,
    Welcome,
)
from models.catalogue import instance_type
from models.errors import NotFound
from workers.fleet.cloud import Cloud, Machine
from workers.fleet.training import Rank, Trainings

_BATCH = 200
_MOST_STEPS = 2_000
"""Steps of a job that wait unsent; past it the oldest are told as one, their seconds summed."""
_PORT = 29_500
_SIGKILL = 9
_EXIT_S = 0.05


@dataclass(eq=False)
class Playing:
    """A process that this node has or had."""

    job: str
    rank: Rank
    status: ProcessStatus = ProcessStatus.STARTED
    exit_code: int | None = None
    signal: int | None = None

    def report(self) -> ProcessReport:
        code, signal = self.exit_code, self.signal
        return ProcessReport(self.job, self.rank.process, self.status, pid=1, exit_code=code, signal=signal)


@dataclass(eq=False)
class Node:
    """One start of a host's agent. ``urge`` is called when there is something to tell."""

    machine: Machine
    cloud: Cloud
    trainings: Trainings
    urge: Callable[[], None] = lambda: None
    token: str | None = None
    beats: int = 0
    is_over: bool = False
    processes: dict[str, Playing] = field(default_factory=dict)
    _waiting: deque[Report] = field(default_factory=deque)
    _under_way: list[tuple[int, Report]] = field(default_factory=list)
    _sequence: int = 0
    _newest: dict[str, int] = field(default_factory=dict)
    _listed: set[str] | None = None
    _answered: set[str] = field(default_factory=set)
    _has_lived: bool = False

    @property
    def boot(self) -> str:
        return f"{self.machine.host.instance_id}-{self.machine.spec.start}-{self.machine.power}"

    # ------------------------------------------------------------ registering

    def registration(self, *, refusals: int = 0) -> Registration:
        """After a refusal the other token is tried."""
        spec, host = self.machine.spec, self.machine.host
        return Registration(
            instance_id=host.instance_id,
            token=spec.boot_token if self.token is None or refusals % 2 else self.token,
            address=str(host.address),
            rendezvous_port=_PORT,
            boot=self.boot,
            version=VERSION,
            vcpus=spec.vcpus,
            memory_mib=spec.memory_mib,
            processes=tuple(playing.report() for playing in self.processes.values()),
            start=spec.start,
        )

    def welcomed(self, welcome: Welcome) -> None:
        self.token = welcome.node_token
        if self._has_lived:
            return
        self._has_lived = True
        self._say(_hardware(self.machine, self.cloud.timeline.unix()))
        boot, dice = self.cloud.scenario.boot, self.machine.dice
        seconds, fails = boot.lifecycle.draw(dice), dice.random() < boot.lifecycle_failures
        if welcome.lifecycle_script:
            self._say(LifecycleStarted(welcome.lifecycle_script))
        self._later(seconds, lambda: self._say(_lived(welcome.lifecycle_script, seconds, fails=fails)))

    # ------------------------------------------------------------ the directive stream

    def begin(self) -> None:
        """A fresh stream first lists all that should run."""
        self._listed = set()

    def hear(self, wire: dict[str, Any] | None) -> None:
        """A line of the stream; None is an empty one. Raises ValueError, TypeError or KeyError for one that cannot be read."""
        if wire is None:
            self._end_unlisted()
        elif "assignment" in wire:
            directive = Directive.from_wire(wire)
            if self._listed is not None:
                self._listed.add(directive.assignment.job)
            if directive.id >= self._newest.get(directive.assignment.job, 0):
                self._newest[directive.assignment.job] = directive.id
                self._obey(directive.assignment)
        elif "fault" in wire:
            self._suffer(Fault.from_wire(wire["fault"]))
        elif "check" in wire:
            check = Check.from_wire(wire["check"])
            found = tuple(Finding(kind, Verdict.PASSED, "A simulated host is well.") for kind in check.kinds)
            self._say(HealthReport(check.id, found))
        elif "evacuate" in wire:
            self._evacuate(Evacuation.from_wire(wire["evacuate"]))

    def _end_unlisted(self) -> None:
        if self._listed is None:
            return
        for job in {playing.job for playing in self.processes.values()} - self._listed:
            self._newest.pop(job, None)
            self._dismiss(job, set())
        self._listed = None

    def _obey(self, assignment: Assignment) -> None:
        listed = {process.id for process in assignment.processes}
        for process in assignment.processes:
            if process.id not in self.processes:
                self._start(assignment, process)
        self._dismiss(assignment.job, listed)
        if assignment.generation is not None:
            self._tell(assignment.job, assignment.generation)

    def _start(self, assignment: Assignment, process: Process) -> None:
        training = self.trainings.of(assignment.job, assignment.launch.env)
        playing = Playing(assignment.job, Rank(process.id, self._say))
        self.processes[process.id] = playing
        training.ranks[process.id] = playing.rank
        self._say(playing.report())
        self._later(training.how.warm_up.draw(self.machine.dice), lambda: self._ready(playing))

    def _ready(self, playing: Playing) -> None:
        if playing.status is not ProcessStatus.STARTED:
            return
        playing.status = ProcessStatus.READY
        self._say(playing.report())
        self.trainings.of(playing.job).ready(playing.rank)

    def _tell(self, job: str, generation: Generation) -> None:
        training = self.trainings.of(job)
        for playing in self._alive(job):
            training.told(playing.rank.process, generation)

    def _alive(self, job: str | None = None) -> list[Playing]:
        return [one for one in self.processes.values() if one.status is not ProcessStatus.EXITED and job in (None, one.job)]

    def _dismiss(self, job: str, listed: set[str]) -> None:
        """Those that are not listed end; of those that have ended nothing is kept."""
        for process, playing in list(self.processes.items()):
            if playing.job == job and process not in listed:
                if playing.status is ProcessStatus.EXITED:
                    del self.processes[process]
                else:
                    self._later(_EXIT_S, lambda playing=playing: self._dismissed(playing))  # type: ignore[misc]

    def _dismissed(self, playing: Playing) -> None:
        if playing.status is not ProcessStatus.EXITED:
            self._exit(playing, code=0)
            del self.processes[playing.rank.process]

    def _exit(self, playing: Playing, *, code: int | None = None, signal: int | None = None) -> None:
        playing.status, playing.exit_code, playing.signal = ProcessStatus.EXITED, code, signal
        self.trainings.of(playing.job).lost(playing.rank.process)
        self._say(playing.report())

    # ------------------------------------------------------------ what befalls it

    def stop(self) -> None:
        """The power is off: nothing of it speaks any more, and its processes' peers notice."""
        self.is_over = True
        for playing in self._alive():
            self.trainings.of(playing.job).lost(playing.rank.process)
        self.processes.clear()
        self._waiting.clear()

    def break_down(self, number: int) -> None:
        """The n-th hardware risk of the scenario has come true."""
        risk = self.cloud.scenario.hardware[number]
        vendor, devices = _devices(self.machine)
        device = self.machine.dice.choice(devices).id if devices else None
        at = self.cloud.timeline.unix()
        name = f"{self.boot}-{number}-{at:.3f}"
        self._say(HardwareFault(name, vendor, risk.code, risk.fault_class, risk.type, risk.reason, "simulated", at, device))
        if risk.fault_class is FaultClass.APPLICATION and self._alive():
            self._exit(self._alive()[0], code=1)

    def warn(self, deadline: float | None, *, source: str = "imds") -> None:
        """The provider takes the host at the deadline, in Unix seconds."""
        self._say(SpotNotice(NoticeKind.INTERRUPTION, self.cloud.timeline.unix(), deadline, source))

    def _evacuate(self, told: Evacuation) -> None:
        """What trains here saves at once, and goes on until it is told otherwise or the host is taken."""
        for job in {playing.job for playing in self._alive()} if not told.is_over else ():
            self.trainings.of(job).save()

    def _suffer(self, fault: Fault) -> None:
        """A fault that was asked for is struck once; being told of it again changes nothing."""
        if fault.id in self._answered:
            return
        self._answered.add(fault.id)
        if fault.is_over:
            self._say(FaultReport(fault.id, FaultOutcome.ENDED))
            return
        struck = self._struck(fault)
        note = None if struck else f"a simulated host knows no {fault.kind}, or has nothing left to strike"
        self._say(FaultReport(fault.id, FaultOutcome.STRUCK if struck else FaultOutcome.MISSED, note))

    def _struck(self, fault: Fault) -> bool:
        timeline = self.cloud.timeline
        seconds = (fault.seconds or 0.0) * timeline.speed  # it is said in real seconds
        match fault.kind:
            case "kill-rank":
                struck = [playing for playing in self._alive() if fault.process in (None, playing.rank.process)][:1]
                for playing in struck:
                    self._exit(playing, signal=_SIGKILL)
                return bool(struck)
            case "kill-node" | "spot-reclaim":
                self._later(_EXIT_S * timeline.speed * 4, lambda: self.cloud.kill(self.machine.spec.claim))
            case "spot-notice":
                self.warn(timeline.unix(timeline.now + seconds) if fault.seconds else None, source="injected")
            case "partition":
                self._later(_EXIT_S * timeline.speed * 4, lambda: self.cloud.cut(self.machine, seconds))
            case _:
                return False
        return True

    # ------------------------------------------------------------ reports

    def _say(self, report: Report) -> None:
        if self.is_over:
            return
        last = self._waiting[-1] if self._waiting else None
        if isinstance(report, ProgressReport) and isinstance(last, ProgressReport) and _is_same(last, report):
            self._waiting[-1] = replace(last, steps=_thinned(last.steps + report.steps))
        else:
            self._waiting.append(report)
        self.urge()

    def batch(self) -> list[tuple[int, Report]]:
        """What to send next, oldest first, each with its number: what was not confirmed, or what has come since."""
        if not self._under_way:
            self._under_way = list(self._numbered())
        return self._under_way

    def _numbered(self) -> Iterator[tuple[int, Report]]:
        for _ in range(min(_BATCH, len(self._waiting))):
            self._sequence += 1
            yield self._sequence, self._waiting.popleft()

    def confirm(self) -> None:
        """The batch under way is stored."""
        self._under_way = []

    def drop(self, index: int) -> Report | None:
        """Gives up a report that will never be taken."""
        return self._under_way.pop(index)[1] if index < len(self._under_way) else None

    def _later(self, seconds: float, happening: Callable[[], None]) -> None:
        self.cloud.timeline.after(seconds, lambda: None if self.is_over else happening())


def _lived(script: str | None, seconds: float, *, fails: bool) -> LifecycleReport:
    tail = "simulated: the scenario lets this lifecycle script fail" if fails else ""
    return LifecycleReport(1 if fails else 0, seconds, tail, script)


def _is_same(one: ProgressReport, other: ProgressReport) -> bool:
    return (one.job, one.generation) == (other.job, other.generation)


def _thinned(steps: tuple[StepReport, ...]) -> tuple[StepReport, ...]:
    """The oldest are told as one: their seconds count for goodput, their number is the last one's."""
    extra = len(steps) - _MOST_STEPS
    if extra <= 0:
        return steps
    oldest = steps[: extra + 1]
    seconds, stall_s = (sum(getattr(step, name) for step in oldest) for name in ("seconds", "stall_s"))
    return (replace(oldest[-1], seconds=seconds, stall_s=stall_s), *steps[extra + 1 :])


def _devices(machine: Machine) -> tuple[str, tuple[Device, ...]]:
    """The vendor, and the accelerators that the instance type has."""
    try:
        kind = instance_type(machine.spec.instance_type)
    except NotFound:
        return "cpu", ()
    if not kind.accelerator:
        return "cpu", ()
    vendor = "neuron" if "trn" in kind.name or "inf" in kind.name else "nvidia"
    name = machine.host.instance_id
    return vendor, tuple(Device(f"SIM-{name}-{index}", index, kind.accelerator, 80 * 1024) for index in range(kind.accelerators))


def _hardware(machine: Machine, at: float) -> HardwareReport:
    vendor, devices = _devices(machine)
    says = f"{len(devices)} simulated accelerators are well." if devices else "There are no accelerators."
    return HardwareReport(vendor, HardwareState.HEALTHY, devices, says, at, expected=len(devices))
