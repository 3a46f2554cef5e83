"""A shell script that makes a node of a host: user data of an instance that boots, or what is sent to a host over SSH.

It needs a POSIX shell and Python 3.11. It writes ``node_setup`` and what that is told into the directory, and runs it. The token goes to a
file that its owner alone can read; it is on no command line, so no list of processes shows it.

The bundle may come over a line that others can write to. What it must be is told on a way that they cannot: in the script itself, if that comes
over SSH and is made anew each time; else by the provider in the instance's metadata, because user data stay as they are while releases change.
"""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.providers.base import HostSpec, ProviderError

DIRECTORY = "/var/lib/everstep"
METADATA_URL = "http://169.254.169.254"
"""Where an instance of EC2 asks about itself."""
_BUNDLE_S = 10.0
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
    bundle_tag: str | None = None,
    starts: bool = True,
    patience_s: float = 600.0,
) -> str:
    """The script, as text.

    The host shows ``boot_token`` (None: ``<directory>/token`` is there already) with ``claim`` when it asks for the bundle, for ``patience_s``
    seconds; ``sha256`` is the bundle's, or the tag ``bundle_tag`` in the metadata has it. ``environ`` is what the agent is told besides, also its id and
    address unless ``metadata_url`` (``METADATA_URL``) knows them, and the number of its start unless the tag ``start_tag`` in the metadata does.
    ``directory`` is absolute, and the node's alone. ``service`` is ``systemd``, ``none``, or ``auto``: systemd where it runs and we are root.
    With ``starts`` False the start is left to the next boot.
    """
    told: dict[str, Any] = {"api_url": api_url, "claim": claim, "directory": directory, "environ": dict(environ)}
    told |= {"sha256": sha256, "service": service, "metadata_url": metadata_url}
    told |= {"start_tag": start_tag, "bundle_tag": bundle_tag, "starts": starts, "patience_s": patience_s}
    return _SCRIPT.format(
        directory=shlex.quote(directory),
        python=shlex.quote(python),
        token=_token(boot_token),
        told=json.dumps(told),
        program=_PROGRAM.read_text().rstrip("\n"),
        end=_END,
    )


def bundle_checksum(api_url: str, spec: HostSpec) -> str:
    """SHA-256 of the bundle as the control plane serves it now, in hex. Raises ProviderError."""
    shown = {"Authorization": f"Bearer {spec.boot_token}", "Everstep-Claim": spec.claim}
    request = urllib.request.Request(f"{api_url.rstrip('/')}/agent/v1/bundle", headers=shown, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_BUNDLE_S) as answer:
            return str(answer.headers["Everstep-Bundle-Sha256"])
    except OSError as error:
        message = f"{request.full_url} does not tell the bundle's checksum: {error}"
        raise ProviderError(message) from error


def _token(boot_token: str | None) -> str:
    return "" if boot_token is None else f"cat >\"$directory/token\" <<'{_END}'\n{boot_token}\n{_END}\n"
