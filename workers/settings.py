"""What the workers are told by their environment, read once, and what Celery is told by us."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

PREFIX = "EVERSTEP_"
EC2 = "EVERSTEP_EC2_"
HEALTH = "EVERSTEP_HEALTH_"
MEMORY_TIER = "EVERSTEP_MEMORY_TIER_"
"""What health checks must measure at least, and how memory tiers are set up: variables for the nodes, not for us."""
ACCELERATORS = ("EVERSTEP_ACCELERATORS", "EVERSTEP_SIMULATED_")
"""Which accelerators a local node has, or makes believe to have; for the nodes as well."""
_MASTER_KEY_BYTES = 32

FAST = "fast"
"""Jobs, suspicions, directives: no outside call, so nothing that can hang."""
SLOW = "slow"
"""Calls to providers and object stores, under time limits."""
SWEEP_EVERY = timedelta(seconds=2)
PULSE_EVERY = timedelta(seconds=3)
PRICES_EVERY = timedelta(seconds=60)
ORPHANS_EVERY = timedelta(seconds=60)
UPDATES_EVERY = timedelta(seconds=20)
FORGET_EVERY = timedelta(minutes=10)
"""Answers to repeated requests that have run out take up room until then."""
TEND_EVERY = timedelta(minutes=1)
"""Rows of checkpoints that are no more take up room until then, and a rate of faults that has changed is not known."""

_SOFT_LIMIT_S = 60
_HARD_LIMIT_S = 75
_REDELIVERED_AFTER_S = 300
"""Longer than the hard limit, or a message would be given to a second worker while the first still works on it."""


class SettingsError(ValueError):
    """A variable is missing or cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Settings:
    """``suspect_after`` etc. are the patience with a silent node; see ``workers.plans.node.Patience``."""

    database_url: str
    broker_url: str
    master_key: bytes = field(repr=False)
    object_store_url: str
    home: Path
    api_url: str
    provider: str = "local"
    region: str = "us-east-1"
    account_id: str = "123456789012"
    s3_endpoint_url: str | None = None
    local_capacity: int = 64
    static_inventory: Path | None = None
    """Which hosts the provider ``static`` has: a YAML file."""
    ec2: Mapping[str, str] = field(default_factory=dict)
    """What begins with ``EVERSTEP_EC2_``, without that; see ``workers.providers.ec2_options``."""
    node_patience: timedelta = timedelta(seconds=30)
    boot_patience: timedelta = timedelta(minutes=10)
    reform_patience: timedelta = timedelta(seconds=6)
    spot_prices: Path | None = None
    """A file of spot prices; None: the provider's own, if it has any."""
    on_demand_prices: Path | None = None
    """A file of list prices; None: the provider's own, and those that are shipped."""
    unknown_fault: str = "label"
    """What is done about a fault that no table knows; see ``workers.plans.repair``, as for the six that follow."""
    fault_window: timedelta = timedelta(hours=24)
    transient_faults: int = 3
    drain_limit: timedelta = timedelta(minutes=2)
    quarantine: timedelta = timedelta(hours=1)
    repair_brake: float = 0.3
    repair_brake_window: timedelta = timedelta(minutes=10)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment that a local node's processes get besides ours."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Reads ``EVERSTEP_*``.

        Raises:
            SettingsError: a required variable is missing, or one cannot be read.
        """
        variables = os.environ if environ is None else environ
        return cls(
            database_url=_required(variables, "DATABASE_URL"),
            broker_url=_required(variables, "BROKER_URL"),
            master_key=_master_key(_required(variables, "MASTER_KEY")),
            object_store_url=_required(variables, "OBJECT_STORE_URL"),
            home=Path(_required(variables, "HOME_DIR")),
            api_url=_required(variables, "API_URL"),
            provider=variables.get(f"{PREFIX}PROVIDER") or cls.provider,
            region=variables.get(f"{PREFIX}REGION") or cls.region,
            account_id=variables.get(f"{PREFIX}ACCOUNT_ID") or cls.account_id,
            s3_endpoint_url=_s3_endpoint(variables),
            static_inventory=_file(variables, "STATIC_INVENTORY"),
            local_capacity=int(_number(variables, "LOCAL_CAPACITY", cls.local_capacity)),
            ec2={name.removeprefix(EC2): value for name, value in variables.items() if name.startswith(EC2)},
            node_patience=_seconds(variables, "NODE_PATIENCE_S", cls.node_patience),
            boot_patience=_seconds(variables, "BOOT_PATIENCE_S", cls.boot_patience),
            reform_patience=_seconds(variables, "REFORM_PATIENCE_S", cls.reform_patience),
            spot_prices=_file(variables, "SPOT_PRICES"),
            on_demand_prices=_file(variables, "ON_DEMAND_PRICES"),
            unknown_fault=_one_of(variables, "UNKNOWN_FAULT", ("label", "reboot", "ignore-with-event")),
            fault_window=_seconds(variables, "FAULT_WINDOW_S", cls.fault_window),
            transient_faults=int(_number(variables, "TRANSIENT_FAULTS", cls.transient_faults)),
            drain_limit=_seconds(variables, "DRAIN_LIMIT_S", cls.drain_limit),
            quarantine=_seconds(variables, "QUARANTINE_S", cls.quarantine),
            repair_brake=_number(variables, "REPAIR_BRAKE", cls.repair_brake),
            repair_brake_window=_seconds(variables, "REPAIR_BRAKE_WINDOW_S", cls.repair_brake_window),
            environ={name: value for name, value in variables.items() if _is_for_nodes(name)},
        )


def _is_for_nodes(name: str) -> bool:
    return not name.startswith(PREFIX) or name.startswith((HEALTH, MEMORY_TIER, *ACCELERATORS))


def celery_settings(broker_url: str) -> dict[str, Any]:
    """A message is a hint that may be lost or come twice; no result is kept; nothing is scheduled in the broker."""
    return {
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            "visibility_timeout": _REDELIVERED_AFTER_S,
            # kombu's own sweep of unacknowledged messages takes 100 s unless told otherwise.
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": 30,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_acks_on_failure_or_timeout": True,
        "task_ignore_result": True,
        "task_soft_time_limit": _SOFT_LIMIT_S,
        "task_time_limit": _HARD_LIMIT_S,
        "task_default_queue": FAST,
        "worker_prefetch_multiplier": 1,
        "worker_max_tasks_per_child": 20_000,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_hijack_root_logger": False,
        "timezone": "UTC",
    }


def _s3_endpoint(variables: Mapping[str, str]) -> str | None:
    """Where a store that speaks S3 and is not AWS's listens, from the first of these that says so; None: where AWS's does."""
    names = (f"{PREFIX}S3_ENDPOINT_URL", "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next((variables[name] for name in names if variables.get(name)), None)


def _file(variables: Mapping[str, str], name: str) -> Path | None:
    text = variables.get(f"{PREFIX}{name}")
    if not text:
        return None
    path = Path(text)
    if not path.is_file():
        message = f"{PREFIX}{name} is {text!r}; there is no such file"
        raise SettingsError(message)
    return path


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(f"{PREFIX}{name}")
    if not value:
        message = f"{PREFIX}{name} is not set. `everstep up` sets it; a deployment of your own must."
        raise SettingsError(message)
    return value


def _master_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        message = f"{PREFIX}MASTER_KEY is not base64"
        raise SettingsError(message) from error
    if len(key) != _MASTER_KEY_BYTES:
        message = f"{PREFIX}MASTER_KEY holds {len(key)} bytes; it must hold {_MASTER_KEY_BYTES}"
        raise SettingsError(message)
    return key


def _one_of(variables: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """The first is what an unset variable means."""
    word = variables.get(f"{PREFIX}{name}") or words[0]
    if word not in words:
        message = f"{PREFIX}{name} is {word!r}; it must be one of {', '.join(words)}"
        raise SettingsError(message)
    return word


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(f"{PREFIX}{name}")
    if not text:
        return default
    try:
        return float(text)
    except ValueError as error:
        message = f"{PREFIX}{name} is {text!r}; it must be a number"
        raise SettingsError(message) from error


def _seconds(variables: Mapping[str, str], name: str, default: timedelta) -> timedelta:
    return timedelta(seconds=_number(variables, name, default.total_seconds()))
