"""Partitions of accelerators: which profiles of NVIDIA's Multi-Instance GPU each device has, and how many of each fit on one. Pure.

From the supported-profile tables of NVIDIA's MIG user guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MOST: Final = {"1g": 7, "2g": 3, "3g": 2, "4g": 1, "7g": 1}
"""Partitions of one device, by their share of its compute slices."""
_MOST_WIDE: Final = 4
"""Of single slices that take two shares of the memory: a device has eight of these."""


def _profiles(*names: str, wide: str) -> dict[str, int]:
    return {f"mig-{name}": _MOST_WIDE if name == wide else _MOST[name[:2]] for name in (*names, wide)}


PROFILES: Final[Mapping[str, Mapping[str, int]]] = {
    "a100-40gb": _profiles("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", wide="1g.10gb"),
    "a100-80gb": _profiles("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", wide="1g.20gb"),
    "h100": _profiles("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", wide="1g.20gb"),
    "h200": _profiles("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb", wide="1g.35gb"),
    "b200": _profiles("1g.23gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb", wide="1g.45gb"),
    "gb200": _profiles("1g.23gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb", wide="1g.47gb"),
    "b300": _profiles("1g.34gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb", wide="1g.67gb"),
}
"""By the catalogue's name of the accelerator. Devices that are not here cannot be partitioned."""
