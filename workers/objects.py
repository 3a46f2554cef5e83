"""The object store as the control plane uses it: durable steps of checkpoints are looked up and removed here. Their bytes never come by.

Invariant: what is left of a step at any moment can be loaded whole, or has no manifest. So the manifest goes first and the shards after it, and a
removal that was cut short is repeated from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from everstep.shards import Manifest, manifest_key, seal_key, shard_key, superseded_key
from workers.settings import Settings

_CALL = timedelta(seconds=10)
_RETRIES = timedelta(seconds=20)
"""Together less than a task may take: a store that hangs is an outage to try again after, not a worker that is killed."""
_CHUNK = 1000
"""So many keys S3 deletes in one call."""


class StoreAway(Exception):
    """The object store cannot be reached, or refuses; the message says which call and why."""


@dataclass
class Objects:
    """Everything below ``<object store>/checkpoints``. ``calls`` counts what was asked of it, by verb."""

    url: str
    open: Callable[[], Any]
    calls: dict[str, int] = field(default_factory=dict)

    @cached_property
    def store(self) -> Any:
        return self.open()

    def manifest(self, namespace: str, step: int) -> Manifest | None:
        """The commit marker of a durable step; None if it is not durable, or if what lies there is no manifest. Raises StoreAway."""
        with self._call("get"):
            try:
                return Manifest.from_json(bytes(obstore.get(self.store, manifest_key(namespace, step)).bytes()))
            except (FileNotFoundError, ValueError):
                return None

    def has_manifest(self, namespace: str, step: int) -> bool:
        """Raises StoreAway."""
        return self._size(manifest_key(namespace, step)) is not None

    def remove(self, namespace: str, step: int, world_size: int | None) -> None:
        """Removes all of a step. Repeating it, also after it was cut short, is safe.

        A drain that was under way may commit the step while its shards are removed: then its manifest stands for shards that are not there, and
        goes as well. Raises StoreAway.
        """
        found = self.manifest(namespace, step)
        sizes = (world_size, found.world_size if found else None, self._ranks(namespace))
        worlds = range(1, 1 + max((size for size in sizes if size), default=0))
        self._delete([manifest_key(namespace, step)])
        # The metadata's key is the same for every world size, so those of the largest world are all keys that a step can have.
        indexes = [(index, worlds[-1]) for index in range(worlds[-1] + 1)] if worlds else []
        self._delete([seal_key(namespace, index, step, world) for index, world in indexes])
        self._delete([shard_key(namespace, index, step, world) for index, world in indexes])
        self._delete(self._superseded(namespace, step))
        self._take_back_if_torn(namespace, step)

    def _take_back_if_torn(self, namespace: str, step: int) -> None:
        again = self.manifest(namespace, step)
        if again is None:
            return
        sizes = ((self._size(shard_key(namespace, one.index, step, again.world_size)), one.size) for one in again.shards)
        if any(there != told for there, told in sizes):
            self._delete([manifest_key(namespace, step)])

    def _ranks(self, namespace: str) -> int:
        """One more than the highest rank that has ever saved in the namespace: an earlier, larger world may have left shards of the step."""
        with self._call("list"):
            prefixes = obstore.list_with_delimiter(self.store, prefix=f"{namespace}/")["common_prefixes"]
        ranks = [prefix.rstrip("/").rpartition("/rank_")[2] for prefix in prefixes if "/rank_" in prefix]
        return max((int(rank) + 1 for rank in ranks if rank.isdigit()), default=0)

    def _superseded(self, namespace: str, step: int) -> list[str]:
        """The manifests of earlier saves of the step, which training has left behind: nothing is there any more that they speak of."""
        folder, _, name = superseded_key(namespace, step, "").rpartition("/")
        with self._call("list"):
            objects = obstore.list_with_delimiter(self.store, prefix=f"{folder}/")["objects"]
        prefix = name.removesuffix("foreign.json")
        return [one["path"] for one in objects if one["path"].rpartition("/")[2].startswith(prefix)]

    def _size(self, key: str) -> int | None:
        with self._call("head"):
            try:
                return int(obstore.head(self.store, key)["size"])
            except FileNotFoundError:
                return None

    def _delete(self, keys: list[str]) -> None:
        for chunk in _chunks(keys):
            with self._call("delete"):
                _delete_quietly(self.store, chunk)

    @contextmanager
    def _call(self, verb: str) -> Iterator[None]:
        self.calls[verb] = self.calls.get(verb, 0) + 1
        try:
            yield
        except (BaseError, OSError) as error:
            message = f"{verb} at {self.url} failed: {str(error).strip().partition(chr(10))[0]}"
            raise StoreAway(message) from error


def checkpoints_url(object_store_url: str) -> str:
    return f"{object_store_url.rstrip('/')}/checkpoints"


def exports_url(object_store_url: str, job: str, step: int, form: str) -> str:
    """Where an export goes whose caller has named no place."""
    return f"{object_store_url.rstrip('/')}/exports/{job}/{step}/{form}"


def connect(settings: Settings) -> Objects:
    """Makes no call, and no folder. The keys of an S3 store are found as AWS's clients find them: in ``AWS_*``, and at the machine's metadata."""
    url = checkpoints_url(settings.object_store_url)
    if url.startswith("file:"):
        return Objects(url, partial(LocalStore.from_url, url, automatic_cleanup=True, mkdir=True))
    client = _client(settings.s3_endpoint_url)
    return Objects(url, partial(from_url, url, client_options=client, retry_config=_retries(), **_s3(settings)))


def _client(endpoint: str | None) -> Any:
    return {"timeout": _CALL, "connect_timeout": _CALL / 2, "allow_http": (endpoint or "").startswith("http://")}


def _retries() -> Any:
    return {"max_retries": 4, "retry_timeout": _RETRIES}


def _s3(settings: Settings) -> Mapping[str, Any]:
    if not settings.object_store_url.startswith("s3"):
        return {}
    region = settings.environ.get("AWS_REGION") or settings.environ.get("AWS_DEFAULT_REGION") or settings.region
    named = {"endpoint": settings.s3_endpoint_url, "virtual_hosted_style_request": False} if settings.s3_endpoint_url else {}
    return {"region": region, **named}


def _delete_quietly(store: Any, keys: list[str]) -> None:
    """What is not there is deleted. A folder says that it is not there, where S3 does not; then each is asked for by itself."""
    try:
        obstore.delete(store, keys)
    except FileNotFoundError:
        for key in keys:
            try:
                obstore.delete(store, key)
            except FileNotFoundError:
                continue


def _chunks(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = list(keys)
    while rest:
        yield rest[:_CHUNK]
        rest = rest[_CHUNK:]
