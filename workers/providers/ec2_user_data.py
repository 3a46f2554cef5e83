"""What an instance does when it first starts: it makes a node of itself."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.providers.base import HostSpec
from workers.providers.bootstrap import METADATA_URL, bootstrap_script
from workers.providers.ec2_requests import BUNDLE, START

_MOUNTING = """
# The volume that comes with the instance: the first disk of EBS's that nothing is on, unless there is one that was made ready before.
mount_point={mount}
for _ in 1 2 3 4 5 6 7 8 9 10; do
    blkid -L everstep >/dev/null && break
    for name in $(lsblk -dnpo NAME,TYPE | awk '$2 == "disk" {{ print $1 }}'); do
        if [ -z "$(lsblk -npo FSTYPE,MOUNTPOINT "$name" | tr -d ' \\n')" ] && [ "$(lsblk -no NAME "$name" | wc -l)" = 1 ] \\
            && lsblk -dno MODEL "$name" | grep -q 'Elastic Block Store'; then
            mkfs.ext4 -q -L everstep "$name" && break 2
        fi
    done
    sleep 3
done
if blkid -L everstep >/dev/null; then
    mkdir -p "$mount_point"
    grep -q '^LABEL=everstep ' /etc/fstab || echo "LABEL=everstep $mount_point ext4 defaults,nofail 0 2" >>/etc/fstab
    mountpoint -q "$mount_point" || mount "$mount_point"
fi
"""


@dataclass(frozen=True)
class UserData:
    """``environ`` is what nodes are told besides: limits of health checks, the size of memory tiers."""

    api_url: str
    object_store_url: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, spec: HostSpec) -> bytes:
        """Compressed, because EC2 takes 16 KiB, and always the same for a wish, because its client token is."""
        return gzip.compress(self.script(spec).encode(), mtime=0)

    def script(self, spec: HostSpec) -> str:
        environ = {
            **self.environ,
            "EVERSTEP_NODE_INSTANCE_TYPE": spec.instance_type,
            "EVERSTEP_NODE_VCPUS": str(spec.vcpus),
            "EVERSTEP_NODE_MEMORY_MIB": str(spec.memory_mib),
            "EVERSTEP_OBJECT_STORE_URL": self.object_store_url,
            "EVERSTEP_IMDS_URL": METADATA_URL,
            "EVERSTEP_IMAGE": spec.image or "",
            "EVERSTEP_HOST_START": str(spec.start),
        }
        script = bootstrap_script(
            self.api_url,
            claim=spec.claim,
            boot_token=spec.boot_token,
            environ=environ,
            metadata_url=METADATA_URL,
            start_tag=START,
            bundle_tag=BUNDLE,
        )
        first, _, rest = script.partition("\n")
        return f"{first}\n{_mounting(spec)}{rest}"


def _mounting(spec: HostSpec) -> str:
    mount = next((disk.mount for disk in spec.disks if disk.mount), None)
    return "" if mount is None else _MOUNTING.format(mount=mount)
