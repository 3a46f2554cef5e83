"""What a team's caller can see and change, by construction: every statement of its session is restricted, whoever wrote the query.

A cluster without a team is shared: everybody looks at it and runs jobs on it, and nobody who is bound to a team changes it. Jobs, and all that
hangs on them, are their team's alone; a node is hidden from the other teams while a process of a job lives on it.

The rule of a table follows from its columns (``cluster_id``, ``job_id``, ``team`` …), so that a new table is restricted by what it refers to;
``rule_of`` is total, and a test fails for a table that refers to nothing until it is named here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, TableClause, TextClause, and_, event, exists, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.visitors import iterate

from models.base import Base
from models.cluster.table import Cluster, Tag
from models.errors import Forbidden
from models.events import About, Event
from models.job.states import ALIVE
from models.job.table import Job, JobProcess, ProcessLog
from models.node.table import Node
from models.quota.table import ComputeQuota
from models.scheduler.table import SchedulerConfig
from models.session import ACROSS_TEAMS, TEAM, team_of

COMMON: Final = frozenset({"pulse"})
"""Tables that hold nothing of anybody's: every caller may read and write them."""
READ_BY_ALL: Final[frozenset[str]] = frozenset()
"""Tables of the installation as a whole: every caller may read them, and none who is bound to a team may write them."""

_cluster = Cluster.__table__.c
_job = Job.__table__.c
_node = Node.__table__.c
_process = JobProcess.__table__.c
_config = SchedulerConfig.__table__.c
_quota = ComputeQuota.__table__.c


class Unrestricted(Exception):
    """A statement of a team's session reads tables past the ORM, where no rule reaches it. A fault of ours, never the caller's."""


def bind(session: Session, team: str | None) -> None:
    """From now on the session sees and changes what this team may; None: everything."""
    session.info[TEAM] = team
    if team is not None and not event.contains(session, "do_orm_execute", _restrict):
        event.listen(session, "do_orm_execute", _restrict)
        event.listen(session, "before_flush", _guard)


def rule_of(mapped: type[Any], team: str, *, to_write: bool = False) -> ColumnElement[bool] | None:
    """Which rows of a table a team may see, or change. None: all of them.

    Raises:
        LookupError: the table refers to nothing that has a team, and is not named in this module.
    """
    special = _SPECIAL.get(mapped)
    if special is not None:
        return special(team, to_write)
    columns = mapped.__table__.c
    if "team" in columns:
        return mapped.team == team  # type: ignore[no-any-return]
    held_by = [name for name in ("job_id", "process_id") if name in columns] or [name for name in _BY_COLUMN if name in columns]
    if held_by:
        return and_(*(_BY_COLUMN[name](getattr(mapped, name), team, to_write) for name in held_by))
    if mapped.__tablename__ in COMMON | READ_BY_ALL:
        return None
    message = f"{mapped.__name__}: say in models/access/scope.py whose its rows are"
    raise LookupError(message)


def _restrict(state: ORMExecuteState) -> None:
    team = team_of(state.session)
    if team is None or state.is_column_load or state.execution_options.get(ACROSS_TEAMS):
        return
    if not state.is_orm_statement:
        _check_core(state.statement)
    elif state.is_select or state.is_update or state.is_delete:
        state.statement = state.statement.options(*_options(team, not state.is_select))  # type: ignore[attr-defined]


def _check_core(statement: Any) -> None:
    """Raises Unrestricted for text, and for a statement of Core that names a table; a call of a function is neither."""
    if isinstance(statement, TextClause) or any(isinstance(part, TableClause) for part in iterate(statement)):
        raise Unrestricted(str(statement))


@lru_cache(maxsize=256)
def _options(team: str, to_write: bool) -> tuple[Any, ...]:
    rules = ((mapper.class_, rule_of(mapper.class_, team, to_write=to_write)) for mapper in Base.registry.mappers)
    return tuple(with_loader_criteria(mapped, rule, include_aliases=True) for mapped, rule in rules if rule is not None)


def _guard(session: Session, _context: Any, _instances: Any) -> None:
    """The last line: what a team must not change is not written, whichever use-case would."""
    team = team_of(session)
    if team is None:
        return
    changed = [row for row in session.dirty if session.is_modified(row)]
    for row in (*session.new, *changed, *session.deleted):
        if not _may_write(session, row, team):
            raise Forbidden(message=_NOT_YOURS.format(what=type(row).__name__, team=team))


def _may_write(session: Session, row: Any, team: str) -> bool:
    if isinstance(row, Event) or row.__tablename__ in COMMON:
        return True
    columns = row.__table__.c
    if "team" in columns:
        return bool(row.team == team)
    if "job_id" in columns or isinstance(row, ProcessLog):
        return True  # it could be found for its job only, and that was the team's
    if "cluster_id" in columns:
        return cluster_team(session, row.cluster_id) == team
    return isinstance(row, Tag)


def cluster_team(session: Session, cluster_id: str) -> str | None:
    """Whose a cluster is. None: everybody's."""
    held = session.identity_map.get(session.identity_key(Cluster, cluster_id))
    if held is not None:
        return held.team  # type: ignore[no-any-return]
    with session.no_autoflush:
        return session.scalar(select(Cluster.team).where(Cluster.id == cluster_id))


_NOT_YOURS: Final = "A caller of team {team} must not change this {what}: it belongs to everybody."


def _clusters(team: str, to_write: bool) -> ColumnElement[bool]:
    own = _cluster.team == team
    return own if to_write else or_(_cluster.team.is_(None), own)


def _cluster_rule(team: str, to_write: bool) -> ColumnElement[bool]:
    own = Cluster.team == team
    return own if to_write else or_(Cluster.team.is_(None), own)


def _of_cluster(column: Any, team: str, to_write: bool) -> ColumnElement[bool]:
    seen = column.in_(select(_cluster.id).where(_clusters(team, to_write)))
    return or_(column.is_(None), seen) if column.nullable else seen


def _of_job(column: Any, team: str, _to_write: bool) -> ColumnElement[bool]:
    own = column.in_(select(_job.id).where(_job.team == team))
    return or_(column.is_(None), own) if column.nullable else own


def _of_process(column: Any, team: str, _to_write: bool) -> ColumnElement[bool]:
    own = select(_process.id).join(Job.__table__, _job.id == _process.job_id).where(_job.team == team)
    return column.in_(own)  # type: ignore[no-any-return]


def _of_node(column: Any, team: str, to_write: bool) -> ColumnElement[bool]:
    seen = select(_node.id).where(_node.cluster_id.in_(select(_cluster.id).where(_clusters(team, to_write))))
    free = and_(column.in_(seen), _is_not_held(column, team))
    return or_(column.is_(None), free) if column.nullable else free


def _is_not_held(column: Any, team: str) -> ColumnElement[bool]:
    """No process of another team's job, or of nobody's, should be alive on the node."""
    held = exists(_process.id).where(
        _process.node_id == column, _process.state.in_(ALIVE), _process.job_id == _job.id, _job.team.is_distinct_from(team)
    )
    return ~held


def _event_rule(team: str, _to_write: bool) -> ColumnElement[bool]:
    """Its own calls; else what happened to clusters, jobs and nodes that it sees."""
    seen = and_(
        Event.about != About.CALL,
        _of_cluster(Event.cluster_id, team, False),
        _of_job(Event.job_id, team, False),
        or_(Event.node_id.is_(None), _is_not_held(Event.node_id, team)),
    )
    return or_(seen, and_(Event.about == About.CALL, Event.details["team"].astext == team))


def _node_rule(team: str, to_write: bool) -> ColumnElement[bool]:
    return and_(_of_cluster(Node.cluster_id, team, to_write), _is_not_held(Node.id, team))


def _tag_rule(team: str, to_write: bool) -> ColumnElement[bool]:
    """Of clusters, and of what is on them and has tags of its own."""
    clusters = select(_cluster.arn).where(_clusters(team, to_write))
    configs = select(_config.arn).where(_of_cluster(_config.cluster_id, team, to_write))
    return or_(*(Tag.resource_arn.in_(arns) for arns in (clusters, configs, select(_quota.arn).where(_quota.team == team))))


_SPECIAL: Final[dict[type[Any], Any]] = {
    Cluster: _cluster_rule,
    Node: _node_rule,
    Event: _event_rule,
    Tag: _tag_rule,
}
_BY_COLUMN: Final[dict[str, Any]] = {
    "cluster_id": _of_cluster,
    "job_id": _of_job,
    "process_id": _of_process,
    "node_id": _of_node,
}
"""Who has a job's or a process's id belongs to the job, on whichever node it is."""
