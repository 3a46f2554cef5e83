"""What a fleet is told by its environment: the same variables as the workers, and the scenario."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from workers.settings import PREFIX, SettingsError


@dataclass(frozen=True)
class FleetSettings:
    """``directory`` holds where the fleet listens; ``scenario`` None is a fleet that nothing befalls."""

    directory: Path
    api_url: str
    scenario: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Raises SettingsError."""
        variables = os.environ if environ is None else environ
        scenario = variables.get(f"{PREFIX}SIMULATION")
        return cls(
            directory=Path(_required(variables, "HOME_DIR")) / "fleet",
            api_url=_required(variables, "API_URL"),
            scenario=Path(scenario) if scenario else None,
        )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(f"{PREFIX}{name}")
    if not value:
        message = f"{PREFIX}{name} is not set: a fleet must know the home of the control plane, and where its agents' door is"
        raise SettingsError(message)
    return value
