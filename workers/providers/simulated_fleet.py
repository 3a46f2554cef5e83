"""Hosts of a simulated fleet, which is another process: ``python -m workers.fleet``. A control plane that dies leaves them running.

The fleet says in a private file where it listens and by which token it knows us. Whoever finds no fleet gets ``ProviderError``: it may come back,
but its hosts will not, as those of a cloud that has burnt down.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workers.providers import simulated_wire as wire
from workers.providers.base import HostRef, HostSeen, HostSpec, ProviderError, Volume
from workers.providers.prices import SpotPrice

DOOR = "door.json"
"""In the fleet's directory: where it listens, and the token."""
_PATIENCE_S = 20.0
_OK = 200


@dataclass(frozen=True)
class FleetProvider:
    """``directory`` is the fleet's. Also says what its hosts cost: a ``Prices``."""

    directory: Path

    @property
    def settles_within(self) -> timedelta:
        """What the running fleet says; nothing while there is none, as nothing can be asked of it then."""
        return timedelta(seconds=float(self._door().get("settles_within_s", 0.0)))

    def launch(self, spec: HostSpec) -> HostSeen:
        return wire.seen_from_wire(self.call("launch", spec=wire.spec_to_wire(spec)))

    def describe(self, ref: HostRef) -> HostSeen:
        return wire.seen_from_wire(self.call("describe", ref=wire.ref_to_wire(ref)))

    def hosts(self) -> tuple[HostSeen, ...]:
        return wire.all_from_wire(self.call("hosts"))

    def release(self, ref: HostRef) -> None:
        self.call("release", ref=wire.ref_to_wire(ref))

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return wire.seen_from_wire(self.call("reboot", ref=wire.ref_to_wire(ref), spec=wire.spec_to_wire(spec)))

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return wire.seen_from_wire(self.call("reimage", ref=wire.ref_to_wire(ref), spec=wire.spec_to_wire(spec)))

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        self.call("attach_volume", ref=wire.ref_to_wire(ref), volume={"id": volume.id, "device": volume.device})

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        self.call("detach_volume", ref=wire.ref_to_wire(ref), volume_id=volume_id)

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        self.call("attach_interface", ref=wire.ref_to_wire(ref), interface_id=interface_id)

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        told = self.call("spot", instance_types=list(instance_types), since=since.isoformat())
        return tuple(
            SpotPrice(one["instance_type"], one["zone"], datetime.fromisoformat(one["at"]), Decimal(one["per_hour"]))
            for one in told
        )

    def on_demand(self, instance_type: str) -> Decimal | None:
        found = self.call("on_demand", instance_type=instance_type)
        return None if found is None else Decimal(found)

    def call(self, verb: str, **members: Any) -> Any:
        """One call at the fleet's door; those of a rehearsal as well (``counts``, ``strike``). Raises ProviderError, as the port has it."""
        door = self._door()
        parts = urlsplit(door.get("url", ""))
        if not parts.hostname:
            message = f"no simulated fleet runs for {self.directory}: start it with `python -m workers.fleet`"
            raise ProviderError(message)
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=_PATIENCE_S)
        try:
            headers = {"Authorization": f"Bearer {door['token']}", "Content-Type": "application/json"}
            connection.request("POST", f"/{verb}", json.dumps(members), headers)
            answer = connection.getresponse()
            told = json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = f"the simulated fleet does not answer: {type(error).__name__}"
            raise ProviderError(message) from error
        finally:
            connection.close()
        if answer.status != _OK:
            raise wire.error_from_wire(told.get("error") or {"kind": "", "message": f"the simulated fleet answers {answer.status}"})
        return told["answer"]

    def _door(self) -> dict[str, Any]:
        """Read anew each time: a fleet that was started again listens elsewhere."""
        try:
            found = json.loads((self.directory / DOOR).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
