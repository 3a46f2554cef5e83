"""Simulated members of a generation, for ``benchmarks.coordinator``: a process of its own that imports nothing but the standard library.

Usage: coordinator_members.py FIRST EVERY FOLDER. It says ``ready``, waits for a line with the port, and says as one line of JSON when the last of its
members (ranks FIRST, FIRST + EVERY, …) had met and how many bytes they were sent. FOLDER/cards.json holds everybody's card; what a member is told
of all cards, packed, is written to FOLDER/packed-FIRST.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

FIRST, EVERY = (int(argument) for argument in sys.argv[1:3])
FOLDER = Path(sys.argv[3])
ADDRESS = "127.78.255.1"


async def _member(port: int, rank: int, cards: list[dict[str, object]]) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    sent = 0

    async def ask(*requests: dict[str, object]) -> bytes:
        """The bytes after the last answer, if there are any."""
        nonlocal sent
        writer.write(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        for _ in requests:
            line = await reader.readline()
            told = await reader.readexactly(json.loads(line).get("bytes", 0))
            sent += len(line) + len(told)
        return told

    opening = {"op": "open", "job": "job", "generation": 2, "token": "secret"}
    place = {"rank": rank, "count": len(cards)}
    packed = await ask(opening, {"op": "gather", "name": "cards", "value": cards[rank], **place})
    await ask({"op": "meet", "name": "held", **place})
    writer.close()
    return sent, packed


async def _meet(port: int, cards: list[dict[str, object]]) -> None:
    found = await asyncio.gather(*(_member(port, rank, cards) for rank in range(FIRST, len(cards), EVERY)))
    end = time.time()
    if found:
        (FOLDER / f"packed-{FIRST}").write_bytes(found[0][1])
    print(json.dumps({"end": end, "sent": sum(sent for sent, _ in found)}), flush=True)


def main() -> None:
    cards = json.loads((FOLDER / "cards.json").read_text())
    print("ready", flush=True)
    asyncio.run(_meet(int(sys.stdin.readline()), cards))


main()
