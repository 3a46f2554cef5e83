"""Reads the members of a scenario's objects, strictly: what is wrong, or not known, is named by its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class ScenarioError(ValueError):
    """The scenario cannot be read; the message names the member and says what it must be."""


class Members:
    """An object of the file, and where it lies in it. Which of its members were asked for is remembered."""

    def __init__(self, wire: Any, path: str = "") -> None:
        self._path = path
        if not isinstance(wire, dict):
            message = f"{path or 'the scenario'} must be an object, and is {wire!r}"
            raise ScenarioError(message)
        self._wire = wire
        self._asked: set[str] = set()

    def wrong(self, name: str, what: str) -> ScenarioError:
        return ScenarioError(f"`{self._at(name)}` {what}")

    def names(self) -> list[str]:
        return [str(name) for name in self._wire]

    def is_object(self, name: str) -> bool:
        return isinstance(self._get(name), dict)

    def number(self, name: str, default: float = 0.0) -> float:
        value = self._get(name)
        if value is None:
            return default
        if not _is_number(value) or value < 0:
            raise self.wrong(name, f"must be a number, 0 or more, and is {value!r}")
        return float(value)

    def share(self, name: str, default: float = 0.0) -> float:
        value = self.number(name, default)
        if value > 1:
            raise self.wrong(name, f"is a share of all, from 0 to 1, and is {value!r}")
        return value

    def numbers(self, name: str) -> list[float]:
        """A number alone is a list of one."""
        value = self._get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_number(one) and one >= 0 for one in listed):
            raise self.wrong(name, f"must be a number, 0 or more, or a list of such, and is {value!r}")
        return [float(one) for one in listed]

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, and is {value!r}")
        return bool(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"must be a text, and is {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._get(name)
        listed = [] if value is None else value
        if not isinstance(listed, list) or not all(isinstance(one, str) and one for one in listed):
            raise self.wrong(name, f"must be a list of texts, and is {value!r}")
        return listed

    def word(self, name: str, words: type[E]) -> E:
        value = self.text(name)
        try:
            return words(value)
        except ValueError:
            raise self.wrong(name, f"must be one of {', '.join(words)}, and is {value!r}") from None

    def decimal(self, name: str) -> Decimal:
        value = self._get(name)
        try:
            found = Decimal(str(value))
        except InvalidOperation:
            found = Decimal(-1)
        if not found.is_finite() or found < 0:
            raise self.wrong(name, f"must be dollars, 0 or more, and is {value!r}")
        return found

    def below(self, name: str) -> Members:
        """The object of this name; an empty one if there is none."""
        value = self._get(name)
        return Members({} if value is None else value, self._at(name))

    def part(self, name: str, read: Callable[[Members], T]) -> T:
        """Reads the object of this name, and refuses what ``read`` does not ask for."""
        below = self.below(name)
        found = read(below)
        below.check_all_read()
        return found

    def each(self, name: str) -> Iterator[Members]:
        value = self._get(name)
        listed = [] if value is None else value
        if not isinstance(listed, list):
            raise self.wrong(name, f"must be a list, and is {value!r}")
        for index, one in enumerate(listed):
            below = Members(one, f"{self._at(name)}[{index}]")
            yield below
            below.check_all_read()

    def check_all_read(self) -> None:
        unknown = sorted(set(self.names()) - self._asked)
        if unknown:
            raise self.wrong(unknown[0], f"is not known here; known: {', '.join(sorted(self._asked))}")

    def _get(self, name: str) -> Any:
        self._asked.add(name)
        return self._wire.get(name)

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and value != float("inf")  # noqa: PLR0124
