"""The detached supervisor: ``python -m everstep.embedded HOME PORT FD``. Its progress goes to FD, a JSON object a line."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from everstep.embedded.control import AlreadyRunningError, run_here
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.settings import StackSettings
from everstep.embedded.state import ServiceState


def main(home: str, port: str, descriptor: str) -> int:
    events = os.fdopen(int(descriptor), "w", encoding="utf-8", buffering=1)
    os.set_inheritable(int(descriptor), False)

    def tell(name: str, state: ServiceState | None, why: str | None = None) -> None:
        phase = state.phase if state else None
        with suppress(ValueError, OSError):  # nobody listens any more
            events.write(json.dumps({"service": name, "phase": phase, "why": state.why if state else why}) + "\n")

    def ready(*_: object) -> None:
        tell("ready", None)
        with suppress(OSError):
            events.close()

    try:
        run_here(
            Home.at(Path(home)), int(port) if port else None, StackSettings.from_environ(os.environ), tell=tell, on_ready=ready
        )
    except AlreadyRunningError as error:
        tell("occupied", None, str(error))
    except (StackError, LookupError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        tell("failed", None, str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
