"""Who this agent is, over its restarts: the node token, readable by its owner alone, and the name of this start."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "identity.json"


@dataclass(frozen=True)
class Identity:
    """``boot`` names a start of the agent. Until a token was stored, a restart keeps the name.

    The control plane takes the boot token from one boot only: an agent killed between the answer and its storing would be locked out.
    """

    boot: str
    node_token: str | None = field(default=None, repr=False)

    @classmethod
    def load(cls, state_dir: Path, new_boot: str) -> Identity:
        """The identity of a fresh start, on disk when this returns."""
        try:
            kept = cls(**json.loads((state_dir / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            kept = None
        identity = kept if kept is not None and kept.node_token is None else cls(new_boot, kept.node_token if kept else None)
        identity.store(state_dir)
        return identity

    def store(self, state_dir: Path) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        draft = state_dir / f".{FILE}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)
        draft.replace(state_dir / FILE)
