"""Beats of nodes, buffered and written in batches: liveness, and no part of a transition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from models.ids import NodeId


@dataclass(frozen=True)
class Heartbeat:
    """One beat, buffered."""

    node_id: NodeId
    boot: str
    sequence: int
    at: datetime


def report_beats(session: Session, beats: Sequence[Heartbeat]) -> None:
    """Writes a batch of beats in one statement. A beat that is older than what is known changes nothing.

    Rows are locked in the order of their ids, so that two API processes flushing at once cannot deadlock. Of several beats of one boot
    only the newest is written: an UPDATE that met a row twice would take either.
    """
    newest = {(beat.node_id, beat.boot): beat for beat in sorted(beats, key=lambda beat: beat.sequence)}
    ordered = sorted(newest.values(), key=lambda beat: beat.node_id)
    session.execute(
        text(
            "UPDATE node SET last_seen = GREATEST(node.last_seen, beat.at), beat_sequence = beat.sequence "
            "FROM (SELECT known.id, told.sequence, told.at FROM node AS known "
            "      JOIN unnest(CAST(:ids AS text[]), CAST(:boots AS text[]), CAST(:sequences AS bigint[]), "
            "                  CAST(:ats AS timestamptz[])) AS told(id, boot, sequence, at) "
            "        ON known.id = told.id AND known.boot = told.boot AND known.beat_sequence < told.sequence "
            "      ORDER BY known.id FOR NO KEY UPDATE OF known) AS beat "
            "WHERE node.id = beat.id"
        ),
        {
            "ids": [beat.node_id for beat in ordered],
            "boots": [beat.boot for beat in ordered],
            "sequences": [beat.sequence for beat in ordered],
            "ats": [beat.at for beat in ordered],
        },
    )
