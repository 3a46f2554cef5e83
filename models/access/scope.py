"""What a team's caller can see and change, by construction: every statement of its session is restricted, whoever wrote the query.

A cluster without a team is shared: everybody looks at it and runs jobs on it, and nobody who is bound to a team changes it. Jobs, and all that
hangs on them, are their team's alone; a node is hidden from the other teams while a process of a job lives on it.

The rule of a table follows from what it refers to, so that a new table is restricted without being named here; one that refers to nothing is
hidden from every team until it is, and a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, TableClause, TextClause, and_, event, exists, false, func, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.visitors import iterate

from models.access.table import Credential
from models.base import Base
from models.checkpoint.table import CheckpointCopy, CheckpointStep
from models.cluster.table import Cluster, Tag
from models.errors import Forbidden
from models.events import About, Event
from models.fault.table import Fault
from models.job.states import ALIVE
from models.job.table import Job, JobProcess
from models.node.table import Node
from models.session import ACROSS_TEAMS, TEAM, team_of

COMMON: Final = frozenset({"pulse", "replay"})
"""Tables that every caller may read and write. Answers that may be given again carry in their scope who asked."""
READ_BY_ALL: Final = frozenset({"alarm", "image_release", "interruption_rate", "price"})
"""Tables of the installation as a whole: every caller may read them, and none who is bound to a team may write them."""

Columns = Callable[[str], Any]
"""A table's columns by name, of the table itself or of an entity of the ORM."""
Rule = Callable[[Columns, str, bool], ColumnElement[bool]]
"""Which rows a team may see, or write."""


class Unrestricted(Exception):
    """A statement of a team's session reads tables past the ORM, where no rule reaches it. A fault of ours, never the caller's."""


def bind(session: Session, team: str | None) -> None:
    """From now on the session sees and changes what this team may; None: everything."""
    session.info[TEAM] = team
    if team is not None and not event.contains(session, "do_orm_execute", _restrict):
        event.listen(session, "do_orm_execute", _restrict)
        event.listen(session, "before_flush", _guard)


def rule_of(mapped: Any, team: str, *, to_write: bool = False) -> ColumnElement[bool] | None:
    """Which rows of a mapped class a team may see, or write. None: all of them.

    Raises:
        LookupError: the table refers to nothing that has a team, and is not named in this module.
    """
    table = mapped.__table__
    attributes = {attribute.columns[0].name: attribute.class_attribute for attribute in mapped.__mapper__.column_attrs}
    if len(attributes) < len(table.c):
        # A class that knows a part of its table's columns only.
        rule = _rule(table, table.c.__getitem__, team, to_write)
        key = table.primary_key.columns[0]
        return None if rule is None else attributes[key.name].in_(select(key).where(rule))
    return _rule(table, attributes.__getitem__, team, to_write)


def _rule(table: Any, columns: Columns, team: str, to_write: bool) -> ColumnElement[bool] | None:
    if table.name in COMMON | READ_BY_ALL:
        return None
    rules = list(_rules(table, columns, team, to_write))
    if not rules:
        message = f"{table.name}: say in models/access/scope.py whose its rows are"
        raise LookupError(message)
    return and_(*rules)


def _rules(table: Any, columns: Columns, team: str, to_write: bool) -> Iterator[ColumnElement[bool]]:
    """All of them hold. A table's own rule; else its job's; else its cluster's and its node's; else that of what it refers to."""
    if table.name in _OWN_RULES:
        yield _OWN_RULES[table.name](columns, team, to_write)
        return
    names = set(table.c.keys())
    if names & _OF_JOB.keys():
        yield from (rule(columns, team, to_write) for name, rule in _OF_JOB.items() if name in names)
    elif "cluster_id" in names:
        yield _of_cluster(columns, team, to_write)
        if "node_id" in names:
            yield _is_free(columns("node_id"), team)
    else:
        for key in sorted(table.foreign_keys, key=lambda key: key.parent.name):
            yield _follow(key.column, columns(key.parent.name), team, to_write)


def _follow(target: Any, column: Any, team: str, to_write: bool) -> ColumnElement[bool]:
    """The row that it refers to may be seen, or written; so may one that refers to none."""
    rule = _rule(target.table, target.table.c.__getitem__, team, to_write)
    seen = column.in_(select(target) if rule is None else select(target).where(rule))
    return or_(column.is_(None), seen) if column.nullable else seen


# ----------------------------------------------------------------------------------------------------- rules of tables

_cluster = Cluster.__table__.c
_job = Job.__table__.c
_process = JobProcess.__table__.c
_checkpoint = CheckpointStep.__table__.c


def _own_or_shared(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    own: ColumnElement[bool] = columns("team") == team
    return own if to_write else or_(columns("team").is_(None), own)


def _own(columns: Columns, team: str, _to_write: bool) -> ColumnElement[bool]:
    return columns("team") == team  # type: ignore[no-any-return]


def _of_cluster(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    return _follow(_cluster.id, columns("cluster_id"), team, to_write)


def _of_job(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    return _follow(_job.id, columns("job_id"), team, to_write)


def _of_process(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    return _follow(_process.id, columns("process_id"), team, to_write)


def _is_free(node_id: Any, team: str) -> ColumnElement[bool]:
    """No process of another team's job, or of nobody's, should be alive on the node."""
    held = exists(_process.id).where(
        _process.node_id == node_id, _process.state.in_(ALIVE), _process.job_id == _job.id, _job.team.is_distinct_from(team)
    )
    return ~held


def _of_node(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    return and_(_of_cluster(columns, team, to_write), _is_free(columns("id"), team))


def _of_event(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    """Its team's calls; else what happened to clusters, jobs and nodes that it sees, and to its jobs on whichever node."""
    is_call = columns("about") == About.CALL
    is_seen = or_(columns("job_id").is_not(None), _is_free(columns("node_id"), team))
    seen = and_(~is_call, _of_cluster(columns, team, to_write), _of_job(columns, team, to_write), is_seen)
    return or_(seen, and_(is_call, func.jsonb_extract_path_text(columns("details"), "team") == team))


def _of_tag(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    """Of whatever has an ARN and may itself be seen, or written."""
    seen = []
    for table in Base.metadata.sorted_tables:
        if "arn" in table.c:
            rule = _rule(table, table.c.__getitem__, team, to_write)
            seen.append(columns("resource_arn").in_(select(table.c.arn).where(rule)))  # type: ignore[arg-type]
    return or_(*seen)


def _of_fault(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    """Of its team's jobs; of whole nodes that it sees."""
    is_seen = or_(columns("job_id").is_not(None), _is_free(columns("node_id"), team))
    return and_(_of_cluster(columns, team, False), _of_job(columns, team, to_write), is_seen)


def _of_copy(columns: Columns, team: str, to_write: bool) -> ColumnElement[bool]:
    """Who has a checkpoint has its copies, on whichever node they are."""
    return _follow(_checkpoint.id, columns("step_id"), team, to_write)


_OWN_RULES: Final[dict[str, Rule]] = {
    Cluster.__tablename__: _own_or_shared,
    Job.__tablename__: _own,
    Credential.__tablename__: _own,
    Node.__tablename__: _of_node,
    Event.__tablename__: _of_event,
    Tag.__tablename__: _of_tag,
    Fault.__tablename__: _of_fault,
    CheckpointCopy.__tablename__: _of_copy,
}
_OF_JOB: Final[dict[str, Rule]] = {"job_id": _of_job, "process_id": _of_process}
"""Who has the id of a job or of its process belongs to the job, on whichever node it is."""


# -------------------------------------------------------------------------------------------------------- what holds them


_EVERYBODYS: Final = "A caller of team {team} must not change this {what}: it belongs to everybody."


def _restrict(state: ORMExecuteState) -> None:
    team = team_of(state.session)
    if team is None or state.is_column_load or state.execution_options.get(ACROSS_TEAMS):
        return
    if not state.is_orm_statement:
        _check_core(state.statement)
    elif state.is_insert:
        _check_insert(state.statement, team)
    elif state.is_select or state.is_update or state.is_delete:
        options = _options(team, not state.is_select, len(Base.registry.mappers))
        state.statement = state.statement.options(*options)


def _check_core(statement: Any) -> None:
    """Raises Unrestricted for text, and for a statement of Core that names a table; a call of a function is neither."""
    if isinstance(statement, TextClause) or any(isinstance(part, TableClause) for part in iterate(statement)):
        raise Unrestricted(str(statement))


def _check_insert(statement: Any, team: str) -> None:
    """Raises Forbidden. Rows of a cluster are inserted by who has locked it, and so was allowed to."""
    if statement.table.name in READ_BY_ALL:
        raise Forbidden(message=_EVERYBODYS.format(team=team, what=statement.table.name))


@lru_cache(maxsize=256)
def _options(team: str, to_write: bool, _known: int) -> tuple[Any, ...]:
    """For every class that is mapped by now; there are ``_known`` of them."""
    rules = ((mapper.class_, _rule_or_none(mapper.class_, team, to_write)) for mapper in Base.registry.mappers)
    return tuple(with_loader_criteria(mapped, rule, include_aliases=True) for mapped, rule in rules if rule is not None)


def _rule_or_none(mapped: Any, team: str, to_write: bool) -> ColumnElement[bool] | None:
    try:
        return rule_of(mapped, team, to_write=to_write)
    except LookupError:
        return false()  # nobody's, as far as a team is concerned, until it is said whose


def _guard(session: Session, _context: Any, _instances: Any) -> None:
    """The last line: what a team must not change is not written, whichever use-case would. Raises Forbidden."""
    team = team_of(session)
    if team is None:
        return
    changed = [row for row in session.dirty if session.is_modified(row)]
    for row in (*session.new, *changed, *session.deleted):
        if not _may_write(session, row, team):
            raise Forbidden(message=_EVERYBODYS.format(team=team, what=type(row).__name__))


def _may_write(session: Session, row: Any, team: str) -> bool:
    """What hangs on a job, or refers to what may be written, has been found through it."""
    table = row.__table__
    if table.name in READ_BY_ALL:
        return False
    if isinstance(row, Cluster | Job | Credential):
        return bool(row.team == team)
    is_of_job = any(getattr(row, name, None) is not None for name in _OF_JOB)
    if isinstance(row, Event) or "cluster_id" not in table.c or is_of_job:
        return True
    return _team_of_cluster(session, row.cluster_id) == team


def _team_of_cluster(session: Session, cluster_id: str) -> str | None:
    held = session.identity_map.get(session.identity_key(Cluster, cluster_id))
    if held is not None:
        return held.team  # type: ignore[no-any-return]
    with session.no_autoflush:
        return session.scalar(select(Cluster.team).where(Cluster.id == cluster_id))
