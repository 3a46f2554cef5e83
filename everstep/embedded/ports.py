"""Which ports a stack listens on. Those of the last start are kept: agents that survived a crash call them still."""

import socket

from everstep.embedded.children import free_port
from everstep.embedded.errors import StackError
from everstep.embedded.settings import DEFAULT_PORT


def of_the_api(asked: int | None, before: int | None) -> int:
    """``asked`` None: the port of the last start, or the default; 0: the port of the last start, or any free one.

    Raises:
        StackError: another program listens there.
    """
    if asked == 0:
        return kept_or_free(before)
    port = asked or before or DEFAULT_PORT
    if not is_free(port):
        message = f"port {port} is in use by another program: choose another one with --port N, or --port 0 for any free one"
        raise StackError(message)
    return port


def kept_or_free(before: int | None) -> int:
    return before if before and is_free(before) else free_port()


def is_free(port: int) -> bool:
    """Whether a server could listen there now. Connections that an earlier one has left to fade away do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
