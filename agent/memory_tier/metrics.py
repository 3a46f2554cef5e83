"""What a node's memory tier counts, in Prometheus' text format (version 0.0.4). Every family is in one table: a sample of another name fails."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES: Mapping[str, tuple[str, str]] = {
    "everstep_tier_allocated_bytes": ("gauge", "Memory that this node's tier may take; 0 when it is off."),
    "everstep_tier_used_bytes": ("gauge", "Memory that shards and segments in reserve take of it."),
    "everstep_tier_free_bytes": ("gauge", "What is left of the allocated bytes."),
    "everstep_tier_shards": ("gauge", "Sealed shards that can be had from this node."),
    "everstep_tier_spare_bytes": ("gauge", "What segments in reserve, prefaulted, take of the used bytes."),
    "everstep_tier_refusals_total": ("counter", "Saves for which there was no room."),
    "everstep_tier_corruptions_total": ("counter", "Shards whose bytes did not match their digest."),
    "everstep_tier_scrubbed_bytes_total": ("counter", "Bytes hashed again to see whether they are still right."),
    "everstep_tier_scrub_progress_ratio": ("gauge", "How much of the present round of the scrub is done, 0 to 1."),
    "everstep_tier_replication_lag_seconds": (
        "gauge",
        "Age of the oldest shard that has fewer replicas than it should; 0 when none.",
    ),
    "everstep_tier_replicas_missing": ("gauge", "Replicas that are still to be made by this node."),
    "everstep_tier_backlog_bytes": ("gauge", "Bytes that wait to be drained to the object store."),
    "everstep_tier_store_is_out": ("gauge", "1 while the object store cannot be reached from here."),
    "everstep_tier_store_calls_total": ("counter", "Calls to the object store, by kind; lists are not reads."),
    "everstep_tier_connections": ("gauge", "Open connections to the door."),
    "everstep_tier_requests_total": (
        "counter",
        "Requests that the door has answered, by route and status; 0: torn before an answer.",
    ),
    "everstep_tier_received_bytes_total": ("counter", "Bytes of bodies received at the door, by who sent them: client or peer."),
    "everstep_tier_sent_bytes_total": (
        "counter",
        "Bytes of shards sent from the door, by where they came from: memory, peer or store.",
    ),
    "everstep_age_of_last_durable_step_seconds": ("gauge", "Seconds since the newest durable step of a namespace was committed."),
}
"""Name → type and help."""


@dataclass(frozen=True)
class Sample:
    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Counts:
    """Numbers that only grow, for any number of threads. The table bounds the names; whoever adds bounds the labels' values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def add(self, name: str, by: float = 1, **labels: str) -> None:
        """Raises KeyError: no such family."""
        FAMILIES[name]
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + by

    def value(self, name: str, **labels: str) -> float:
        with self._lock:
            return self._values.get((name, tuple(sorted(labels.items()))), 0)

    def samples(self) -> tuple[Sample, ...]:
        with self._lock:
            return tuple(Sample(name, value, dict(labels)) for (name, labels), value in self._values.items())


def render(samples: Iterable[Sample], families: Mapping[str, tuple[str, str]] = FAMILIES) -> str:
    """In the order of the table, each family with its help and type once. Raises KeyError: a sample of no known family."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        families[sample.name]
        grouped.setdefault(sample.name, []).append(sample)
    lines = []
    for name, (kind, words) in families.items():
        if name in grouped:
            lines += [f"# HELP {name} {_escaped(words)}", f"# TYPE {name} {kind}"]
            lines += sorted(_line(sample) for sample in grouped[name])
    return "\n".join([*lines, ""])


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value, quote=True)}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else f"{sample.name} {_number(sample.value)}"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
