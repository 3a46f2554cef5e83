"""Hosts of EC2. What is known of them is in their tags: this process may forget everything at any moment.

Two things of EC2's make a launch idempotent: a client token, which is the claim's own and always the same, so that a call that was carried out
and not heard of is answered again; and the tags, by which an instance is found once listings show it. Nothing is ever touched that does not
carry the tag of this control plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from workers.providers import ec2_requests as requests
from workers.providers.base import (
    HostNotFound,
    HostRef,
    HostSeen,
    HostSpec,
    InUse,
    Market,
    NoCapacity,
    ProviderError,
    Refused,
    Site,
    Volume,
)
from workers.providers.ec2_calls import Calls
from workers.providers.ec2_errors import SHORT_EVERYWHERE, Mismatch, Short
from workers.providers.ec2_lore import Lore
from workers.providers.ec2_options import Ec2Options
from workers.providers.ec2_requests import BUNDLE, CLAIM, GOING, IMAGE, START, STARTED
from workers.providers.ec2_shortages import Pool, Shortages
from workers.providers.ec2_turns import Turns

_PAGE = 500
_NOT_OFFERED = "Unsupported"


@dataclass(frozen=True)
class Ec2Provider:
    """``user_data`` is what an instance does when it first starts: it installs the agent and hands it the boot token.

    ``checksum`` is the SHA-256 of the bundle that it is to install, told to it by a tag; None: it takes what it is given.
    """

    calls: Calls
    options: Ec2Options
    user_data: Callable[[HostSpec], bytes]
    checksum: Callable[[HostSpec], str | None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    page_size: int = _PAGE
    shortages: Shortages = field(default_factory=lambda: Shortages(time.monotonic))
    turns: Turns = field(default_factory=Turns)
    lore: Lore = field(default_factory=Lore)

    @property
    def settles_within(self) -> timedelta:
        return self.options.settles_within

    # ------------------------------------------------------------------ the life of a host

    def launch(self, spec: HostSpec) -> HostSeen:
        """Places are tried in the order of preference; those that had none a while ago are left out until it is time to ask again."""
        found = self._only(spec.claim)
        if found is not None:
            return requests.seen(found)
        places = self._places(spec)
        told: dict[str, str] = {}
        for site, place in places:
            pool = Pool(spec.instance_type, place, spec.market)
            everywhere = Pool(spec.instance_type, None, spec.market)
            known = self.shortages.code(everywhere) or self.shortages.code(pool)
            if known is not None:
                told[place or "this region"] = known
                continue
            try:
                host = self._run(spec, site)
            except Short as error:
                self.shortages.note(everywhere if error.code in SHORT_EVERYWHERE else pool, error.code)
                told[place or "this region"] = error.code
            else:
                self.shortages.clear(pool)
                return host
        raise _none(spec, told)

    def describe(self, ref: HostRef) -> HostSeen:
        return requests.seen(self._instance(ref))

    def hosts(self) -> tuple[HostSeen, ...]:
        """One for each instance, also if a claim has several; those that are ending are among them until they have ended."""
        return tuple(requests.seen(instance) for instance in self._listed(requests.mine(self.options.plane)))

    def release(self, ref: HostRef) -> None:
        """Ends every instance of the claim or, if its id is given, that one alone."""
        instances = self._find(ref.claim, ref.instance_id)
        if not instances:
            raise _no_host(ref)
        for instance in instances:
            self._end(instance)

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, {}, lambda instance_id: self.calls("reboot_instances", InstanceIds=[instance_id]))

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        """EC2 replaces the root volume by one of the image, and reboots; what else is attached stays."""
        image = self.options.image(spec.image)
        wish = {"DeleteReplacedRootVolume": True, "ClientToken": requests.token(self.options.plane, spec.claim, spec.start)}
        if image is not None:
            wish["ImageId"] = image
        labels = {} if spec.image is None else {IMAGE: spec.image}
        return self._restart(
            ref, spec, labels, lambda instance_id: self.calls("create_replace_root_volume_task", InstanceId=instance_id, **wish)
        )

    # ------------------------------------------------------------------ what is attached to a host

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        host = self._living(ref)
        if any(one.id == volume.id for one in host.volumes):
            return
        try:
            self.calls("attach_volume", Device=volume.device, InstanceId=host.instance_id, VolumeId=volume.id)
        except InUse:
            if host.instance_id not in self._attached_to(volume.id):  # our own attachment may be listed late
                raise

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        instance_id = self._living(ref).instance_id
        if instance_id in self._attached_to(volume_id):
            self.calls("detach_volume", InstanceId=instance_id, VolumeId=volume_id)

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        instance = self._instance(ref)
        if interface_id in requests.seen(instance).interfaces:
            return
        index, instance_id = requests.free_index(instance), instance["InstanceId"]
        self.calls("attach_network_interface", DeviceIndex=index, InstanceId=instance_id, NetworkInterfaceId=interface_id)

    # ------------------------------------------------------------------ launches

    def _places(self, spec: HostSpec) -> list[tuple[Site, str | None]]:
        """Where to ask, and by which name a place is remembered: its zone, which all subnets of it share."""
        sites = spec.sites or tuple(Site(subnet) for subnet in self.options.subnets) or (Site(),)
        groups = self.options.security_groups
        settled = [site if site.security_groups else replace(site, security_groups=groups) for site in sites]
        return [(site, site.zone or self.lore.zone(self.calls, site.subnet)) for site in settled]

    def _run(self, spec: HostSpec, site: Site) -> HostSeen:
        """Raises Short; Mismatch and other errors as they come."""
        root = None
        if any(disk.is_root for disk in spec.disks):
            root = self.lore.root_device(self.calls, self.options.image(spec.image))
        processor = None
        if spec.threads_per_core is not None:
            processor = self.lore.processor(self.calls, requests.ec2_type(spec.instance_type))
        wish = requests.launch(
            spec, site, self.options, user_data=self.user_data(spec), root=root, processor=processor, checksum=self._bundle(spec)
        )
        token = requests.token(self.options.plane, spec.claim, self.turns.of(spec.claim))
        try:
            answer = self.calls("run_instances", ClientToken=token, **wish)
        except Mismatch:
            return self._run_before(spec)
        self.turns.settle(spec.claim)
        return requests.seen(answer["Instances"][0])

    def _run_before(self, spec: HostSpec) -> HostSeen:
        """The token has been used with other parameters, by a launch whose answer was lost: that one is the host, as soon as it is listed."""
        found = self._only(spec.claim)
        if found is not None:
            return requests.seen(found)
        self.turns.puzzle(spec.claim, self.clock(), self.options.settles_within)
        message = f"the claim {spec.claim} was launched before, with other parameters, and its instance is not listed yet"
        raise ProviderError(message)

    def _only(self, claim: str) -> Mapping[str, Any] | None:
        """The claim's instance, the oldest one if there are several; those that came later are ended."""
        found = requests.oldest_first(self._find(claim))
        for instance in found[1:]:
            self._end(instance)
        return found[0] if found else None

    # ------------------------------------------------------------------ what EC2 lists

    def _listed(self, filters: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of this control plane that have not ended."""
        return [
            instance
            for page in self.calls.pages("describe_instances", page_size=self.page_size, Filters=filters)
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] != requests.ENDED and any(tag["Key"] == CLAIM for tag in instance.get("Tags", ()))
        ]

    def _find(self, claim: str, instance_id: str | None = None) -> list[Mapping[str, Any]]:
        return self._listed(requests.mine(self.options.plane, claim, instance_id))

    def _instance(self, ref: HostRef) -> Mapping[str, Any]:
        found = requests.oldest_first(self._find(ref.claim, ref.instance_id))
        if not found:
            raise _no_host(ref)
        return found[0]

    def _living(self, ref: HostRef) -> HostSeen:
        return requests.seen(self._instance(ref))

    def _attached_to(self, volume_id: str) -> set[str]:
        answer = self.calls("describe_volumes", Filters=[{"Name": "volume-id", "Values": [volume_id]}])
        return {one["InstanceId"] for volume in answer["Volumes"] for one in volume.get("Attachments", ())}

    # ------------------------------------------------------------------ changes

    def _end(self, instance: Mapping[str, Any]) -> None:
        if instance["State"]["Name"] in GOING:
            return
        with suppress(HostNotFound):
            self.calls("terminate_instances", InstanceIds=[instance["InstanceId"]])

    def _restart(self, ref: HostRef, spec: HostSpec, labels: Mapping[str, str], carry_out: Callable[[str], object]) -> HostSeen:
        """The instance reads which start it comes up with, so that is told first; that it was carried out, last.

        A crash in between leads to a second restart, which harms nothing: its agent has not come up yet.
        """
        host = self._living(ref)
        if host.start >= spec.start:
            return host
        if not host.is_alive:
            message = f"{host.instance_id} does not run: it cannot be started anew"
            raise Refused(message)
        self._tag(host.instance_id, {START: str(spec.start), **self._bundle(spec)})
        carry_out(host.instance_id)
        self._tag(host.instance_id, {STARTED: str(spec.start), **labels})
        return replace(host, start=spec.start, image=labels.get(IMAGE, host.image))

    def _bundle(self, spec: HostSpec) -> dict[str, str]:
        """Raises ProviderError: it cannot be known just now."""
        checksum = self.checksum(spec)
        return {} if checksum is None else {BUNDLE: checksum}

    def _tag(self, instance_id: str, labels: Mapping[str, str]) -> None:
        self.calls("create_tags", Resources=[instance_id], Tags=requests.as_pairs(labels))


def _none(spec: HostSpec, told: Mapping[str, str]) -> ProviderError:
    """The same words for the same want, whether it was asked for again or remembered: it is told once."""
    where = ", ".join(f"{place} ({code})" for place, code in told.items())
    kind = f"{spec.instance_type} on spot" if spec.market is Market.SPOT else spec.instance_type
    if set(told.values()) == {_NOT_OFFERED}:
        message = (
            f"EC2 does not offer {kind} in any place that the instance group may use: {where}. To do: name subnets of other zones."
        )
        return Refused(message)
    return NoCapacity(f"EC2 has no {kind} to be had in {where}.")


def _no_host(ref: HostRef) -> HostNotFound:
    return HostNotFound(f"no instance of EC2 for claim {ref.claim}" + (f" with id {ref.instance_id}" if ref.instance_id else ""))
