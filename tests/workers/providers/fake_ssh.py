"""A stand-in for ``ssh``: refuses to be called carelessly, and runs the command here. What real keys do is tested against a real server.

``FAKE_SSH`` beside it is a file of JSON: for each address, whether it answers, and what it does instead of running the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

WANTED = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "IdentitiesOnly": "yes",
    "ForwardAgent": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "UpdateHostKeys": "no",
}


def fail(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.exit(255)


def main(arguments: list[str]) -> None:
    flags, _, rest = " ".join(arguments).partition(" -- ")
    words = flags.split(" -o ")
    options = dict(word.split(" ")[0].split("=", 1) for word in words[1:])
    missing = {name: value for name, value in WANTED.items() if options.get(name) != value}
    known = options.get("UserKnownHostsFile", "").strip('"')
    if words[0] != "-F none" or missing or not known or not Path(known).is_file():
        fail(f"called carelessly: {missing} {known}")
    address, _, command = rest.partition(" ")
    told = json.loads((Path(__file__).parent / "fake.json").read_text())
    with (Path(__file__).parent / "calls").open("a") as calls:
        calls.write(json.dumps({"address": address, "arguments": arguments}) + "\n")
    said = told.get(address, {})
    if "fails" in said:
        fail(said["fails"])
    time.sleep(said.get("seconds", 0))
    if "prints" in said:
        print(said["prints"])
        sys.exit(said.get("code", 0))
    os.execve("/bin/sh", ["sh", "-c", command], {"PATH": os.environ["PATH"], "LC_ALL": "C"})


if __name__ == "__main__":
    main(sys.argv[1:])
