"""Hosts that nobody wants: launched by a worker whose note of it was lost, or left over from rows that are no more.

A launch is noted after it was made. Should the worker die in between and the node be released meanwhile, the provider knows a host that no
row will ever release.
"""

from __future__ import annotations

import logging

from models.node import queries as nodes
from models.session import unit_of_work
from workers.plane import Plane
from workers.providers.base import HostNotFound, HostRef, ProviderError

log = logging.getLogger(__name__)


def release(plane: Plane) -> int:
    """Asks for the end of every host whose node is gone or unknown; returns how many there were. Repeated until none is left.

    A node's row is written before its host is launched, so a host that is listed has a row unless it is an orphan.
    """
    hosts = {host.claim: host for host in plane.provider.hosts()}
    with unit_of_work(plane.sessions) as session:
        wanted = nodes.not_gone(session, list(hosts))
    orphans = [host for claim, host in hosts.items() if claim not in wanted]
    for host in orphans:
        log.warning("host %s (claim %s) belongs to no node; releasing it", host.instance_id, host.claim)
        try:
            plane.provider.release(HostRef(host.claim, host.instance_id))
        except HostNotFound:
            log.info("host %s is gone", host.instance_id)
        except ProviderError as error:
            log.warning("host %s cannot be released now: %s", host.instance_id, error)  # those behind it must not wait for it
    return len(orphans)
