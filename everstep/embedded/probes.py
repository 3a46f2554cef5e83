"""Is a server ready? Asked over its own wire protocol, with nothing but sockets: no driver needs to be imported.

Every probe returns None when the server is ready, else why not. None of them raises or waits longer than its time-out.
"""

import http.client
import json
import socket
import struct
from typing import Any

_PROTOCOL_3 = 3 << 16


def postgres(port: int, user: str, database: str = "postgres", timeout: float = 1.0) -> str | None:
    """Opens a session up to the password request: a server that is still recovering answers an error instead."""
    words = b"".join(word.encode() + b"\0" for word in ("user", user, "database", database)) + b"\0"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(struct.pack("!ii", 8 + len(words), _PROTOCOL_3) + words)
            answer = connection.recv(1024)
    except OSError as error:
        return f"no connection to Postgres on port {port}: {error}"
    if answer[:1] == b"R":
        return None
    fields = [part.decode(errors="replace") for part in answer[5:].split(b"\0") if part]
    return next((part[1:] for part in fields if part.startswith("M")), "Postgres closed the connection")


def valkey(port: int, password: str, timeout: float = 1.0) -> str | None:
    """Logs in and pings: while Valkey loads its append-only file it answers ``-LOADING``."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2:  # noqa: PLR2004 - one line for each of the two commands
                piece = connection.recv(1024)
                if not piece:
                    break
                answer += piece
    except OSError as error:
        return f"no connection to Valkey on port {port}: {error}"
    if answer.endswith(b"+PONG\r\n"):
        return None
    return answer.decode(errors="replace").strip() or "Valkey closed the connection"


def http_status(port: int, path: str, timeout: float = 2.0) -> tuple[int, Any] | str:
    """``GET path``: the status and the body (parsed when it is JSON), or why there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(65536).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer on port {port}: {error}"
    finally:
        connection.close()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, body
