"""Processes that nobody looks after any more, found by what the kernel knows of them rather than by our own notes."""

import time
from collections.abc import Mapping
from pathlib import Path

from everstep.embedded import memory, postgres, procfs
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.stack import STACK_VARIABLE
from everstep.embedded.state import StackState
from everstep.protocol import NODE_ID_VARIABLE

_SERVICE_GRACE_SECONDS = 5.0
_NODE_GRACE_SECONDS = 5.0
_NODE_SECONDS = 20.0


def end_services(home: Home, last: StackState | None) -> int:
    """Ends what a dead supervisor has left. The kernel has told its children already, so this mostly waits.

    Raises:
        StackError: something could not be ended.
    """
    named = [service.key for name, service in (last.services if last else {}).items() if name != "postgres"]
    found = {key for key in named if key is not None and procfs.is_alive(key)}
    found |= set(procfs.find(lambda environment: _is_service_of(home, environment)))
    left = procfs.end(found, _SERVICE_GRACE_SECONDS)
    if left:
        message = f"processes {_names(left)} of an earlier stack do not end, not even by SIGKILL; end them, then try again"
        raise StackError(message)
    postgres.end_leftover(home.root / "postgres" / "data")
    return len(found)


def end_nodes(home: Home, grace_seconds: float = _NODE_GRACE_SECONDS) -> int:
    """Ends every process of every local node of this home; returns how many nodes had any.

    Asked again and again until none is found: a node's init may be about to start a process again when it is asked to end.

    Raises:
        StackError: some process could not be ended.
    """
    ids: set[str] = set()
    deadline = time.monotonic() + _NODE_SECONDS
    grace = grace_seconds
    while left := set(procfs.find(lambda environment: _is_node_of(home, environment))):
        ids |= {procfs.environment(process.pid).get(NODE_ID_VARIABLE, "") for process in left}
        if time.monotonic() > deadline:
            message = f"processes {_names(left)} of local nodes do not end, not even by SIGKILL; end them, then try again"
            raise StackError(message)
        procfs.end(left, grace)
        grace = 0.0
    return len(ids - {""})


def give_memory_back(home: Home, root: Path = memory.ROOT) -> None:
    """Of this home's nodes, which have ended, and of nodes that nobody looks after any more."""
    for host in home.hosts.glob("i-*") if home.hosts.is_dir() else ():
        memory.give_back(host.name, root)
    memory.sweep(root)


def _is_service_of(home: Home, environment: Mapping[str, str]) -> bool:
    return environment.get(STACK_VARIABLE) == str(home.root) and NODE_ID_VARIABLE not in environment


def _is_node_of(home: Home, environment: Mapping[str, str]) -> bool:
    """A training process has a scrubbed environment: it is known by its node's id, whose directory is ours."""
    node = environment.get(NODE_ID_VARIABLE)
    if not node:
        return False
    if (home.hosts / node).is_dir():
        return True
    return home.hosts in Path(environment.get("EVERSTEP_AGENT_STATE", "/")).parents


def _names(processes: "set[procfs.ProcessKey] | list[procfs.ProcessKey]") -> str:
    return ", ".join(str(process.pid) for process in processes)
