"""The words in which torch asks a process group for what it is, where the group is a Python object."""

from __future__ import annotations

import torch.distributed as dist

BACKEND = "everstep"


class PythonGroup(dist.ProcessGroup):
    """``rank`` and ``size`` are the subclass's to say, whenever they are asked for."""

    def __init__(self, rank: int, size: int, name: str = "") -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stub lacks this form
        self._name = name

    def getRank(self) -> int:  # noqa: N802, the C++ side looks this name up, and the two below
        return self.rank()

    def getSize(self) -> int:  # noqa: N802
        return self.size()

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        """It may have been made with one."""
        self._name = self._name or name

    def _set_group_desc(self, name: str) -> None:
        """Torch describes groups for its flight recorder, which a Python group has not."""

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    @property
    def group_desc(self) -> str:
        return self._name
