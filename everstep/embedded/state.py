"""What the supervisor tells everybody else: ``stack.json``. Only the supervisor writes it while it lives."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from everstep.embedded.home import Home, write_private
from everstep.embedded.procfs import ProcessKey, is_alive


class Phase(StrEnum):
    """Of a service, and of the stack as a whole."""

    WAITING = "waiting"
    """For another service."""
    STARTING = "starting"
    READY = "ready"
    CRASHED = "crashed"
    """It ended by itself and is about to be started again."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass
class ServiceState:
    """One service as the supervisor saw it last. ``why`` says why it is not ready."""

    phase: Phase = Phase.WAITING
    pid: int | None = None
    started: int | None = None
    restarts: int = 0
    why: str | None = None

    @property
    def key(self) -> ProcessKey | None:
        return None if self.pid is None or self.started is None else ProcessKey(self.pid, self.started)


@dataclass
class StackState:
    """The whole stack. The ports outlive a stop: agents that survive a crash find the API where it was."""

    port: int
    database_port: int
    broker_port: int
    region: str = "us-east-1"
    phase: Phase = Phase.STARTING
    supervisor_pid: int = 0
    supervisor_started: int = 0
    began_at: float = 0.0
    """Unix seconds: what a worker said before is no sign that it works now."""
    database_url: str = field(default="", repr=False)
    broker_url: str = field(default="", repr=False)
    services: dict[str, ServiceState] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def supervisor(self) -> ProcessKey:
        return ProcessKey(self.supervisor_pid, self.supervisor_started)

    @property
    def is_supervised(self) -> bool:
        return is_alive(self.supervisor)

    def processes(self) -> list[ProcessKey]:
        """Every service process that is alive now."""
        keys = [service.key for service in self.services.values()]
        return [key for key in keys if key is not None and is_alive(key)]


def read(home: Home) -> StackState | None:
    """None before the first start, and when the file is not ours to understand: it is then written anew.

    Raises:
        StackError: the home is somebody else's.
    """
    text = _text(home)
    if text is None:
        return None
    try:
        wire = json.loads(text)
        services = {
            name: ServiceState(**{**service, "phase": Phase(service["phase"])}) for name, service in wire.pop("services").items()
        }
        return StackState(**{**wire, "phase": Phase(wire["phase"]), "services": services})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def write(home: Home, state: StackState) -> None:
    write_private(home.state, json.dumps(asdict(state), indent=2) + "\n")


def _text(home: Home) -> str | None:
    with home.ours():
        try:
            return home.state.read_text()
        except FileNotFoundError:
            return None
