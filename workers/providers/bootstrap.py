"""A shell script that makes a node of a host: user data of an instance that boots, or what is sent to a host over SSH.

It needs a POSIX shell and Python 3.11. It writes ``node_setup`` and what that is told into the directory, and runs it. The token goes to a
file that its owner alone can read; it is on no command line, so no list of processes shows it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

DIRECTORY = "/var/lib/everstep"
METADATA_URL = "http://169.254.169.254"
"""Where an instance of EC2 asks about itself."""
_PROGRAM = Path(__file__).with_name("node_setup.py")
_END = "EVERSTEP_END_OF_FILE"
_SCRIPT = """#!/bin/sh
# Makes a node of this host. May be run again.
set -eu
umask 077
directory={directory}
mkdir -p "$directory"
chmod 700 "$directory"
for python in {python} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        found=$(command -v "$python")
        break
    fi
done
if [ -z "${{found:-}}" ]; then
    echo "failed: there is no Python of 3.11 or newer on this host" | tee "$directory/setup.state" >&2
    exit 1
fi
{token}cat >"$directory/told.json" <<'{end}'
{told}
{end}
cat >"$directory/setup.py" <<'{end}'
{program}
{end}
exec "$found" -I -S "$directory/setup.py" "$directory/told.json"
"""


def bootstrap_script(
    api_url: str,
    *,
    claim: str,
    boot_token: str | None,
    environ: Mapping[str, str],
    directory: str = DIRECTORY,
    sha256: str | None = None,
    python: str = "python3",
    service: str = "auto",
    metadata_url: str | None = None,
    start_tag: str | None = None,
    starts: bool = True,
    patience_s: float = 600.0,
) -> str:
    """The script, as text.

    Args:
        api_url: where the host reaches the control plane.
        claim: what the host was launched under; shown with the token when the bundle is fetched.
        boot_token: the node's; None if ``<directory>/token`` is there already.
        environ: what the agent is told besides (``EVERSTEP_NODE_VCPUS``, ``EVERSTEP_OBJECT_STORE_URL`` …), also ``EVERSTEP_NODE_ID`` and
            ``EVERSTEP_NODE_ADDRESS`` unless ``metadata_url`` is given.
        directory: an absolute path, the node's alone: bundles, environments, the agent's state.
        sha256: of the bundle, in hexadecimal, if it came on a better way than the bundle does; None: what the control plane tells with it.
        python: the interpreter to take if it is new enough, before others.
        service: ``systemd``, ``none``, or ``auto``: systemd where it runs and we are root.
        metadata_url: of an instance's metadata service (``METADATA_URL``), which knows its id and address; None where there is none.
        start_tag: the tag in the instance's metadata that holds the number of the start; None: ``EVERSTEP_HOST_START`` of ``environ``.
        starts: False to prepare everything and leave the start to the next boot.
        patience_s: for how long the bundle is asked for, in seconds.
    """
    told = {
        "api_url": api_url,
        "claim": claim,
        "directory": directory,
        "environ": dict(environ),
        "sha256": sha256,
        "service": service,
        "metadata_url": metadata_url,
        "start_tag": start_tag,
        "starts": starts,
        "patience_s": patience_s,
    }
    return _SCRIPT.format(
        directory=shlex.quote(directory),
        python=shlex.quote(python),
        token="" if boot_token is None else f"cat >\"$directory/token\" <<'{_END}'\n{boot_token}\n{_END}\n",
        told=json.dumps(told),
        program=_PROGRAM.read_text().rstrip("\n"),
        end=_END,
    )
