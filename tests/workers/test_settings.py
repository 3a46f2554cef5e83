from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest

from models.clock import WallClock
from workers.plane import LANES, build
from workers.providers import registry
from workers.settings import SLOW, Settings, SettingsError, celery_settings

GIVEN = {
    "EVERSTEP_DATABASE_URL": "postgresql+psycopg://e:e@127.0.0.1/e",
    "EVERSTEP_BROKER_URL": "redis://127.0.0.1",
    "EVERSTEP_MASTER_KEY": base64.b64encode(bytes(32)).decode(),
    "EVERSTEP_OBJECT_STORE_URL": "file:///store",
    "EVERSTEP_HOME_DIR": "/home",
    "EVERSTEP_API_URL": "http://127.0.0.1:8600",
}


@pytest.mark.parametrize("missing", sorted(GIVEN))
def test_a_variable_that_is_missing_is_named(missing):
    with pytest.raises(SettingsError, match=missing):
        Settings.from_environ({name: value for name, value in GIVEN.items() if name != missing})


@pytest.mark.parametrize("key", ["short", base64.b64encode(b"short").decode()])
def test_a_master_key_that_is_none_is_refused(key):
    with pytest.raises(SettingsError, match="MASTER_KEY"):
        Settings.from_environ({**GIVEN, "EVERSTEP_MASTER_KEY": key})


def test_patience_is_given_in_seconds():
    assert Settings.from_environ({**GIVEN, "EVERSTEP_NODE_PATIENCE_S": "2.5"}).node_patience == timedelta(seconds=2.5)
    with pytest.raises(SettingsError, match="NODE_PATIENCE_S is 'long'"):
        Settings.from_environ({**GIVEN, "EVERSTEP_NODE_PATIENCE_S": "long"})


def test_a_local_nodes_environment_holds_nothing_of_the_control_planes():
    settings = Settings.from_environ({**GIVEN, "PATH": "/bin", "EVERSTEP_STACK_HOME": "/home"})
    assert dict(settings.environ) == {"PATH": "/bin"}


def test_secrets_are_not_shown():
    assert "redis" in repr(Settings.from_environ(GIVEN))
    assert "AAAA" not in repr(Settings.from_environ(GIVEN))
    assert "master_key" not in repr(Settings.from_environ(GIVEN))


def test_an_unknown_provider_is_named():
    with pytest.raises(SettingsError, match="cloud9"):
        registry.provider(Settings.from_environ({**GIVEN, "EVERSTEP_PROVIDER": "cloud9"}))


def test_local_hosts_live_in_the_home():
    assert registry.provider(Settings.from_environ(GIVEN)).directory == Path("/home/hosts")


def test_no_task_may_run_longer_than_it_takes_for_its_message_to_come_again():
    told = celery_settings("redis://127.0.0.1")
    again = told["broker_transport_options"]["visibility_timeout"]
    assert told["task_soft_time_limit"] < told["task_time_limit"] < again


def test_only_what_calls_outside_runs_in_the_slow_lane(sessions):
    reconcilers = build(Settings.from_environ(GIVEN), sessions, WallClock()).driver.reconcilers
    assert set(reconcilers) == set(LANES)
    assert {kind for kind, lane in LANES.items() if lane == SLOW} == {
        kind for kind, reconciler in reconcilers.items() if reconciler.ACTS_OUTSIDE
    }
