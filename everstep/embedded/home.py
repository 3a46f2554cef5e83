"""The one directory that holds everything of an embedded stack. Deleting it deletes the stack."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everstep.embedded.errors import StackError

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
        """Makes the directories, for our eyes only: keys and logs of training jobs lie here.

        Raises:
            StackError: one cannot be made, or is not ours to write.
        """
        with self.ours():
            for directory in (self.root, self.logs, self.store, self.hosts):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Whatever the file system refuses inside is the fault of the choice of home, and is told so.

        Raises:
            StackError: the file system refused something.
        """
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}" if error.strerror and error.filename else str(error)
            message = (
                f"{self.root} cannot be used as the home of a stack ({reason}): choose a directory of your own with --home DIR"
            )
            raise StackError(message) from error

    def lock(self) -> int | None:
        """Takes the stack for this process until it ends, however it ends; None when another one has it.

        The lock dies with its holder, so a crash never leaves one behind. Returns the descriptor that holds it.

        Raises:
            StackError: this is no directory of ours.
        """
        with self.ours():
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
