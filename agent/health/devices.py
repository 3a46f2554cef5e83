"""InstanceStress of a node's accelerators: whether all of them are there, with all their links, and what diagnosing them finds.

``python -P -m agent.health.devices`` is the child that does it, so that a driver that hangs takes nobody with it; it prints one JSON list.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from agent.accelerators.base import Accelerators
from agent.accelerators.choice import INSTANCE_TYPE, Clocks, choose
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


def main() -> int:
    """``python -P -m agent.health.devices STATE_DIR NODE LEVEL``; the rest is in the environment."""
    _, state_dir, node, level = sys.argv
    clocks = Clocks(time.time, time.monotonic)
    accelerators = choose(os.environ, state_dir=Path(state_dir), node=node, clocks=clocks)
    found = examine(accelerators, os.environ.get(INSTANCE_TYPE, ""), int(level))
    accelerators.close()
    sys.stdout.write(json.dumps([finding.to_wire() for finding in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
