"""InstanceStress of a node's accelerators: whether all of them are there, with all their links, and what diagnosing them finds.

``python -P -m agent.health`` is the child that does it, so that a driver that hangs takes nobody with it.
"""

from __future__ import annotations

from agent.accelerators.base import Accelerators
from agent.health import findings
from agent.health.stress import KIND
from everstep.examination import Finding


def examine(accelerators: Accelerators, instance_type: str, level: int) -> list[Finding]:
    """Nothing for a host that has no accelerators and is to have none. Blocks for as long as the level takes."""
    seen = accelerators.detect()
    expected = accelerators.expected(instance_type)
    if not seen.devices and not expected:
        return []
    found = []
    if expected is not None:
        found.append(findings.at_least(KIND, "the number of accelerators", len(seen.devices), expected, "devices"))
    most = max((device.links for device in seen.devices), default=0)
    for device in seen.devices:
        if device.links < most:
            what = f"the number of links of accelerator {device.index}"
            found.append(findings.at_least(KIND, what, device.links, most, "links"))
    return found + list(accelerators.diagnose(level))
