"""What the demonstration saw, and what follows from it. Pure: the story fills it in, the console, the picture and the JSON line read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = dict[str, Any]
RECOVERED = {"peer", "memory", "store"}


def instant(told: str | None) -> float | None:
    """A time as REST tells it, in Unix seconds."""
    return None if told is None else datetime.fromisoformat(told).timestamp()


@dataclass
class Ledger:
    """All times are Unix seconds. ``job`` is the last answer of ``GET /v1/jobs/{id}``, ``steps`` its committed steps in order."""

    cluster_arn: str = ""
    job_id: str = ""
    nodes: list[str] = field(default_factory=list)
    job: Json = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    killed: str | None = None
    killed_at: float | None = None
    survivors: dict[str, int] = field(default_factory=dict)
    """Process id → pid, of the members on the other nodes at the moment of the kill."""
    survivor_pids_kept: bool = False
    replaced_at: float | None = None

    @property
    def after_kill(self) -> Json | None:
        """The first generation that was decided after the kill and whose step went through."""
        if self.killed_at is None:
            return None
        later = (one for one in self.job.get("generations", []) if (instant(one["decided_at"]) or 0.0) >= self.killed_at)
        return next((one for one in later if one["first_step_at"]), None)

    def timeline(self) -> dict[str, float]:
        """Seconds from the kill to the end of each phase, in order; empty before the recovery is complete."""
        generation = self.after_kill
        if generation is None or self.killed_at is None:
            return {}
        phases: dict[str, float] = {}
        for member in generation["members"]:
            for name, at in member["phases"].items():
                phases[name] = max(at, phases.get(name, at))
        marks = {
            "detected": instant(generation["evidence_at"]),
            "decided": instant(generation["decided_at"]),
            "reformed": phases.get("grouped"),
            "transferred": phases.get("transferred"),
            "first step": instant(generation["first_step_at"]),
        }
        return {name: round(at - self.killed_at, 3) for name, at in marks.items() if at is not None}

    def restored_from(self) -> str | None:
        """The dearest source that any member of the generation had to use."""
        generation = self.after_kill
        used = {member["source"] for member in generation["members"]} if generation else set()
        return next((source for source in ("store", "memory", "peer") if source in used), None)

    def broken_claims(self) -> list[str]:
        """What the demonstration is there to show and this run has not shown."""
        told = self.summary()
        first, last = told["loss_first"], told["loss_last"]
        claims = {
            "no completed step is lost": told["steps_lost"] == 0,
            "the state comes from a peer": told["restored_from"] == "peer",
            "the survivors keep their processes": told["survivor_pids_kept"],
            "the killed node is replaced": told["node_replaced"],
            "the loss falls": first is not None and last is not None and last < first,
        }
        return [claim for claim, holds in claims.items() if not holds]

    def summary(self) -> Json:
        """The JSON line of the demonstration."""
        timeline = self.timeline()
        return {
            "cluster_arn": self.cluster_arn,
            "job_id": self.job_id,
            "status": self.job.get("status"),
            "nodes": len(self.nodes),
            "steps": self.job.get("step"),
            "nodes_killed": 0 if self.killed is None else 1,
            "node_replaced": self.replaced_at is not None,
            "steps_lost": self.job.get("steps_lost"),
            "detected_s": timeline.get("detected"),
            "resumed_s": timeline.get("first step"),
            "timeline_s": timeline,
            "restored_from": self.restored_from(),
            "survivor_pids_kept": self.survivor_pids_kept,
            "loss_first": self.job.get("loss_first"),
            "loss_last": self.job.get("loss_last"),
            "goodput": self.job.get("goodput"),
        }
