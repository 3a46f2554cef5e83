"""``python -P -m agent.health STATE_DIR NODE LEVEL``: examines the node's accelerators; prints one JSON list of findings."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from agent.accelerators.choice import INSTANCE_TYPE, Clocks, choose
from agent.health.devices import examine


def main() -> int:
    """What accelerators there are to be, the environment says."""
    _, state_dir, node, level = sys.argv
    clocks = Clocks(time.time, time.monotonic)
    accelerators = choose(os.environ, state_dir=Path(state_dir), node=node, clocks=clocks)
    found = examine(accelerators, os.environ.get(INSTANCE_TYPE, ""), int(level))
    accelerators.close()
    sys.stdout.write(json.dumps([finding.to_wire() for finding in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
