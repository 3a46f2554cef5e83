from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.authority import Authority, Caller, Forbidden
from everstep.tiers import NamespacePlan, TierPlan

PLAN = TierPlan(
    1,
    allocation_percent=20,
    secret="between-nodes",
    namespaces=(NamespacePlan("job-a", "a", "token-a"), NamespacePlan("job-b", "b", "token-b")),
    ended=("job-old",),
)


@pytest.fixture
def authority() -> Authority:
    one = Authority("10.0.0.7")
    one.know(PLAN)
    return one


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_a_jobs_token_opens_its_own_namespace_from_wherever_it_runs(authority: Authority) -> None:
    assert authority.admit("job-a", shown=bearer("token-a"), source="10.0.0.9") is Caller.JOB
    assert authority.admit("job-b", shown="bearer  token-b", source="127.0.0.1") is Caller.JOB


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer ", "Bearer token-b", "Basic token-a", "token-a", "Bearer token-a2", "Bearer token-"]
)
@pytest.mark.parametrize("source", ["127.0.0.1", "10.0.0.7", "10.0.0.9"])
def test_a_jobs_namespace_is_closed_to_every_other_token_and_place(authority: Authority, shown: str | None, source: str) -> None:
    with pytest.raises(Forbidden) as found:
        authority.admit("job-a", shown=shown, source=source)
    assert "job-a" in str(found.value)
    assert "token-" not in str(found.value)


@given(st.text(max_size=30))
def test_no_text_but_the_token_opens_a_jobs_namespace(text: str) -> None:
    authority = Authority("10.0.0.7")
    authority.know(PLAN)
    if text.strip() not in {"token-a", "between-nodes"}:
        with pytest.raises(Forbidden):
            authority.admit("job-a", shown=bearer(text), source="10.0.0.7")


def test_peers_show_their_secret_for_every_namespace(authority: Authority) -> None:
    authority.admit_peer(shown=bearer("between-nodes"))
    for namespace in ("job-a", "job-old", "anything"):
        assert authority.admit(namespace, shown=bearer("between-nodes"), source="10.0.0.9") is Caller.PEER
    for shown in (None, "", bearer("token-a"), bearer("")):
        with pytest.raises(Forbidden):
            authority.admit_peer(shown=shown)


def test_an_empty_secret_or_token_opens_nothing() -> None:
    authority = Authority("10.0.0.7")
    authority.know(TierPlan(1, namespaces=(NamespacePlan("job-a", "a", ""),)))
    for shown in (None, "", "Bearer ", "Bearer"):
        with pytest.raises(Forbidden):
            authority.admit_peer(shown=shown)
        with pytest.raises(Forbidden):
            authority.admit("job-a", shown=shown, source="127.0.0.1")


@pytest.mark.parametrize("source", ["127.0.0.1", "127.3.2.1", "::1", "10.0.0.7", "::ffff:10.0.0.7", "::ffff:127.0.0.1"])
def test_an_open_namespace_is_served_on_the_node_itself(authority: Authority, source: str) -> None:
    assert authority.admit("theirs", shown=None, source=source) is Caller.NODE
    assert authority.admit("theirs", shown=bearer("token-a"), source=source) is Caller.NODE
    assert authority.is_open("theirs")


@pytest.mark.parametrize("source", ["10.0.0.8", "::2", "::ffff:10.0.0.8", "fe80::1%eth0", "128.0.0.1", "nonsense", ""])
def test_an_open_namespace_is_closed_to_strangers(authority: Authority, source: str) -> None:
    with pytest.raises(Forbidden, match="alone"):
        authority.admit("theirs", shown=None, source=source)


def test_what_was_a_jobs_stays_closed_when_its_plan_goes(authority: Authority) -> None:
    authority.know(TierPlan(2, secret="between-nodes"))
    for namespace in ("job-a", "job-old"):
        assert not authority.is_open(namespace)
        with pytest.raises(Forbidden):
            authority.admit(namespace, shown=bearer("token-a"), source="127.0.0.1")


@pytest.mark.parametrize("namespace", ["", "..", ".a", "-a", "a/b", "a b", "a\n", "ä", "a" * 201])
def test_a_name_that_could_leave_its_folder_is_no_namespace(authority: Authority, namespace: str) -> None:
    with pytest.raises(ValueError, match="cannot be a namespace"):
        authority.admit(namespace, shown=bearer("between-nodes"), source="127.0.0.1")
