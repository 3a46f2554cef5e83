"""``python -P -m agent.memory_tier``: a node's memory tier. SIGTERM ends it and leaves the shards where they are."""

from __future__ import annotations

import logging
import random
import resource
import signal
import sys
import time

from agent.memory_tier.settings import Settings, SettingsError
from agent.memory_tier.tier import Tier

_ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.stderr.write(f"memory tier: {error}\n")
        return 2
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor a segment, and a connection a peer and more
    # Waited for rather than handled: a handler runs inside whatever this thread is at, and would wait for a lock that only this thread can let go.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    tier = Tier(settings, now=time.time, rng=random.Random())  # noqa: S311  (jitter)
    tier.start()
    signal.sigwait(_ENDS)
    tier.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
