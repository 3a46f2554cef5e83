"""Keys are given, listed, rotated and revoked, over both doors."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from api.auth import FRESH_S
from models.access.table import Credential
from models.session import Sessions, unit_of_work
from tests.api.access.conftest import Hold
from tests.api.access.holders import bootstrap, refused
from tests.api.serving import KEY_ID, Server


def works(server: Server, key: dict) -> bool:
    if key["Kind"] == "Token":
        with bootstrap(server) as rest:
            rest.headers["authorization"] = f"Bearer {key['Secret']}"
            return rest.get("/v1/jobs").status_code == 200
    answer = server.call("ListClusters", {}, key_id=key["KeyId"], secret=key["Secret"])
    assert answer.status_code in {200, 403}
    return answer.status_code == 200


@pytest.mark.parametrize("kind, prefix", [("AccessKey", "AKIA"), ("Token", "tok-")])
def test_a_key_that_was_given_works_at_once_and_its_secret_is_told_once(hold: Hold, server: Server, kind: str, prefix: str):
    admin = hold("Admin")
    made = admin.everstep.create_key(Name="ci", Role="Viewer", Kind=kind)
    assert made["KeyId"].startswith(prefix)
    assert works(server, made)
    (shown,) = [key for key in admin.everstep.list_keys()["Keys"] if key["KeyId"] == made["KeyId"]]
    assert shown == {name: made[name] for name in ("KeyId", "Kind", "Name", "Role", "Status", "CreatedBy", "CreatedAt")} | {
        "LastUsed": shown["LastUsed"]
    }
    assert (shown["Status"], shown["CreatedBy"]) == ("Active", admin.name)
    assert made["Secret"] not in admin.rest.get("/v1/keys").text


def test_all_keys_are_listed_in_pages_and_only_usable_ones_if_asked(hold: Hold):
    admin = hold("Admin")
    made = [admin.everstep.create_key(Name=f"k{number}")["KeyId"] for number in range(5)]
    admin.everstep.revoke_key(KeyId=made[0])
    pages = admin.everstep.get_paginator("list_keys").paginate(PaginationConfig={"PageSize": 2})
    assert [key["KeyId"] for page in pages for key in page["Keys"]][-5:] == made
    active = admin.rest.get("/v1/keys", params={"active": "true", "max_results": 500}).json()["Keys"]
    assert {key["KeyId"] for key in active} & set(made) == set(made[1:])


def test_a_revoked_key_ends_at_once_and_may_be_revoked_again(hold: Hold, server: Server):
    admin = hold("Admin")
    for kind in ("AccessKey", "Token"):
        made = admin.everstep.create_key(Name="gone", Kind=kind)
        first = admin.everstep.revoke_key(KeyId=made["KeyId"])
        assert not works(server, made)
        assert first["Status"] == "Revoked"
        assert admin.everstep.revoke_key(KeyId=made["KeyId"])["RevokedAt"] == first["RevokedAt"]
    assert refused(admin.everstep.revoke_key, KeyId="AKIANOBODY")[0] == "ResourceNotFound"


def test_a_rotated_key_has_a_successor_and_ends_at_once(hold: Hold, server: Server):
    admin = hold("Admin")
    old = admin.everstep.create_key(Name="ci", Role="Viewer", Team="red", Kind="Token")
    new = admin.everstep.rotate_key(KeyId=old["KeyId"])
    same = ("Name", "Role", "Team", "Kind")
    assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert new["KeyId"] != old["KeyId"]
    assert (works(server, new), works(server, old)) == (True, False)
    assert refused(admin.everstep.rotate_key, KeyId=old["KeyId"])[0] == "ValidationException"


def test_an_overlap_lets_the_old_key_live_on_and_no_longer(hold: Hold, server: Server, sessions: Sessions):
    admin = hold("Admin")
    old = admin.everstep.create_key(Name="ci")
    new = admin.everstep.rotate_key(KeyId=old["KeyId"], OverlapSeconds=600)
    assert works(server, new)
    assert works(server, old)
    shown = {key["KeyId"]: key for key in admin.everstep.list_keys()["Keys"]}
    assert shown[old["KeyId"]]["Status"] == "Expiring"
    assert shown[old["KeyId"]]["ValidUntil"] - new["CreatedAt"] == timedelta(seconds=600)
    with unit_of_work(sessions) as session:
        session.get_one(Credential, old["KeyId"]).valid_until = datetime.now(UTC)
    # Not through the server, so that it holds the key for as long as it may, which is a second.
    deadline = time.monotonic() + FRESH_S + 5
    while works(server, old):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {key["KeyId"]: key["Status"] for key in admin.everstep.list_keys()["Keys"]}[old["KeyId"]] == "Expired"


def test_of_two_admins_one_can_be_revoked_and_not_both(server_alone: Server):
    with bootstrap(server_alone) as admin:
        keys = [key["KeyId"] for key in admin.get("/v1/keys").json()["Keys"]]
        of_token = next(key for key in keys if key.startswith("tok-"))
        admin.post("/v1/keys", json={"Name": "of-a-team", "Role": "Admin", "Team": "red"}).raise_for_status()
        admin.post("/v1/keys", json={"Name": "viewer", "Role": "Viewer"}).raise_for_status()
        assert admin.post(f"/v1/keys/{KEY_ID}/revoke").status_code == 200
        refused_ = admin.post(f"/v1/keys/{of_token}/revoke")
        assert (refused_.status_code, refused_.json()["code"]) == (422, "Invalid")
        assert "last one of an admin" in refused_.json()["detail"]
        assert admin.get("/v1/keys").status_code == 200


def test_an_admin_of_a_team_manages_its_teams_keys_only(hold: Hold):
    red, blue, everybody = hold("Admin", "red"), hold("Admin", "blue"), hold("Admin")
    made = red.everstep.create_key(Name="mine", Role="Operator")
    assert made["Team"] == "red"
    assert refused(red.everstep.create_key, Name="x", Team="blue")[0] == "AccessDeniedException"
    assert {key.get("Team") for key in red.everstep.list_keys()["Keys"]} == {"red"}
    for theirs in (blue.key_id, blue.token_id, everybody.key_id, KEY_ID):
        for call in (red.everstep.rotate_key, red.everstep.revoke_key):
            assert refused(call, KeyId=theirs)[0] == "ResourceNotFound"
    red.everstep.rotate_key(KeyId=made["KeyId"])
    assert everybody.everstep.revoke_key(KeyId=red.key_id)["Status"] == "Revoked"


@pytest.mark.parametrize("wish", [{"Name": "a b"}, {"Name": ""}, {"Name": "x", "Role": "Root"}, {"Name": "x", "Team": "-"}, {}])
def test_a_key_that_cannot_be_given_is_refused_in_words(server: Server, wish: dict):
    with bootstrap(server) as admin:
        refusal = admin.post("/v1/keys", json=wish)
    assert refusal.status_code == 422
    assert refusal.json()["violations"]


def test_the_use_of_a_key_is_remembered_once_a_minute(hold: Hold, sessions: Sessions):
    holder = hold("Viewer")

    def last_used(key_id: str) -> datetime | None:
        with sessions() as session:
            return session.get_one(Credential, key_id).last_used

    assert last_used(holder.key_id) is None
    holder.sagemaker.list_clusters()
    first = last_used(holder.key_id)
    assert first is not None
    holder.sagemaker.list_clusters()
    assert last_used(holder.key_id) == first
    with unit_of_work(sessions) as session:
        session.get_one(Credential, holder.key_id).last_used = first - timedelta(minutes=2)
    # The server holds the key for a second, in which it does not look at the row.
    deadline = time.monotonic() + FRESH_S + 5
    while last_used(holder.key_id) < first:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        holder.sagemaker.list_clusters()
