from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import pytest

from models import catalogue
from tests.workers.providers.contract import spec
from tests.workers.providers.ec2_front import client
from workers.providers import registry
from workers.providers.base import Disk
from workers.providers.ec2_calls import Calls
from workers.providers.ec2_errors import meaning
from workers.providers.ec2_options import Ec2Options
from workers.providers.ec2_prices import Ec2Prices
from workers.providers.ec2_requests import ec2_type, token
from workers.providers.ec2_user_data import UserData
from workers.providers.prices import ListPrices
from workers.settings import Settings, SettingsError

TOLD = MappingProxyType(
    {
        "EVERSTEP_DATABASE_URL": "postgresql://here/everstep",
        "EVERSTEP_BROKER_URL": "redis://here",
        "EVERSTEP_MASTER_KEY": base64.b64encode(b"k" * 32).decode(),
        "EVERSTEP_OBJECT_STORE_URL": "s3://bucket/prefix",
        "EVERSTEP_HOME_DIR": "/nowhere",
        "EVERSTEP_API_URL": "http://10.0.0.5:8000",
        "EVERSTEP_PROVIDER": "ec2",
        "EVERSTEP_EC2_IMAGE": "ami-0123456789abcdef0",
    }
)


def options(**changes: str) -> Ec2Options:
    return Ec2Options.read(Settings.from_environ({**TOLD, **changes}))


def test_images_are_told_by_release_and_a_release_may_be_an_image_itself():
    told = options(EVERSTEP_EC2_IMAGE="1.0.0=ami-1, 2.0.0=ami-2,*=ami-3")
    assert [told.image(release) for release in ("1.0.0", "2.0.0", "3.0.0", None)] == ["ami-1", "ami-2", "ami-3", "ami-3"]
    assert told.image("ami-4") == "ami-4"


def test_lists_are_read_without_their_blanks_and_nothing_is_set_by_default():
    told = options(EVERSTEP_EC2_SUBNETS="subnet-1, subnet-2", EVERSTEP_EC2_SECURITY_GROUPS="sg-1", EVERSTEP_EC2_SETTLES_S="5")
    assert (told.subnets, told.security_groups, told.settles_within) == (("subnet-1", "subnet-2"), ("sg-1",), timedelta(seconds=5))
    assert (options().subnets, options().launch_template, options().settles_within) == ((), None, timedelta(seconds=60))


def test_the_name_of_a_control_plane_follows_from_its_master_key_and_does_not_tell_it():
    other = base64.b64encode(b"j" * 32).decode()
    assert options().plane == options().plane
    assert options().plane != options(EVERSTEP_MASTER_KEY=other).plane
    assert TOLD["EVERSTEP_MASTER_KEY"] not in options().plane
    assert options(EVERSTEP_EC2_PLANE="mine").plane == "mine"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"EVERSTEP_EC2_IMAGE": ""}, "EVERSTEP_EC2_IMAGE or EVERSTEP_EC2_LAUNCH_TEMPLATE"),
        ({"EVERSTEP_EC2_IMAGE": "ubuntu"}, "EVERSTEP_EC2_IMAGE has 'ubuntu'"),
        ({"EVERSTEP_EC2_IMGAE": "ami-1"}, "EVERSTEP_EC2_IMGAE is not known"),
        ({"EVERSTEP_EC2_SETTLES_S": "soon"}, "EVERSTEP_EC2_SETTLES_S is 'soon'"),
        ({"EVERSTEP_API_URL": "http://127.0.0.1:8000"}, "EVERSTEP_API_URL"),
        ({"EVERSTEP_OBJECT_STORE_URL": "file:///data"}, "EVERSTEP_OBJECT_STORE_URL"),
    ],
)
def test_a_setting_that_cannot_work_is_named(changes, words):
    with pytest.raises(SettingsError, match=words):
        registry.provider(Settings.from_environ({**TOLD, **changes}))


def test_the_settings_make_a_provider_whose_nodes_get_none_of_our_keys():
    ours = {"AWS_SECRET_ACCESS_KEY": "secret-of-ours", "EVERSTEP_HEALTH_DISK_MIB_S": "100", "PATH": "/bin"}
    made = registry.provider(Settings.from_environ({**TOLD, **ours}))
    script = made.user_data.script(spec())  # type: ignore[attr-defined]
    assert "secret-of-ours" not in script
    assert TOLD["EVERSTEP_MASTER_KEY"] not in script
    assert "EVERSTEP_HEALTH_DISK_MIB_S" in script


def test_user_data_fits_and_is_the_same_each_time():
    user_data = UserData("http://10.0.0.5:8000", "s3://bucket/prefix")
    wish = replace(spec(), disks=(Disk(500, mount="/opt/sagemaker"),))
    assert user_data(wish) == user_data(wish)
    assert len(user_data(wish)) < 16 * 1024
    script = gzip.decompress(user_data(wish)).decode()
    assert script.startswith("#!/bin/sh\n")
    told = json.loads(next(line for line in script.splitlines() if line.startswith('{"api_url"')))
    assert (told["start_tag"], told["bundle_tag"], told["claim"]) == ("everstep:start", "everstep:bundle", wish.claim)
    assert told["environ"]["EVERSTEP_IMDS_URL"] == "http://169.254.169.254"


@pytest.mark.parametrize("disks", [(), (Disk(500, mount="/opt/sagemaker"),)])
def test_user_data_is_a_script_that_a_shell_can_read(disks):
    script = UserData("http://10.0.0.5:8000", "s3://bucket/prefix").script(replace(spec(), disks=disks))
    assert ("mkfs" in script) is bool(disks)
    shell = shutil.which("sh")
    assert shell
    read = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("has_volume", [True, False])
def test_no_disk_is_formatted_where_a_volume_of_ours_is_there_already(tmp_path: Path, has_volume: bool):
    script = UserData("http://10.0.0.5:8000", "s3://bucket/prefix").script(replace(spec(), disks=(Disk(500, mount="/data"),)))
    formatting = script[script.index("mount_point=") : script.index("if blkid")]
    tools = {
        "blkid": f"exit {0 if has_volume else 2}",
        "lsblk": 'case "$1" in -dnpo) echo "/dev/none disk";; -no) echo none;; -dno) echo "Amazon Elastic Block Store";; esac',
        "mkfs.ext4": f'echo "$@" >>{tmp_path}/formatted',
        "sleep": "",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    shell = shutil.which("sh")
    assert shell
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([shell, "-eu"], input=formatting, text=True, capture_output=True, check=False, env=path, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    formatted = tmp_path / "formatted"
    assert (formatted.read_text() if formatted.exists() else "") == ("" if has_volume else "-q -L everstep /dev/none\n")


def test_every_type_of_the_catalogue_is_named_as_ec2_names_it():
    assert {ec2_type(name) for name in catalogue.names()} == {name.removeprefix("ml.") for name in catalogue.names()}
    assert ec2_type("ml.p5.48xlarge") == "p5.48xlarge"


def test_a_client_token_is_short_enough_and_of_one_claim_and_plane():
    tokens = {token(plane, claim, turn) for plane in ("a", "b") for claim in ("c", "d" * 100) for turn in (0, 12)}
    assert len(tokens) == 8
    assert max(map(len, tokens)) <= 64


def test_what_an_operator_reads_ends_with_what_to_do():
    assert str(meaning("RunInstances", "InvalidAMIID.NotFound", "There is none.")) == (
        "EC2's RunInstances says InvalidAMIID.NotFound: There is none. To do: check EVERSTEP_EC2_IMAGE, or the image of the release."
    )


# ---------------------------------------------------------------------------------------------------------------- prices


@pytest.fixture
def prices(door):
    return Ec2Prices(Calls(client(door)), ListPrices({"ml.p5.48xlarge": Decimal("55.04")}), page_size=2)


SINCE = datetime(2031, 5, 1, tzinfo=UTC)


def test_spot_prices_are_read_to_the_last_page_without_doubles(front, prices):
    front.prices = [
        ("p5.48xlarge", "us-east-1a", "2031-04-30T22:00:00Z", "20.100000"),
        ("p5.48xlarge", "us-east-1b", "2031-05-01T01:00:00Z", "19.000000"),
        ("p5.48xlarge", "us-east-1a", "2031-05-01T02:00:00Z", "21.500000"),
        ("p5.48xlarge", "us-east-1a", "2031-05-01T02:00:00Z", "21.500000"),
        ("c5.large", "us-east-1a", "2031-05-01T02:00:00Z", "0.03"),
    ]
    found = prices.spot(["ml.p5.48xlarge"], since=SINCE)
    assert [(price.zone, price.at.hour, price.per_hour) for price in found] == [
        ("us-east-1a", 22, Decimal("20.1")),
        ("us-east-1a", 2, Decimal("21.5")),
        ("us-east-1b", 1, Decimal(19)),
    ]
    assert {price.instance_type for price in found} == {"ml.p5.48xlarge"}
    asked = front.asked_for("DescribeSpotPriceHistory")
    assert len(asked) == 3
    assert {one["ProductDescription.1"] for one in asked} == {"Linux/UNIX"}


def test_without_types_nothing_is_asked_and_list_prices_are_those_of_the_list(front, prices):
    assert prices.spot([], since=SINCE) == ()
    assert (prices.on_demand("ml.p5.48xlarge"), prices.on_demand("ml.c5.large")) == (Decimal("55.04"), None)
    assert not front.asked
