"""docker-compose.yml and the Dockerfile: what a schema cannot see. Neither is built here."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("everstep")}
VARIABLE = re.compile(r"\$\{(\w+)(:?[-?][^}]*)?\}")


def test_the_file_follows_the_compose_specification():
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_it_has_every_part_of_the_control_plane():
    assert set(SERVICES) == {"postgres", "valkey", "migrate", "api", "worker-fast", "worker-slow", "beat", "relay"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_depends_only_on_services_that_can_meet_the_condition(name):
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert needed in SERVICES
        condition = how["condition"]
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[needed], f"{name} waits for the health of {needed}, which has no check"
        if condition == "service_completed_successfully":
            assert SERVICES[needed]["restart"] == "no", f"{needed} never completes: it is restarted"


def test_every_volume_that_is_used_is_declared_and_every_declared_one_is_used():
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_every_variable_has_a_default_or_says_that_it_must_be_set():
    for found in VARIABLE.finditer((ROOT / "docker-compose.yml").read_text()):
        assert found[2], f"{found[0]} would silently be empty"


def test_only_the_api_is_published_and_only_on_loopback():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": ["127.0.0.1:8600:8600"]}


@pytest.mark.parametrize("name", OURS)
def test_a_command_names_a_module_that_exists(name):
    command = OURS[name]["command"]
    assert command[:2] == ["python", "-m"]
    modules = [command[2], *(word.split(":")[0] for word in command if re.fullmatch(r"(api|workers)\.\w+(:\w+)?", word))]
    for module in modules:
        if module.split(".")[0] in {"api", "workers"}:
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
        else:
            assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_a_service_are_those_of_the_embedded_stack(name):
    settings = OURS[name]["environment"]
    assert {"EVERSTEP_DATABASE_URL", "EVERSTEP_BROKER_URL", "EVERSTEP_OBJECT_STORE_URL", "EVERSTEP_MASTER_KEY"} <= set(settings)
    assert all(word.startswith("EVERSTEP_") for word in settings)


def test_the_image_copies_only_what_is_in_the_checkout_and_not_ignored():
    ignored = set((ROOT / ".dockerignore").read_text().split())
    for words in instructions("COPY"):
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert source not in ignored


def test_the_image_does_not_run_as_root():
    assert instructions("USER")[-1] != ["root"]


def test_the_image_has_every_package_that_its_commands_need():
    copied = {words[-1] for words in instructions("COPY")}
    assert {"api", "workers", "models", "migrations", "agent", "everstep", "alembic.ini"} <= copied | {
        word for words in instructions("COPY") if words[-1] == "./" for word in words[:-1]
    }


def instructions(kind):
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith(f"{kind} ")]


def test_the_provider_that_it_asks_for_is_one_that_there_is():
    (asked,) = {service["environment"]["EVERSTEP_PROVIDER"] for service in OURS.values()}
    name = asked.removeprefix("${EVERSTEP_PROVIDER:-").removesuffix("}")
    assert (ROOT / "workers" / "providers" / f"{name}.py").exists()


def test_workers_see_each_others_local_nodes():
    assert OURS["worker-slow"]["pid"] == OURS["worker-slow"]["network_mode"] == "service:worker-fast"
