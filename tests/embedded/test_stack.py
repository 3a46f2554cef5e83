"""Which services a stack has and what they are told, as values: nothing is started."""

from pathlib import Path

import pytest

from everstep.embedded import credentials, stack
from everstep.embedded.home import Home
from everstep.embedded.settings import StackSettings
from everstep.embedded.state import StackState

NOW = StackState(port=8600, database_port=1001, broker_port=1002)


@pytest.fixture
def home(tmp_path):
    made = Home.at(tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def keys(home):
    return credentials.load_or_create(home)


def told(home, keys, environ):
    settings = StackSettings.from_environ(environ)
    embedded = stack.servers(home, NOW, keys, settings)
    return stack.environment(home, NOW, keys, settings, embedded), [service.name for service in stack.server_services(embedded)]


def test_an_empty_environment_means_the_embedded_servers(home, keys):
    env, services = told(home, keys, {})
    assert services == ["postgres", "valkey"]
    assert env["EVERSTEP_DATABASE_URL"] == f"postgresql+psycopg://everstep:{keys.database_password}@127.0.0.1:1001/everstep"
    assert env["EVERSTEP_BROKER_URL"] == f"redis://:{keys.broker_password}@127.0.0.1:1002/0"
    assert env["EVERSTEP_OBJECT_STORE_URL"] == home.store.as_uri()
    assert env["EVERSTEP_API_URL"] == "http://127.0.0.1:8600"
    assert (env["EVERSTEP_PROVIDER"], env["EVERSTEP_REGION"], env["EVERSTEP_ACCOUNT_ID"]) == ("local", "us-east-1", "123456789012")
    assert env["EVERSTEP_MASTER_KEY"] == keys.master_key


def test_servers_that_the_operator_names_are_used_and_not_embedded(home, keys):
    named = {
        "EVERSTEP_DATABASE_URL": "postgresql+psycopg://u:p@db/x",
        "EVERSTEP_BROKER_URL": "redis://broker/0",
        "EVERSTEP_OBJECT_STORE_URL": "s3://bucket/prefix",
        "EVERSTEP_REGION": "eu-west-1",
        "EVERSTEP_S3_ENDPOINT_URL": "http://s3",
    }
    env, services = told(home, keys, named)
    assert services == []
    assert {name: env[name] for name in named} == named


def test_the_control_plane_starts_after_its_database_is_migrated(home, keys):
    env, names = told(home, keys, {})
    services = {service.name: service for service in stack.control_plane(Path("/checkout"), home, 8600, env, names)}
    assert list(services) == ["migrate", "api", "worker-fast", "worker-slow", "beat", "relay"]
    assert services["migrate"].needs == ("postgres", "valkey")
    assert all(service.needs == ("postgres", "valkey", "migrate") for name, service in services.items() if name != "migrate")


def test_no_secret_is_an_argument_of_a_command(home, keys):
    env, names = told(home, keys, {})
    secrets = {keys.token, keys.secret_access_key, keys.master_key, keys.database_password, keys.broker_password}
    for service in stack.control_plane(Path("/checkout"), home, 8600, env, names):
        assert not [word for word in service.command().argv if any(secret in word for secret in secrets)]


def test_migrations_are_left_out_only_while_these_very_revisions_are_applied(home, keys, tmp_path):
    env, _ = told(home, keys, {})
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (versions / "0001.py").write_text("one")
    mark = home.root / "postgres" / "migrated"
    mark.parent.mkdir()
    upgrade = stack.Command(argv=["alembic", "upgrade", "head"], env=env)

    first = stack.migration(tmp_path, mark, upgrade, ())
    assert first.command() is upgrade
    first.finish()
    assert stack.migration(tmp_path, mark, upgrade, ()).command().argv == ["true"]
    (versions / "0002.py").write_text("two")
    assert stack.migration(tmp_path, mark, upgrade, ()).command() is upgrade


def test_the_mark_of_migrations_is_lost_with_the_data_it_speaks_of(home, keys, tmp_path):
    env, _ = told(home, keys, {"EVERSTEP_DATABASE_URL": "postgresql+psycopg://elsewhere/x"})
    mark = home.root / "postgres" / "migrated"
    stack.migration(tmp_path, mark, stack.Command(argv=["alembic"], env=env), ()).finish()
    assert not mark.exists(), "somebody else's database may be replaced behind our back"
