"""What the drivers of accelerators write to the kernel's log. Pure: a line in, what it names out.

A line that names Xid, SXid or NEURON_HW_ERR is always heard: if it cannot be read its code is ``…:malformed``, which no table calls healthy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NVIDIA = "nvidia"
NEURON = "neuron"

_PCI = r"\((?:PCI:)?(?P<pci>[0-9A-Fa-f]+:[0-9A-Fa-f]+(?::[0-9A-Fa-f]+)?(?:\.[0-9A-Fa-f]+)?)[^)]*\)"
_XID = re.compile(rf"\bXid {_PCI}: (?P<code>[0-9]{{1,9}})\b(?P<rest>.*)", re.ASCII)
_SXID = re.compile(rf"\bSXid {_PCI}: (?P<code>[0-9]{{1,9}})\b(?P<rest>.*)", re.ASCII)
_NEURON = re.compile(r"\bNEURON_HW_ERR=(?P<code>[A-Z][A-Z0-9_]{0,63})(?=\s|$)(?P<rest>.*)", re.ASCII)
_NAMES = re.compile(r"(?P<sxid>SXid)|(?P<xid>Xid)|(?P<neuron>NEURON_HW_ERR)")
_PID = re.compile(r"\bpid=(?P<pid>[0-9]{1,9})\b", re.ASCII)
_SEVERITY = re.compile(r"\b(?P<not>non-?)?fatal\b", re.IGNORECASE)
_ACTION = re.compile(r"\bto 0x(?P<action>[0-9A-Fa-f]{1,4})\b", re.ASCII)
_DEVICE = re.compile(r"\bnd-id=(?P<index>[0-9]{1,4})\b", re.ASCII)
_RECOVERY_ACTION = "xid:154"


@dataclass(frozen=True)
class Named:
    """A fault as a line names it. ``pci`` is the bus address as it is written there, ``index`` the place on the host; either may be missing.

    ``variant`` tells a code apart further: ``fatal``, ``non-fatal``, or the action that an Xid 154 calls for (``0x2``).
    """

    vendor: str
    code: str
    variant: str | None = None
    pci: str | None = None
    index: int | None = None
    pid: int | None = None


def named(line: str) -> Named | None:
    """None: the line names no fault of an accelerator."""
    names = _NAMES.search(line)
    if names is None:
        return None
    if names["neuron"]:
        return _neuron(line)
    return _nvidia(line, "sxid" if names["sxid"] else "xid")


def bus_address(text: str) -> str:
    """In one form, so that two programs' ways of writing an address can be compared: ``0000:3b:00``, without the function."""
    parts = text.lower().split(".", maxsplit=1)[0].split(":")
    try:
        numbers = [int(part, 16) for part in parts[-3:]]
    except ValueError:
        return text
    return ":".join(f"{number:02x}" for number in [0, 0, *numbers][-3:])


def _nvidia(line: str, kind: str) -> Named:
    found = (_SXID if kind == "sxid" else _XID).search(line)
    if found is None:
        return Named(NVIDIA, f"{kind}:malformed")
    code, rest = f"{kind}:{int(found['code'])}", found["rest"]
    pid = _PID.search(rest)
    return Named(NVIDIA, code, _variant(code, rest), found["pci"], pid=int(pid["pid"]) if pid else None)


def _variant(code: str, rest: str) -> str | None:
    if code == _RECOVERY_ACTION:
        action = _ACTION.search(rest)
        return f"0x{int(action['action'], 16):x}" if action else None
    severity = _SEVERITY.search(rest)
    if severity is None:
        return None
    return "non-fatal" if severity["not"] else "fatal"


def _neuron(line: str) -> Named:
    found = _NEURON.search(line)
    if found is None:
        return Named(NEURON, "neuron:malformed")
    device = _DEVICE.search(found["rest"])
    return Named(NEURON, f"neuron:{found['code']}", index=int(device["index"]) if device else None)
