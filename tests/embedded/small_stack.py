"""A stack of the two real servers and one trivial service, run by the real supervisor: ``python small_stack.py HOME PORT``.

Each line on standard output is one thing that happened.
"""

import sys
from pathlib import Path

from everstep.embedded import control, credentials, probes, stack
from everstep.embedded.children import Command
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.service import Service
from everstep.embedded.settings import StackSettings
from everstep.embedded.state import StackState


def main(home: Home, port: int, extra: list[str]) -> int:
    def services(now: StackState):
        keys = credentials.load_or_create(home)
        base = stack.server_services(stack.servers(home, now, keys, StackSettings(inherited={})))
        web = Command(
            argv=[sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(home.store), str(now.port)],
            env={stack.STACK_VARIABLE: str(home.root)},
        )
        all_services = [
            *base,
            Service("once", lambda: Command(argv=["true"], env={}), ("postgres",), is_task=True),
            Service("web", lambda: web, ("postgres", "valkey", "once"), why_not_ready=lambda: answers(now.port)),
        ]
        if "broken" in extra:
            broken = Command(argv=["sh", "-c", "echo the reason; exit 3"], env={"PATH": "/usr/bin:/bin"})
            all_services.append(Service("broken", lambda: broken, why_not_ready=lambda: "never"))
        return all_services, lambda: None

    try:
        control.run_services(
            home,
            port,
            services,
            tell=lambda name, state: print(name, state.phase, flush=True),
            on_ready=lambda now: print("READY", now.port, flush=True),
        )
    except StackError as error:
        print("FAILED", type(error).__name__, error, flush=True)
        return 1
    return 0


def answers(port: int) -> str | None:
    answer = probes.http_status(port, "/")
    return answer if isinstance(answer, str) else None


if __name__ == "__main__":
    sys.exit(main(Home.at(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]))
