"""What EC2's errors mean for us. Pure: a code and its words go in, an error that carries the policy comes out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workers.providers.base import HostNotFound, InUse, NoCapacity, ProviderError, Refused, Throttled

ACCESS = "EC2 does not let us: check the credentials of the workers against the policy in docs/provider-ec2.md"
_LONGEST = 300
_ENCODED = "Encoded authorization failure message"

SHORT_HERE = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "SpotMaxPriceTooLow",
        "Unsupported",
    }
)
"""One type in one place: another place may have it."""
SHORT_EVERYWHERE = frozenset({"InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded"})
"""The account's limit for the region: another zone does not help."""

_THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "EC2ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "InstanceRequestRateExceeded",
    }
)
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "UnauthorizedOperation": ACCESS,
        "AuthFailure": ACCESS,
        "InvalidClientTokenId": ACCESS,
        "SignatureDoesNotMatch": ACCESS,
        "OptInRequired": ACCESS,
        "Blocked": ACCESS,
        "InvalidAMIID": "check EVERSTEP_EC2_IMAGE, or the image of the release",
        "InvalidLaunchTemplate": "check EVERSTEP_EC2_LAUNCH_TEMPLATE",
        "InvalidIamInstanceProfile": "check EVERSTEP_EC2_INSTANCE_PROFILE",
        "InvalidSubnet": "check the Subnets of VpcConfig or OverrideVpcConfig, or EVERSTEP_EC2_SUBNETS",
        "InvalidGroup": "check the SecurityGroupIds of VpcConfig or OverrideVpcConfig, or EVERSTEP_EC2_SECURITY_GROUPS",
        "InvalidSecurityGroup": "check the SecurityGroupIds of VpcConfig or OverrideVpcConfig, or EVERSTEP_EC2_SECURITY_GROUPS",
        "InvalidInstanceType": "check the InstanceType of the instance group: EC2 has none of that name in this region",
        "InvalidBlockDeviceMapping": "check the InstanceStorageConfigs of the instance group",
        "InvalidVolume": "check the volume: it must exist in the zone of the node",
        "InvalidNetworkInterface": "check the network interface: it must exist in the zone of the node",
        "InvalidParameter": "check the settings EVERSTEP_EC2_* and the instance group",
        "InvalidRequest": "check the settings EVERSTEP_EC2_* and the instance group",
        "MissingParameter": "check the settings EVERSTEP_EC2_* and the instance group",
        "UnsupportedOperation": "this kind of instance cannot do it",
        "OperationNotPermitted": "the instance is protected: lift its protection in EC2",
    }
)
"""By the beginning of the code, the longest first."""
_IN_USE = frozenset({"VolumeInUse", "InvalidNetworkInterface.InUse", "InvalidDevice.InUse"})
_PROFILE = "iaminstanceprofile"


class Mismatch(ProviderError):
    """The client token was used before, with other parameters: there may be an instance of this claim already."""


class Short(NoCapacity):
    """``code`` is EC2's own."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code


def meaning(operation: str, code: str, said: str) -> ProviderError:
    """The error of the port for what EC2 answered to the operation."""
    words = _cut(said)
    text = f"EC2's {operation} says {code}: {words}"
    if code in SHORT_HERE or code in SHORT_EVERYWHERE:
        return Short(code, words)
    if code in _THROTTLED:
        return Throttled(text)
    if code.startswith("InvalidInstanceID"):
        return HostNotFound(text)
    if code == "IdempotentParameterMismatch":
        return Mismatch(text)
    if code in _IN_USE or _is_taken(operation, code, said):
        return InUse(text)
    remedy = _remedy(code, said)
    return ProviderError(text) if remedy is None else Refused(f"{text.rstrip('.')}. To do: {remedy}.")


def _is_taken(operation: str, code: str, said: str) -> bool:
    """A device's name that is taken comes as a wrong parameter, and can be told by its words alone."""
    return operation == "AttachVolume" and code == "InvalidParameterValue" and "in use" in said.lower()


def _remedy(code: str, said: str) -> str | None:
    if code.startswith("InvalidParameter") and _PROFILE in said.lower().replace(" ", ""):
        return _REFUSED["InvalidIamInstanceProfile"]
    found = sorted((start for start in _REFUSED if code.startswith(start)), key=len)
    return _REFUSED[found[-1]] if found else None


def _cut(said: str) -> str:
    """Without the encoded part, which nobody can read, and which fills pages."""
    return said.partition(_ENCODED)[0].strip()[:_LONGEST]
