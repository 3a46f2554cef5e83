"""The policy of faults: a vendor's code → what it stands for. Read once, from ``faults.toml`` and the operator's file over it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agent.settings import SettingsError
from everstep.hardware import FaultClass

OWN = Path(__file__).with_name("faults.toml")
VARIABLE = "EVERSTEP_FAULTS_FILE"
_MEMBERS = ("class", "type", "reason", "note")
_CLASSES = ", ".join(known.value for known in FaultClass)


class FaultsFileError(SettingsError):
    """The file of faults cannot be used; the message names the entry and says what it must be."""


@dataclass(frozen=True)
class Meaning:
    """What a code stands for. ``type`` and ``reason`` are HyperPod's words, ``note`` is for a person."""

    fault_class: FaultClass
    type: str
    reason: str
    note: str = ""


@dataclass(frozen=True)
class Faults:
    """``codes``: vendor → code → meaning. Total: ``meaning`` answers for every code, known or not."""

    codes: Mapping[str, Mapping[str, Meaning]]
    defaults: Mapping[str, Meaning]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Ours, and what ``EVERSTEP_FAULTS_FILE`` lays over it. Raises FaultsFileError."""
        table = _load(OWN)
        theirs = environment.get(VARIABLE)
        if theirs:
            over = _load(Path(theirs))
            _check(over, Path(theirs))
            for vendor, sections in over.items():
                for section, entries in sections.items():
                    table[vendor][section] = {**table[vendor][section], **entries}
        return cls(
            {vendor: dict(_meanings(sections)) for vendor, sections in table.items()},
            {vendor: _meaning(sections["default"], sections["words"]) for vendor, sections in table.items()},
        )

    def meaning(self, vendor: str, code: str, variant: str | None = None) -> Meaning:
        """The most particular entry: code and variant, the code, its kind and variant, its kind, and at last the vendor's default."""
        codes = self.codes[vendor]
        kind = f"{code.split(':', maxsplit=1)[0]}:*"
        for key in (f"{code}:{variant}", code, f"{kind}:{variant}", kind):
            if key in codes:
                return codes[key]
        return self.defaults[vendor]


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{VARIABLE}: {path} cannot be read as TOML: {error}"
        raise FaultsFileError(message) from error


def _meanings(sections: dict[str, Any]) -> Iterator[tuple[str, Meaning]]:
    for code, entry in sections["codes"].items():
        yield code, _meaning(entry, sections["words"])


def _meaning(entry: dict[str, str], words: dict[str, dict[str, str]]) -> Meaning:
    of_class = words[entry["class"]]
    return Meaning(
        FaultClass(entry["class"]),
        entry.get("type", of_class["type"]),
        entry.get("reason", of_class["reason"]),
        entry.get("note", ""),
    )


def _check(table: dict[str, Any], path: Path) -> None:
    """That an operator's file has the form of ours. The first thing that is wrong is told."""
    for vendor, sections in table.items():
        if vendor not in ("nvidia", "neuron"):
            _refuse(path, vendor, "is no vendor; use nvidia or neuron")
        for name, entries in _table(path, vendor, sections).items():
            where = f"{vendor}.{name}"
            match name:
                case "default":
                    _check_entry(path, where, entries)
                case "codes":
                    for code, entry in _table(path, where, entries).items():
                        _check_entry(path, f'{where}."{code}"', entry)
                case "words":
                    for of_class, entry in _table(path, where, entries).items():
                        _check_words(path, where, of_class, entry)
                case _:
                    _refuse(path, where, "is no section; use default, words or codes")


def _check_entry(path: Path, where: str, entry: Any) -> None:
    for member, value in _table(path, where, entry).items():
        if member not in _MEMBERS:
            _refuse(path, f"{where}.{member}", f"is no member; use {', '.join(_MEMBERS)}")
        if not isinstance(value, str) or not value:
            _refuse(path, f"{where}.{member}", "must be a text that is not empty")
    if entry.get("class") not in set(FaultClass):
        _refuse(path, f"{where}.class", f"is {entry.get('class')!r}; it must be one of {_CLASSES}")


def _check_words(path: Path, where: str, of_class: str, entry: Any) -> None:
    if of_class not in set(FaultClass):
        _refuse(path, f"{where}.{of_class}", f"is no class; use one of {_CLASSES}")
    words = _table(path, f"{where}.{of_class}", entry)
    if set(words) != {"type", "reason"} or not all(isinstance(word, str) and word for word in words.values()):
        _refuse(path, f"{where}.{of_class}", "must have a type and a reason, and nothing else")


def _table(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(path, where, "must be a table")
    return dict(value)


def _refuse(path: Path, where: str, why: str) -> None:
    message = f"{VARIABLE}: {path}: {where} {why}"
    raise FaultsFileError(message)
