"""The object store below ``checkpoints/``, as a node's memory tier uses it: bytes of shards, and the little objects that say what they are.

Every call is one of few kinds and is counted, so that a test (and an operator) can tell whether a load has touched the store. An injected outage
fails every call here, before anything is sent. Bodies go out of the mapping that they lie in; nothing of them is gathered in memory.

On a file system an object appears by a rename, and is as lasting as the file system makes it. On S3 a killed upload leaves parts that nobody sees:
the bucket's lifecycle rules should end uploads that nobody completes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, S3Store

FOLDER = "checkpoints"
PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
"""Parts of a large object under way at once: what S3 gets beside training without taking all of a node's network."""
_ENDPOINTS = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_LONGEST_WHY = 200


class StoreAway(Exception):
    """The object store did not do what it was asked: whoever needs it asks again later."""


class NotThere(Exception):
    """There is no such object."""


class AlreadyThere(Exception):
    """Somebody else has created this object first."""


class Objects:
    """For any number of threads. ``counts`` says how often each kind of call was made.

    They are ``reads`` and ``read_bytes`` of shards, ``lookups`` of seals and manifests, ``lists``, ``writes``, ``written_bytes``, ``deletes``
    and ``failures``.
    """

    def __init__(self, url: str | None, environ: Mapping[str, str]) -> None:
        """``url`` is EVERSTEP_OBJECT_STORE_URL. Raises ValueError: it names no store that can be used."""
        self.url = url
        self.is_out = False
        self._folder = _folder(url) if url else None
        self._store = _store(url, environ, self._folder) if url else None
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(
            ("reads", "read_bytes", "lookups", "lists", "writes", "written_bytes", "deletes", "failures"), 0
        )

    @property
    def is_there(self) -> bool:
        """Whether this node has an object store at all."""
        return self._store is not None

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Bytes of a shard. Raises StoreAway or NotThere."""
        with self._call("reads") as store:
            found = memoryview(obstore.get_range(store, key, start=start, length=length) if length else b"")
        self._count("read_bytes", length)
        return found

    def look(self, key: str) -> bytes:
        """A whole small object: a seal, a manifest. Raises StoreAway or NotThere."""
        with self._call("lookups") as store:
            return bytes(obstore.get(store, key).bytes())

    def size(self, key: str) -> int:
        """Raises StoreAway or NotThere."""
        with self._call("lookups") as store:
            return int(obstore.head(store, key)["size"])

    def list(self, prefix: str) -> tuple[str, ...]:
        """The keys below a prefix, sorted. Raises StoreAway."""
        with self._call("lists") as store:
            found = [str(one["path"]) for page in obstore.list(store, prefix=prefix) for one in page]
        return tuple(sorted(found))

    def put(self, key: str, body: memoryview | bytes, *, pieces: Iterator[memoryview] | None = None) -> None:
        """Writes an object, over one that is there. ``pieces`` of ``body``, where given, are pulled one after the other: so the caller paces them.

        Raises:
            StoreAway: nothing, or all of it, is there now.
        """
        is_large = len(body) > PART_BYTES
        with self._call("writes") as store:
            if pieces is not None and is_large:
                obstore.put(store, key, pieces, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=1)
            else:
                obstore.put(store, key, body, use_multipart=is_large, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        self._count("written_bytes", len(body))

    def create(self, key: str, body: bytes) -> None:
        """Writes an object that is not there yet: of several who try, one does. Raises StoreAway or AlreadyThere."""
        with self._call("writes") as store:
            obstore.put(store, key, body, mode="create", use_multipart=False)
        self._count("written_bytes", len(body))

    def delete(self, key: str) -> None:
        """Raises StoreAway."""
        with self._call("deletes") as store:
            try:
                obstore.delete(store, key)
            except (NotFoundError, FileNotFoundError):
                return

    def sweep(self, key: str) -> None:
        """Removes what a killed upload of this object has left beside it on a file system. Nobody else may be writing the same object."""
        if self._folder is None or self.is_out:
            return
        path = self._folder / key
        for part in path.parent.glob(f"{path.name}#*"):
            part.unlink(missing_ok=True)

    @contextmanager
    def _call(self, what: str) -> Iterator[ObjectStore]:
        """One call: counted, refused during an outage, its errors put into three kinds."""
        self._count(what)
        try:
            yield self._reachable()
        except (NotFoundError, FileNotFoundError) as error:
            if what in {"lists", "writes"}:  # not an object is missing, but the bucket
                self._count("failures")
                raise StoreAway(_why(error)) from error
            raise NotThere(_why(error)) from error
        except (AlreadyExistsError, FileExistsError) as error:
            raise AlreadyThere(_why(error)) from error
        except (StoreAway, BaseError, OSError, ValueError) as error:
            self._count("failures")
            raise StoreAway(_why(error)) from error

    def _reachable(self) -> ObjectStore:
        if self._store is None:
            message = "this node has no object store: EVERSTEP_OBJECT_STORE_URL is not set"
            raise StoreAway(message)
        if self.is_out:
            message = "an outage of the object store is being injected"
            raise StoreAway(message)
        return self._store

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] += by


def _why(error: BaseException) -> str:
    """The first line of what the library said: the rest is its own insides."""
    return " ".join(str(error).split("\n\n", 1)[0].split())[:_LONGEST_WHY] or type(error).__name__


def _folder(url: str) -> Path | None:
    split = urlsplit(url)
    return Path(unquote(split.path)) / FOLDER if split.scheme == "file" else None


def _store(url: str, environ: Mapping[str, str], folder: Path | None) -> ObjectStore:
    split = urlsplit(url)
    if folder is not None:
        return LocalStore(folder, mkdir=True)
    if split.scheme != "s3" or not split.netloc:
        message = f"EVERSTEP_OBJECT_STORE_URL must be file:///FOLDER or s3://BUCKET/PREFIX, not {url}"
        raise ValueError(message)
    prefix = "/".join(part for part in (split.path.strip("/"), FOLDER) if part)
    return S3Store(split.netloc, prefix=prefix, **_s3(environ))


def _s3(environ: Mapping[str, str]) -> dict[str, Any]:
    """Told by the environment, as other programs of S3 are told; keys that are not there are asked of the machine (instance or container role)."""
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    told = {
        "region": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "access_key_id": environ.get("AWS_ACCESS_KEY_ID"),
        "secret_access_key": environ.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": environ.get("AWS_SESSION_TOKEN"),
        "endpoint": endpoint,
        "virtual_hosted_style_request": False if endpoint else None,
    }
    options = {"connect_timeout": "5s", "timeout": "60s", "allow_http": bool(endpoint and endpoint.startswith("http://"))}
    retry = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=10),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    return {name: value for name, value in told.items() if value is not None} | {"client_options": options, "retry_config": retry}
