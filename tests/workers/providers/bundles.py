"""The door from which hosts fetch the agent's bundle, for tests without a control plane."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from api.agents.bundle import bundle


@dataclass
class Door:
    """``asked`` are the tokens and claims that were shown; ``content`` is what is given, ``refusals`` how often first another answer is."""

    url: str
    content: bytes = field(default_factory=lambda: bundle().content)
    asked: list[tuple[str | None, str | None]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)


@contextmanager
def bundle_door() -> Iterator[Door]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            door.asked.append((self.headers["authorization"], self.headers["everstep-claim"]))
            if self.path != "/agent/v1/bundle" or door.refusals:
                self.send_error(door.refusals.pop() if door.refusals else 404)
                return
            self.send_response(200)
            for name, value in bundle().headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(door.content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(door.content)

        do_HEAD = do_GET  # noqa: N815  (the name that the server looks for)

        def log_message(self, *_: object) -> None:
            """Tests look at what was asked, not at a log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    door = Door(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
