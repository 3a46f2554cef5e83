"""The one directory that holds everything of an embedded stack. Deleting it deletes the stack."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOME = Path("~/.everstep")


@dataclass(frozen=True)
class Home:
    """Names of what lies under ``--home``."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> "Home":
        return cls(Path(os.path.realpath(directory.expanduser())))

    @property
    def credentials(self) -> Path:
        return self.root / "credentials.json"

    @property
    def state(self) -> Path:
        return self.root / "stack.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    def create(self) -> None:
        """Makes the directories, for our eyes only: keys and logs of training jobs lie here."""
        for directory in (self.root, self.logs, self.store, self.hosts):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self) -> int | None:
        """Takes the stack for this process until it ends, however it ends; None when another one has it.

        The lock dies with its holder, so a crash never leaves one behind. Returns the descriptor that holds it.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Replaces a file in one step, readable by its owner only. A reader sees the old text or the new, never a half.

    ``durable``: it also outlives a power cut right after, which costs a few milliseconds.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
