"""No query goes past the rules of teams unseen: whatever reads tables without the ORM, or across teams, is listed here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture import sources

PAST_THE_RULES = {
    "api/operations/jobs.py": "the names of instances that a job's own processes have run on, whoever's work these do by now",
    "models/access/scope.py": "the rules themselves",
    "models/cluster/queries.py": "an EKS cluster is held by one cluster, whoever's; whether it is held is all that is told",
    "models/condition/queries.py": "how much trouble a group has: counts, which only the brake of repairs sees",
    "models/node/beats.py": "beats of agents, which are no team's callers",
    "models/node/described.py": "how many nodes of a group serve: a count, of a cluster whose row was found under the rules",
    "models/node/queries.py": "how many nodes of a group serve: a count, of a cluster that was found under the rules",
    "models/node/table.py": "a second mapping of the same table, for workers",
    "models/prepared.py": "leaves the ORM for callers without a team only",
    "models/revised.py": "what must be unique on a cluster is so among all teams; whether it is taken is all that is told",
    "models/spot/queries.py": "hosts' and processes' lives, for sums of money that are told; a team's caller is told those of its own jobs",
    "models/volume/queries.py": "a volume is attached once, wherever; whether it is, is all that is told",
    "models/session.py": "a setting of the transaction, which reads nothing",
}
"""Modules, and why what they do there tells a team nothing of another."""
_DECLARES = frozenset({"postgresql_where", "server_default", "sqlite_where"})


def test_what_reads_past_the_rules_of_teams_is_listed_with_its_reason() -> None:
    found = {
        sources.name(path): list(_past_the_rules(sources.tree(path)))
        for path in sources.modules("models", "api")
        if any(_past_the_rules(sources.tree(path)))
    }
    assert found.keys() == PAST_THE_RULES.keys(), found


def test_the_guard_sees_every_way_past_the_rules() -> None:
    code = """
session.execute(text("SELECT 1"))
select(Node.__table__)
statement.execution_options(**{ACROSS_TEAMS: True})
statement.execution_options(across_teams=True)
session.connection().execute(x)
connection.exec_driver_sql("SELECT 1")
Index("a", postgresql_where=text("state = 'x'"))
select(table("cluster"))
"""
    assert sorted(set(_past_the_rules(ast.parse(code)))) == [2, 3, 4, 5, 6, 7, 9]


def _past_the_rules(tree: ast.Module) -> Iterator[int]:
    """Lines that go past the ORM, or name the option that sees every team."""
    declared = {
        id(keyword.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in _DECLARES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in declared:
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            is_option = any(keyword.arg == "across_teams" for keyword in node.keywords)
            if is_option or called in {"text", "table", "exec_driver_sql", "connection", "get_bind"}:
                yield node.lineno
        elif (isinstance(node, ast.Attribute) and node.attr == "__table__") or (
            isinstance(node, ast.Name) and node.id == "ACROSS_TEAMS" and isinstance(node.ctx, ast.Load)
        ):
            yield node.lineno
