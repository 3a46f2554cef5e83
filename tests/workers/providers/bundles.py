"""The door from which hosts fetch the agent's bundle, for tests without a control plane."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from api.agents.bundle import ROOT, Bundle, bundle, pack

_AGENT = "import signal\n\nsignal.sigwait([signal.SIGTERM])\n"


def small_bundle(folder: Path) -> Bundle:
    """The real shepherd with an agent that only waits for its end: where the agent's own work is not what is tested, most time would go into it."""
    agent = folder / "agent"
    agent.mkdir(parents=True)
    (agent / "__main__.py").write_text(_AGENT)
    for name in ("__init__.py", "shepherd.py", "requirements.txt"):
        shutil.copy(ROOT / "agent" / name, agent / name)
    return pack(folder)


@dataclass
class Door:
    """``asked`` are the tokens and claims that were shown; ``content`` is what is given in place of the bundle, ``refusals`` what is first
    answered, ``heads_are_well`` whether only to those who want the content."""

    url: str
    bundle: Bundle
    content: bytes | None = None
    asked: list[tuple[str | None, str | None]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    heads_are_well: bool = False


@contextmanager
def bundle_door(packed: Bundle | None = None) -> Iterator[Door]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            door.asked.append((self.headers["authorization"], self.headers["everstep-claim"]))
            is_refused = door.refusals and not (self.command == "HEAD" and door.heads_are_well)
            if self.path != "/agent/v1/bundle" or is_refused:
                self.send_error(door.refusals.pop() if is_refused else 404)
                return
            content = door.bundle.content if door.content is None else door.content
            self.send_response(200)
            for name, value in door.bundle.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815  (the name that the server looks for)

        def log_message(self, *_: object) -> None:
            """Tests look at what was asked, not at a log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    door = Door(f"http://127.0.0.1:{server.server_port}", packed or bundle())
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
