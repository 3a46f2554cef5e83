"""A small client of the control plane's REST door, for the command line. Members come back in snake_case, as job files write them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from everstep.embedded import credentials, state
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.state import StackState

BAD_INPUT = 2
FAILED = 1

_TRIES = 4
_AGAIN = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_VERBATIM = frozenset({"Labels", "Hardware", "Spec", "Details", "Phases"})
"""Members whose own keys are somebody's words: a variable's name must not be respelt."""
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class RestError(Exception):
    """The control plane cannot be asked, or has refused. ``exit_code`` is 2 when what was asked is wrong, 1 otherwise."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Rest:
    """Speaks to one control plane. A call that nobody answered is repeated, so calls that write need an idempotency key."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"}
        # Loading the certificate store takes longer than most calls, and a plain address has no use for it.
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30.0, verify=self.url.startswith("https:"))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], home: Path) -> Self:
        """``EVERSTEP_URL`` and ``EVERSTEP_TOKEN``, else the embedded stack under ``home``, whose token goes nowhere else.

        Raises:
            RestError: neither is there.
        """
        url, token = environ.get("EVERSTEP_URL"), environ.get("EVERSTEP_TOKEN")
        place = Home.at(home)
        if url is None:
            stack = _stack(place)
            if stack is None:
                message = f"no control plane: start one with `everstep up`, or set EVERSTEP_URL and EVERSTEP_TOKEN (looked in {place.root})"
                raise RestError(message)
            url, token = stack.url, token or _token(place)
        if not token:
            message = f"EVERSTEP_TOKEN is not set, and {url} wants one"
            raise RestError(message)
        return cls(url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._call("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> dict[str, Any]:
        return self._call("POST", path, json=body, headers={"idempotency-key": key} if key else {})

    def delete(self, path: str, **query: Any) -> dict[str, Any]:
        return self._call("DELETE", path, params=query)

    def every(self, path: str, member: str, **query: Any) -> list[dict[str, Any]]:
        """What all pages of a listing hold."""
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = self.get(path, next_token=token, **query)
            found += page[member]
            token = page["next_token"]
            if token is None:
                return found

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Raises RestError."""
        for tries in range(1, _TRIES + 1):
            try:
                answer = self._http.request(method, path, **more)
            except httpx.HTTPError as error:
                if tries == _TRIES or isinstance(error, httpx.UnsupportedProtocol):
                    message = (
                        f"the control plane at {self.url} does not answer ({str(error) or type(error).__name__}): "
                        f"is it up, and is EVERSTEP_URL right? `everstep status` tells of the embedded one"
                    )
                    raise RestError(message) from error
            else:
                if answer.status_code not in _AGAIN or tries == _TRIES:
                    return _read(answer)
            time.sleep(0.25 * 2**tries)
        raise AssertionError


def snake(document: Any) -> Any:
    """The same document with its members in snake_case."""
    if isinstance(document, list):
        return [snake(item) for item in document]
    if isinstance(document, dict):
        return {_WORD.sub("_", name).lower(): value if name in _VERBATIM else snake(value) for name, value in document.items()}
    return document


def _read(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if answer.is_success and isinstance(document, dict):
        return dict(snake(document))
    detail = document.get("detail") if isinstance(document, dict) else None
    message = str(detail or f"the control plane answered {answer.status_code} {answer.reason_phrase}")
    is_bad_input = answer.is_client_error and answer.status_code not in _AGAIN
    raise RestError(message, BAD_INPUT if is_bad_input else FAILED)


def _stack(place: Home) -> StackState | None:
    try:
        return state.read(place)
    except StackError as error:
        raise RestError(str(error)) from error


def _token(place: Home) -> str | None:
    try:
        found = credentials.load(place)
    except StackError as error:
        raise RestError(str(error)) from error
    return found.token if found else None
