"""Every operation of Everstep's own: one table, from which REST, the JSON door and the client's service model follow."""

from __future__ import annotations

from api.own.alarms import ALARMS
from api.own.checkpoints import CHECKPOINTS
from api.own.conditions import CONDITIONS
from api.own.events import EVENTS
from api.own.faults import FAULTS
from api.own.feed import FEED
from api.own.goodput import GOODPUT
from api.own.images import IMAGES
from api.own.jobs import JOBS
from api.own.keys import KEYS
from api.own.kinds import OwnTable
from api.own.spare_pools import SPARE_POOLS
from api.own.spot import SPOT

OWN: OwnTable = (*JOBS, *CHECKPOINTS, *GOODPUT, *FAULTS, *CONDITIONS, *EVENTS, *FEED, *IMAGES, *ALARMS, *SPOT, *SPARE_POOLS, *KEYS)
