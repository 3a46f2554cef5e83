"""EC2's API, as the provider and its prices call it: errors that carry the policy, pages put together, and rest after a throttling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from workers.providers.base import ProviderError, Refused, Throttled
from workers.providers.ec2_errors import ACCESS, meaning

_CONNECT_S = 4.0
_READ_S = 12.0
_TRIES = 3
"""Three tries with their time-outs stay below the time limit of a worker's task."""
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 30.0


class Calls:
    """``rest_s`` is the first pause after a throttling, which doubles with each; nothing is asked meanwhile. Safe for several threads."""

    def __init__(self, client: Any, *, rest_s: float = _FIRST_REST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._first_s = rest_s
        self._next_s = rest_s
        self._quiet_until = 0.0
        self._lock = threading.Lock()

    def __call__(self, operation: str, **wish: Any) -> dict[str, Any]:
        """Raises ProviderError, of the kind that ``ec2_errors`` says."""
        with self._asking(operation):
            answer: dict[str, Any] = getattr(self._client, operation)(**wish)
        return answer

    def pages(self, operation: str, *, page_size: int, **wish: Any) -> Iterator[dict[str, Any]]:
        """Every page of a listing, in order. Raises as a call does."""
        pages = iter(self._client.get_paginator(operation).paginate(**wish, PaginationConfig={"PageSize": page_size}))
        while True:
            with self._asking(operation):
                page = next(pages, None)
            if page is None:
                return
            yield page

    @contextmanager
    def _asking(self, operation: str) -> Iterator[None]:
        name = "".join(word.capitalize() for word in operation.split("_"))
        self._keep_quiet(name)
        try:
            yield
        except ClientError as error:
            told = error.response.get("Error", {})
            what = meaning(name, str(told.get("Code", "")), str(told.get("Message", "")))
            raise (self._throttled(str(what)) if isinstance(what, Throttled) else what) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            message = f"{ACCESS}. {error}"
            raise Refused(message) from error
        except BotoCoreError as error:
            message = f"EC2's {name} was not answered: {error}"
            raise ProviderError(message) from error
        with self._lock:
            self._next_s = self._first_s

    def _keep_quiet(self, name: str) -> None:
        with self._lock:
            left_s = self._quiet_until - self._clock()
        if left_s > 0:
            message = f"EC2 was asked too often; {name} waits."
            raise Throttled(message, timedelta(seconds=left_s))

    def _throttled(self, said: str) -> Throttled:
        with self._lock:
            rest_s = self._next_s
            self._quiet_until = self._clock() + rest_s
            self._next_s = min(self._next_s * 2, _LONGEST_REST_S)
        return Throttled(said, timedelta(seconds=rest_s))


def connect(region: str, *, tries: int = _TRIES) -> Calls:
    """Endpoint and credentials come from where every client of AWS looks for them."""
    retries: Any = {"mode": "adaptive", "total_max_attempts": tries}
    config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries=retries, user_agent_extra="everstep")
    return Calls(boto3.Session().client("ec2", region_name=region, config=config))
