from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from tests.workers.providers.contract import ProviderContract, release_for_good, spec
from tests.workers.providers.ec2_front import IMAGE, REGION, client
from workers.providers.base import (
    Disk,
    HostNotFound,
    HostRef,
    Market,
    NoCapacity,
    ProviderError,
    Refused,
    Site,
    Throttled,
    Volume,
)
from workers.providers.bootstrap import bundle_checksum
from workers.providers.ec2 import Ec2Provider
from workers.providers.ec2_calls import Calls
from workers.providers.ec2_options import Ec2Options
from workers.providers.ec2_shortages import Shortages

TYPE = "c5.large"


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(front) -> Clock:
    front.now = clock = Clock()
    return clock


@pytest.fixture
def make(door, clock):
    """Providers of one control plane, unless another one is named: each is a worker that knows nothing of the others."""
    plane = uuid.uuid4().hex

    def make(
        *, pause_s: float = 10.0, plane: str = plane, tries: int = 1, page_size: int = 500, settles_s: float = 60.0
    ) -> Ec2Provider:
        options = Ec2Options(plane=plane, images={"*": IMAGE, "2.0.0": "ami-03cf127a"}, settles_within=timedelta(seconds=settles_s))
        return Ec2Provider(
            Calls(client(door, tries=tries), clock=clock),
            options,
            lambda spec: f"#!/bin/sh\n# {spec.claim}\n".encode(),
            clock=clock,
            page_size=page_size,
            shortages=Shortages(clock, first=timedelta(seconds=pause_s)),
        )

    return make


@pytest.fixture
def provider(make):
    return make()


@pytest.fixture
def subnets(moto_url) -> dict[str, str]:
    """By zone."""
    listed = client(moto_url).describe_subnets()["Subnets"]
    return {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in listed}


def sites(subnets, *letters: str) -> tuple[Site, ...]:
    return tuple(Site(subnets[f"{REGION}{letter}"]) for letter in letters)


def fill(front, zone: str, *, room: int = 0, market: str = "on-demand", kind: str = TYPE) -> None:
    front.limits[kind, f"{REGION}{zone}", market] = room


class TestEc2(ProviderContract):
    @pytest.fixture
    def provider(self, make, front):
        front.total = 2
        return make(pause_s=0)

    @pytest.fixture
    def volume_id(self, moto_url):
        return client(moto_url).create_volume(AvailabilityZone=f"{REGION}a", Size=1)["VolumeId"]

    @pytest.fixture
    def interface_id(self, moto_url, subnets):
        return client(moto_url).create_network_interface(SubnetId=subnets[f"{REGION}a"])["NetworkInterface"]["NetworkInterfaceId"]

    @pytest.fixture
    def sites(self, subnets):
        return (Site(subnets[f"{REGION}b"], zone=f"{REGION}b"),)


class TestEc2WithPagesOfOneAndSlowEnds(ProviderContract):
    """What has been asked to end is ending for a while, by a clock that runs on with each look."""

    @pytest.fixture
    def provider(self, make, front, clock):
        front.total, front.ends_after = 2, 3.0

        def running() -> float:
            clock.at += 0.5
            return clock.at

        front.now = running
        return make(pause_s=0, page_size=5)

    volume_id, interface_id, sites = TestEc2.volume_id, TestEc2.interface_id, TestEc2.sites


# ---------------------------------------------------------------------------------------------------------------- a launch is one


def test_a_launch_whose_answer_was_lost_is_found_by_its_token_though_nothing_is_listed(front, make):
    front.late = 5
    front.lost["RunInstances"] = 1
    wish = spec()
    with pytest.raises(ProviderError):
        make().launch(wish)
    assert make().launch(wish).is_alive
    assert len(front.living) == 1


def test_a_lost_launch_is_not_made_again_elsewhere_by_a_worker_that_prefers_another_place(front, make, clock, subnets):
    front.late = 5
    front.lost["RunInstances"] = 1
    wish = replace(spec(), sites=sites(subnets, "a", "b"))
    with pytest.raises(ProviderError):
        make().launch(wish)
    other = make()
    with pytest.raises(ProviderError, match="not listed yet"):
        other.launch(replace(wish, sites=sites(subnets, "b", "a")))
    clock.at += 5
    assert other.launch(replace(wish, sites=sites(subnets, "b", "a"))).zone == f"{REGION}a"
    assert len(front.living) == 1


def test_a_token_that_came_to_nothing_is_given_up_once_listings_have_settled(front, make, clock):
    wish = spec()
    make().launch(wish)
    front.living.clear()
    front._shown_at[next(iter(front._shown_at))] = 1e9  # never listed: as if it had never been
    here, changed = make(settles_s=60), replace(wish, tags={"everstep:cluster": "c2"})
    for _ in range(2):
        with pytest.raises(ProviderError, match="not listed yet"):
            here.launch(changed)
        clock.at += 61
    assert here.launch(changed).is_alive


def test_of_two_instances_of_one_claim_the_younger_one_is_ended(front, make):
    front.doubled["RunInstances"] = 1
    wish = spec()
    here = make()
    here.launch(wish)
    assert len(here.hosts()) == 2
    kept = make().launch(wish)
    assert [host.instance_id for host in here.hosts()] == [kept.instance_id]
    assert set(front.living) == {kept.instance_id}


def test_releasing_one_of_two_instances_of_a_claim_leaves_the_other(front, provider):
    front.doubled["RunInstances"] = 1
    wish = spec()
    provider.launch(wish)
    kept, extra = provider.hosts()
    release_for_good(provider, HostRef(wish.claim, extra.instance_id))
    assert [host.instance_id for host in provider.hosts()] == [kept.instance_id]


def test_a_release_without_an_id_ends_every_instance_of_the_claim(front, provider):
    front.doubled["RunInstances"] = 1
    wish = spec()
    provider.launch(wish)
    release_for_good(provider, HostRef(wish.claim))
    assert not front.living


def test_a_release_is_over_when_the_instance_has_ended_and_not_when_it_is_ending(front, provider, clock):
    front.ends_after = 30
    wish = spec()
    provider.launch(wish)
    for _ in range(3):
        provider.release(HostRef(wish.claim))
        assert not provider.describe(HostRef(wish.claim)).is_alive
    assert len(front.asked_for("TerminateInstances")) == 1
    clock.at += 31
    with pytest.raises(HostNotFound):
        provider.release(HostRef(wish.claim))


# ---------------------------------------------------------------------------------------------------------------- what is ours


def test_what_another_control_plane_launched_is_neither_seen_nor_ended(front, make):
    wish = spec()
    theirs = make(plane="another").launch(wish)
    ours = make()
    assert ours.hosts() == ()
    for ref in (HostRef(wish.claim), HostRef(wish.claim, theirs.instance_id)):
        with pytest.raises(HostNotFound):
            ours.release(ref)
    assert ours.launch(wish).instance_id != theirs.instance_id
    release_for_good(ours, HostRef(wish.claim))
    assert set(front.living) == {theirs.instance_id}


def test_an_instance_without_our_tags_is_left_alone_even_by_its_id(moto_url, provider):
    there = client(moto_url).run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    with pytest.raises(HostNotFound):
        provider.release(HostRef("somebody's", there))
    assert provider.hosts() == ()


def test_a_listing_of_many_pages_is_read_to_its_end(front, make):
    provider = make(page_size=5)
    claims = {provider.launch(spec()).claim for _ in range(12)}
    assert {host.claim for host in provider.hosts()} == claims
    assert any("NextToken" in wish for wish in front.asked_for("DescribeInstances"))


def test_hosts_that_are_listed_late_are_not_found_before(front, provider, clock):
    front.late = 5
    wish = spec()
    host = provider.launch(wish)
    assert provider.hosts() == ()
    with pytest.raises(HostNotFound):
        provider.describe(HostRef(wish.claim, host.instance_id))
    clock.at += 5
    assert provider.describe(HostRef(wish.claim, host.instance_id)).instance_id == host.instance_id


# ---------------------------------------------------------------------------------------------------------------- capacity


def test_a_place_that_has_none_is_followed_by_the_next_one_and_not_asked_again_for_a_while(front, provider, clock, subnets):
    fill(front, "a")
    places = sites(subnets, "a", "b")
    assert provider.launch(replace(spec(), sites=places)).zone == f"{REGION}b"
    assert len(front.asked_for("RunInstances")) == 2
    assert provider.launch(replace(spec(), sites=places)).zone == f"{REGION}b"
    assert len(front.asked_for("RunInstances")) == 3
    fill(front, "a", room=5)
    clock.at += 11
    assert provider.launch(replace(spec(), sites=places)).zone == f"{REGION}a"


def test_want_is_remembered_for_longer_each_time_and_told_in_the_same_words(front, provider, clock, subnets):
    fill(front, "a")
    wish = replace(spec(), sites=sites(subnets, "a"))
    told = set()

    def asked_after(seconds: float) -> bool:
        clock.at += seconds
        before = len(front.asked_for("RunInstances"))
        with pytest.raises(NoCapacity) as error:
            provider.launch(wish)
        told.add(str(error.value))
        return len(front.asked_for("RunInstances")) > before

    assert [asked_after(seconds) for seconds in (0, 9, 2, 10, 9, 2)] == [True, False, True, False, False, True]
    assert told == {"EC2 has no ml.c5.large to be had in us-east-1a (InsufficientInstanceCapacity)."}


def test_want_of_one_type_or_market_is_not_that_of_another(front, provider, subnets):
    fill(front, "a", market="spot")
    wish = replace(spec(), sites=sites(subnets, "a"), market=Market.SPOT)
    with pytest.raises(NoCapacity, match=r"ml.c5.large on spot"):
        provider.launch(wish)
    assert provider.launch(replace(spec(), sites=wish.sites)).is_alive
    assert provider.launch(replace(spec(), sites=wish.sites, market=Market.SPOT, instance_type="ml.m5.large")).is_alive


def test_two_subnets_of_one_zone_are_one_place_in_memory(front, provider, moto_url, subnets):
    there = client(moto_url)
    vpc = there.describe_subnets(SubnetIds=[subnets[f"{REGION}a"]])["Subnets"][0]["VpcId"]
    other = there.create_subnet(VpcId=vpc, CidrBlock="172.31.112.0/24", AvailabilityZone=f"{REGION}a")["Subnet"]["SubnetId"]
    fill(front, "a")
    with pytest.raises(NoCapacity):
        provider.launch(replace(spec(), sites=(*sites(subnets, "a"), Site(other))))
    assert len(front.asked_for("RunInstances")) == 1
    there.delete_subnet(SubnetId=other)


@pytest.mark.parametrize("code", ["InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"])
def test_a_limit_of_the_account_is_not_tried_around_by_other_zones(front, provider, subnets, code):
    front.errors["RunInstances"] = [(code, "You have requested more than you may.")]
    with pytest.raises(NoCapacity, match=code):
        provider.launch(replace(spec(), sites=sites(subnets, "a", "b", "c")))
    assert len(front.asked_for("RunInstances")) == 1


def test_a_type_that_no_zone_offers_is_refused_and_one_that_some_zone_does_is_not(front, provider, subnets):
    words = ("Unsupported", "Your requested instance type is not supported in your requested Availability Zone.")
    front.errors["RunInstances"] = [words]
    assert provider.launch(replace(spec(), sites=sites(subnets, "a", "b"))).zone == f"{REGION}b"
    front.errors["RunInstances"] = [words] * 2
    with pytest.raises(Refused, match="name subnets of other zones"):
        provider.launch(replace(spec(), sites=sites(subnets, "c", "d")))


# ---------------------------------------------------------------------------------------------------------------- errors


def test_after_a_throttling_nothing_is_asked_for_a_while_that_grows(front, provider, clock):
    front.throttled = 1
    with pytest.raises(Throttled) as first:
        provider.hosts()
    asked = len(front.asked)
    with pytest.raises(Throttled, match="waits"):
        provider.launch(spec())
    assert len(front.asked) == asked
    clock.at += 1.1
    front.throttled = 1
    with pytest.raises(Throttled) as second:
        provider.hosts()
    assert (first.value.after, second.value.after) == (timedelta(seconds=1), timedelta(seconds=2))
    clock.at += 2.1
    assert provider.hosts() == ()


def test_one_throttled_call_is_tried_again_by_the_client_and_nobody_hears_of_it(front, make):
    front.throttled = 1
    assert make(tries=3).hosts() == ()


@pytest.mark.parametrize(
    "code, said, remedy",
    [
        ("UnauthorizedOperation", "You are not authorized. Encoded authorization failure message: AAAA", "docs/provider-ec2.md"),
        ("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist", "EVERSTEP_EC2_IMAGE"),
        ("InvalidLaunchTemplateName.NotFoundException", "No such template.", "EVERSTEP_EC2_LAUNCH_TEMPLATE"),
        ("InvalidParameterValue", "Invalid IAM Instance Profile name", "EVERSTEP_EC2_INSTANCE_PROFILE"),
        ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-1' does not exist", "EVERSTEP_EC2_SUBNETS"),
        ("InvalidGroup.NotFound", "The security group 'sg-1' does not exist", "SecurityGroupIds"),
        ("InvalidParameterCombination", "Network interfaces and an instance-level subnet", "EVERSTEP_EC2_"),
    ],
)
def test_what_an_operator_must_act_on_says_what_to_look_at(front, provider, code, said, remedy):
    front.errors["RunInstances"] = [(code, said)]
    with pytest.raises(Refused) as error:
        provider.launch(spec())
    assert remedy in str(error.value)
    assert "AAAA" not in str(error.value)


def test_an_error_that_is_not_known_is_tried_again_later(front, provider):
    front.errors["RunInstances"] = [("InternalError", "An internal error has occurred")]
    with pytest.raises(ProviderError) as error:
        provider.launch(spec())
    assert type(error.value) is ProviderError
    assert provider.launch(spec()).is_alive


def test_a_door_that_does_not_answer_is_no_reason_to_give_up(make, front):
    front.lost["DescribeInstances"] = 1
    with pytest.raises(ProviderError, match="was not answered"):
        make().hosts()


# ---------------------------------------------------------------------------------------------------------------- what is asked for


def test_a_launch_asks_for_what_the_group_and_the_settings_say(front, door, clock, moto_url, subnets):
    there = client(moto_url)
    group = there.create_security_group(GroupName=uuid.uuid4().hex, Description="of tests")["GroupId"]
    template = f"template-{uuid.uuid4().hex}"
    there.create_launch_template(LaunchTemplateName=template, LaunchTemplateData={"InstanceType": "m5.large"})
    options = Ec2Options(plane=uuid.uuid4().hex, images={"*": IMAGE}, launch_template=f"{template}:1", security_groups=(group,))
    provider = Ec2Provider(Calls(client(door)), options, lambda _: b"#!/bin/sh\n")
    root, data = Disk(100, kms_key="alias/mine", is_root=True), Disk(500, mount="/opt/sagemaker")
    wish = replace(spec(), market=Market.SPOT, sites=sites(subnets, "b"), disks=(root, data), threads_per_core=1, image="1.0.0")
    host = provider.launch(wish)
    (asked,) = front.asked_for("RunInstances")
    assert (asked["InstanceType"], asked["ImageId"], asked["SubnetId"]) == (TYPE, IMAGE, subnets[f"{REGION}b"])
    assert (asked["LaunchTemplate.LaunchTemplateName"], asked["LaunchTemplate.Version"]) == (template, "1")
    assert asked["SecurityGroupId.1"] == group
    assert asked["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert asked["MetadataOptions.HttpTokens"] == "required"
    assert (asked["CpuOptions.CoreCount"], asked["CpuOptions.ThreadsPerCore"]) == ("1", "1")
    assert (asked["BlockDeviceMapping.1.DeviceName"], asked["BlockDeviceMapping.1.Ebs.KmsKeyId"]) == ("/dev/sda1", "alias/mine")
    assert (asked["BlockDeviceMapping.2.DeviceName"], asked["BlockDeviceMapping.2.Ebs.VolumeSize"]) == ("/dev/sdf", "500")
    assert (host.market, host.zone, host.image, host.volumes) == (Market.SPOT, f"{REGION}b", "1.0.0", ())
    assert {asked[f"TagSpecification.{number}.ResourceType"] for number in (1, 2, 3)} == {"instance", "volume", "network-interface"}


def test_an_instance_is_told_by_a_tag_which_bundle_to_trust_and_anew_at_each_restart(front, make, moto_url):
    served = ["1" * 64]
    provider = replace(make(), checksum=lambda _: served[-1])
    wish = spec()
    host = provider.launch(wish)

    def told() -> dict[str, str]:
        (reservation,) = client(moto_url).describe_instances(InstanceIds=[host.instance_id])["Reservations"]
        return {tag["Key"]: tag["Value"] for tag in reservation["Instances"][0]["Tags"]}

    assert told()["everstep:bundle"] == "1" * 64
    assert "everstep:bundle" not in provider.describe(HostRef(wish.claim)).tags
    served.append("2" * 64)  # another release
    provider.reimage(HostRef(wish.claim), replace(wish, start=1))
    assert told()["everstep:bundle"] == "2" * 64


def test_a_control_plane_that_does_not_tell_the_checksum_launches_nothing(front, make, moto_url):
    provider = replace(make(), checksum=partial(bundle_checksum, "http://127.0.0.1:9"))
    with pytest.raises(ProviderError, match="does not tell the bundle's checksum") as refused:
        provider.launch(spec())
    assert not isinstance(refused.value, NoCapacity | Refused)
    assert front.asked_for("RunInstances") == []


def test_neither_tags_nor_errors_hold_the_boot_token(front, provider):
    host = provider.launch(spec())
    (asked,) = front.asked_for("RunInstances")
    assert "boot-token-of-the-tests" not in str({name: value for name, value in asked.items() if name != "UserData"})
    assert "boot-token-of-the-tests" not in str(host)


def test_threads_that_a_type_does_not_have_are_refused(provider):
    with pytest.raises(Refused, match="ThreadsPerCore is 2"):
        provider.launch(replace(spec(), instance_type="ml.c6g.large", threads_per_core=2))


# ---------------------------------------------------------------------------------------------------------------- restarts and volumes


def test_a_restart_tells_the_instance_its_start_before_it_is_restarted(front, provider):
    wish = spec()
    provider.launch(wish)
    provider.reimage(HostRef(wish.claim), replace(wish, start=1, image="2.0.0"))
    names = [name for name, _ in front.asked]
    assert names[-3:] == ["CreateTags", "CreateReplaceRootVolumeTask", "CreateTags"]
    assert front.asked_for("CreateReplaceRootVolumeTask")[0]["ImageId"] == "ami-03cf127a"
    told, done = front.asked_for("CreateTags")
    assert told["Tag.1.Key"] == "everstep:start"
    assert "everstep:started" in done.values()


def test_a_restart_that_was_cut_short_is_made_again(front, make):
    wish = spec()
    make().launch(wish)
    front.lost["RebootInstances"] = 1
    again = replace(wish, start=1)
    with pytest.raises(ProviderError):
        make().reboot(HostRef(wish.claim), again)
    assert make().describe(HostRef(wish.claim)).start == 0
    assert make().reboot(HostRef(wish.claim), again).start == 1
    make().reboot(HostRef(wish.claim), again)
    assert len(front.asked_for("RebootInstances")) == 2


def test_an_image_that_cannot_be_replaced_is_refused_in_words(front, provider):
    wish = spec()
    provider.launch(wish)
    front.errors["CreateReplaceRootVolumeTask"] = [("UnsupportedOperation", "Bare metal instances are not supported.")]
    with pytest.raises(Refused, match="Bare metal"):
        provider.reimage(HostRef(wish.claim), replace(wish, start=1))


def test_a_volume_that_does_not_exist_is_refused(provider):
    wish = spec()
    provider.launch(wish)
    with pytest.raises(Refused, match="check the volume"):
        provider.attach_volume(HostRef(wish.claim), Volume("vol-0123456789abcdef0", "/dev/sdg"))


def test_an_attachment_whose_answer_was_lost_is_ours(front, provider, moto_url):
    wish = spec()
    provider.launch(wish)
    volume = Volume(client(moto_url).create_volume(AvailabilityZone=f"{REGION}a", Size=1)["VolumeId"], "/dev/sdg")
    front.lost["AttachVolume"] = 1
    with pytest.raises(ProviderError):
        provider.attach_volume(HostRef(wish.claim), volume)
    provider.attach_volume(HostRef(wish.claim), volume)
    assert provider.describe(HostRef(wish.claim)).volumes == (volume,)
