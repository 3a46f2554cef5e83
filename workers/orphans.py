"""Hosts that nobody wants: launched by a worker whose note of it was lost, or left over from rows that are no more.

A launch is noted after it was made. Should the worker die in between and the node be released meanwhile, the provider knows a host that no
row will ever release; and a launch that was made twice, by a provider that had forgotten the first, leaves a host beside the node's own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from models.ids import InstanceId, NodeId
from models.node import queries as nodes
from models.session import unit_of_work
from workers.plane import Plane
from workers.providers.base import HostNotFound, HostRef, HostSeen, ProviderError, Throttled

log = logging.getLogger(__name__)


def release(plane: Plane) -> int:
    """Asks for the end of every host whose node is gone or unknown, or has another host; returns how many there were. Repeated until none is left.

    A node's row is written before its host is launched, so a host that is listed has a row unless it is an orphan. One whose launch has not
    been noted is its node's: the launch is repeated, and finds it.
    """
    try:
        hosts = plane.provider.hosts()
    except Throttled as error:
        log.warning("hosts cannot be listed now: %s", error)
        return 0  # the next round comes later than any rest
    with unit_of_work(plane.sessions) as session:
        noted = nodes.noted_hosts(session, [host.claim for host in hosts])
    orphans = _orphans(hosts, noted)
    for host in orphans:
        log.warning("host %s (claim %s) is no node's; releasing it", host.instance_id, host.claim)
        try:
            plane.provider.release(HostRef(host.claim, host.instance_id))
        except HostNotFound:
            log.info("host %s is gone", host.instance_id)
        except Throttled as error:
            log.warning("hosts are not released now: %s", error)
            break
        except ProviderError as error:
            log.warning("host %s cannot be released now: %s", host.instance_id, error)  # those behind it must not wait for it
    return len(orphans)


def _orphans(hosts: Sequence[HostSeen], noted: Mapping[NodeId, InstanceId | None]) -> list[HostSeen]:
    return [host for host in hosts if host.claim not in noted or noted[NodeId(host.claim)] not in {None, host.instance_id}]
