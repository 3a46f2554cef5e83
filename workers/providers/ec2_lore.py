"""What EC2 says of subnets, images and types, which does not change: asked for once a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.providers.base import Refused
from workers.providers.ec2_calls import Calls
from workers.providers.ec2_requests import Processor


@dataclass
class Lore:
    _zones: dict[str, str] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)
    _processors: dict[str, Processor] = field(default_factory=dict)

    def zone(self, calls: Calls, subnet: str | None) -> str | None:
        """Where a subnet lies; None without one. Raises Refused: there is no such subnet."""
        if subnet is None:
            return None
        if subnet not in self._zones:
            answer = calls("describe_subnets", SubnetIds=[subnet])
            self._zones[subnet] = answer["Subnets"][0]["AvailabilityZone"]
        return self._zones[subnet]

    def root_device(self, calls: Calls, image: str | None) -> str | None:
        """The name of an image's root device; None for that of a launch template. Raises Refused: there is no such image."""
        if image is None:
            message = "A root volume of one's own needs an image. To do: set EVERSTEP_EC2_IMAGE beside the launch template."
            raise Refused(message)
        if image not in self._roots:
            answer = calls("describe_images", ImageIds=[image])
            if not answer["Images"]:
                message = f"EC2 shows no image {image}. To do: check EVERSTEP_EC2_IMAGE, or the image of the release."
                raise Refused(message)
            self._roots[image] = answer["Images"][0]["RootDeviceName"]
        return self._roots[image]

    def processor(self, calls: Calls, ec2_type: str) -> Processor:
        """Cores and threads of a type. Raises Refused: there is no such type in the region."""
        if ec2_type not in self._processors:
            answer = calls("describe_instance_types", InstanceTypes=[ec2_type])
            told = answer["InstanceTypes"][0]["VCpuInfo"]
            by_default = told.get("DefaultThreadsPerCore", 1)
            threads = tuple(told.get("ValidThreadsPerCore") or (by_default,))
            self._processors[ec2_type] = Processor(told["DefaultCores"], threads, by_default)
        return self._processors[ec2_type]
