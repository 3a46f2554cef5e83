"""Requests made from the service model alone: valid ones of every shape, and for every constraint one that breaks it."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from api.aws.patterns import compile_pattern, is_match

PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "
FEW = 3
"""Items of a list or a map whose shape allows for more."""
Values = st.SearchStrategy[Any]
Known = Mapping[str, Values]
"""Values of shapes, by their names, that the model does not tell enough about."""


def values(shape: Any, known: Known = {}, *, around: tuple[str, ...] = ()) -> Values:  # noqa: B006
    """Valid values of a shape, as far as its model says."""
    if shape.name in known:
        return known[shape.name]
    return _VALUES[shape.type_name](shape, known, (*around, shape.name))


def values_with(shape: Any, path: str, known: Known) -> Values:
    """Valid values of a structure, with its required members and the one at a path."""
    step, _, rest = path.partition(".")
    name, steps = step.rstrip("[]{}"), step.count("[]") + step.count("{}")
    member = shape.members[name]
    needed = {other: values(shape.members[other], known) for other in shape.required_members}
    needed[name] = _wrapped(member, steps, rest, known) if rest else _telling(member, known)
    return st.fixed_dictionaries({name: needed[name]} if shape.is_tagged_union else needed)


def _telling(shape: Any, known: Known) -> Values:
    """Not an empty list or map, where there is another: a server could drop those and nobody would see it."""
    made = values(shape, known)
    can_be_more = shape.type_name in {"list", "map"} or (shape.type_name == "structure" and shape.members)
    return made.filter(lambda value: len(value) > 0) if can_be_more else made


def _wrapped(shape: Any, steps: int, rest: str, known: Known) -> Values:
    if steps == 0:
        return values_with(shape, rest, known)
    if shape.type_name == "list":
        return _wrapped(shape.member, steps - 1, rest, known).map(lambda item: [item])
    return st.tuples(values(shape.key, known), _wrapped(shape.value, steps - 1, rest, known)).map(lambda pair: dict([pair]))


def _structure(shape: Any, known: Known, around: tuple[str, ...]) -> Values:
    members = {name: values(member, known, around=around) for name, member in shape.members.items() if member.name not in around}
    if shape.is_tagged_union:
        return st.one_of([how.map(lambda value, name=name: {name: value}) for name, how in members.items()])
    required = {name: members[name] for name in shape.required_members}
    return st.fixed_dictionaries(required, optional={name: how for name, how in members.items() if name not in required})


def _list(shape: Any, known: Known, around: tuple[str, ...]) -> Values:
    least, most = _bounds(shape, FEW)
    unique = {"unique": True} if shape.member.type_name == "string" else {}
    return st.lists(values(shape.member, known, around=around), min_size=least, max_size=most, **unique)


def _map(shape: Any, known: Known, around: tuple[str, ...]) -> Values:
    least, most = _bounds(shape, FEW)
    key, value = values(shape.key, known), values(shape.value, known, around=around)
    return st.dictionaries(key, value, min_size=least, max_size=most)


def _string(shape: Any, _known: Known, _around: tuple[str, ...]) -> Values:
    if shape.enum:
        return st.sampled_from(shape.enum)
    metadata = shape.metadata
    return _text(metadata.get("pattern"), metadata.get("min", 0), metadata.get("max", 1 << 16))


@cache
def _text(pattern: str | None, least: int, most: int) -> Values:
    compiled = compile_pattern(pattern) if pattern else None
    if compiled is None:
        return st.text(PRINTABLE, min_size=least, max_size=min(most, least + 40))
    if "\\U000" in compiled.pattern:  # classes of letters: ASCII's are among them
        return st.text(string.ascii_letters + string.digits + "_.:/=+-@ ", min_size=max(least, 1), max_size=min(most, 40))
    made = st.from_regex(compiled, fullmatch=True, alphabet=st.sampled_from(PRINTABLE))
    return made.filter(lambda text: least <= len(text) <= most)


def _number(kind: Any) -> Any:
    return lambda shape, _known, _around: kind(*_bounds(shape, 1 << 20))


_VALUES: dict[str, Any] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
    "string": _string,
    "integer": _number(st.integers),
    "long": _number(st.integers),
    "float": _number(lambda least, most: st.floats(least, most, allow_nan=False)),
    "double": _number(lambda least, most: st.floats(least, most, allow_nan=False)),
    "boolean": lambda _shape, _known, _around: st.booleans(),
    "timestamp": lambda _shape, _known, _around: st.integers(1_500_000_000, 2_500_000_000),
}


def _bounds(shape: Any, span: int) -> tuple[int, int]:
    least = math.ceil(shape.metadata.get("min", 0))
    return least, min(int(shape.metadata.get("max", least + span)), least + span)


@dataclass(frozen=True)
class Broken:
    """A value that breaks one constraint of the member at ``path``, and ``told``, where a message must place it."""

    operation: str
    path: str
    constraint: str
    wire: dict[str, Any]
    told: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.path} {self.constraint}"


def broken(operation: str, shape: Any) -> Iterator[Broken]:
    """Every constraint of every member of a request, broken once, in a request that is valid otherwise."""
    for path, member, steps in _members(shape, "", (), ()):
        for constraint, value in _breaches(member):
            wire, told = _around(shape, steps, value)
            yield Broken(operation, path, constraint, wire, told)
    for path, steps in _required(shape, "", (), ()):
        wire, told = _around(shape, steps, None)
        yield Broken(operation, path, "missing", wire, told)


def fullest(shape: Any, path: str = "", choose: int = 0) -> Any:
    """A value with every member; of a union the one that is chosen, by its place."""
    match shape.type_name:
        case "structure":
            names = list(shape.members)
            if shape.is_tagged_union:
                names = names[choose % len(names) :][:1]
            return {name: fullest(shape.members[name], name, choose) for name in names}
        case "list":
            return [fullest(shape.member, path, choose) for _ in range(max(1, shape.metadata.get("min", 0)))]
        case "map":
            return {smallest(shape.key): fullest(shape.value, path, choose)}
        case _:
            return smallest(shape)


def seen_in(shape: Any, value: Any, path: str = "") -> set[str]:
    """The paths of the members that an answer holds."""
    match shape.type_name:
        case "structure":
            known = {name: item for name, item in value.items() if name in shape.members}
            steps = {name: f"{path}.{name}" if path else name for name in known}
            return set(steps.values()).union(*(seen_in(shape.members[name], item, steps[name]) for name, item in known.items()))
        case "list":
            return set().union(*(seen_in(shape.member, item, f"{path}[]") for item in value))
        case "map":
            return set().union(*(seen_in(shape.value, item, f"{path}{{}}") for item in value.values()))
        case _:
            return set()


def smallest(shape: Any) -> Any:
    """The smallest valid value of a shape: required members only."""
    match shape.type_name:
        case "structure":
            needed = list(shape.members)[:1] if shape.is_tagged_union else shape.required_members
            return {name: smallest(shape.members[name]) for name in needed}
        case "list":
            return [smallest(shape.member) for _ in range(shape.metadata.get("min", 0))]
        case "map":
            return {}
        case "string":
            return _smallest_text(shape)
        case "boolean":
            return False
        case "timestamp":
            return 1_900_000_000
        case _:
            return max(int(shape.metadata.get("min", 0)), 0)


def _smallest_text(shape: Any) -> str:
    if shape.enum:
        return str(shape.enum[0])
    metadata = shape.metadata
    for text in _TEXTS:
        if metadata.get("min", 0) <= len(text) <= metadata.get("max", 1 << 16) and is_match(metadata.get("pattern", ".*"), text):
            return text
    raise AssertionError(f"no text for {shape.name}: {metadata.get('pattern')}")


_ARN = "arn:aws:sagemaker:us-east-1:123456789012"
_TEXTS = (
    "abcdefghijkl",
    "a",
    "dev",
    "1.2.3",
    "s3://b/k",
    "default",
    "i-0123456789abcdef0",
    "vol-0123456789abcdef0",
    "eni-0123456789abcdef0",
    "fs-0123456789abcdef0.fsx.aws",
    "/mnt/x",
    "us-west-2a",
    "00000000-0000-4000-8000-000000000000",
    f"{_ARN}:cluster/abcdefghijkl",
    f"{_ARN}:training-plan/a-plan-of-its-own",
    "arn:aws:iam::123456789012:role/a",
    "arn:aws:eks:us-east-1:123456789012:cluster/k",
    "arn:aws:secretsmanager:us-east-1:123456789012:secret:s",
)

Steps = tuple[tuple[str, Any], ...]
"""The way to a member: ("member", name), ("item", None) or ("entry", key), each with its name."""


def _members(shape: Any, path: str, steps: Steps, around: tuple[str, ...]) -> Iterator[tuple[str, Any, Steps]]:
    match shape.type_name:
        case "structure" if shape.name not in around:
            for name, member in shape.members.items():
                below = f"{path}.{name}" if path else name
                yield below, member, (*steps, ("member", name))
                yield from _members(member, below, (*steps, ("member", name)), (*around, shape.name))
        case "list":
            yield f"{path}[]", shape.member, (*steps, ("item", None))
            yield from _members(shape.member, f"{path}[]", (*steps, ("item", None)), around)
        case "map":
            key = smallest(shape.key)
            yield f"{path}{{}}", shape.value, (*steps, ("entry", key))
            yield from _members(shape.value, f"{path}{{}}", (*steps, ("entry", key)), around)


def _required(shape: Any, path: str, steps: Steps, around: tuple[str, ...]) -> Iterator[tuple[str, Steps]]:
    structures = [(path, shape, steps), *_members(shape, path, steps, around)]
    for where, member, way in structures:
        if member.type_name == "structure":
            for name in member.required_members:
                yield f"{where}.{name}" if where else name, (*way, ("member", name))


def _breaches(shape: Any) -> Iterator[tuple[str, Any]]:
    """Values that break one constraint each; those that the one before implies may be broken with it."""
    metadata, kind = shape.metadata, shape.type_name
    if kind == "string":
        yield from _text_breaches(shape)
    elif kind in {"integer", "long", "float", "double"}:
        if "min" in metadata:
            yield "min", metadata["min"] - 1
        if "max" in metadata:
            yield "max", metadata["max"] + 1
    elif kind == "list":
        if metadata.get("min", 0) > 0:
            yield "min", [smallest(shape.member)] * (metadata["min"] - 1)
        if "max" in metadata:
            yield "max", [smallest(shape.member)] * (metadata["max"] + 1)
    elif kind == "map" and "max" in metadata:
        yield "max", {f"k{number}": smallest(shape.value) for number in range(metadata["max"] + 1)}
    elif kind == "structure" and shape.is_tagged_union:
        yield "union", {}
        yield "union of two", {name: smallest(member) for name, member in list(shape.members.items())[:2]}


def _text_breaches(shape: Any) -> Iterator[tuple[str, str]]:
    metadata = shape.metadata
    if shape.enum:
        yield "enum", "Nonsense"
    if metadata.get("min", 0) > 0:
        yield "min", "a" * (metadata["min"] - 1)
    if "max" in metadata:
        yield "max", "a" * (metadata["max"] + 1)
    odd = next((text for text in ("\n", " ", "\u2603", "\ud7ff") if not is_match(metadata.get("pattern", ".*"), text)), None)
    if "pattern" in metadata and odd is not None:
        yield "pattern", odd * max(metadata.get("min", 1), 1)


def _around(shape: Any, steps: Steps, value: Any) -> tuple[dict[str, Any], str]:
    """The smallest request with the value at the end of these steps (None: without it), and how a message places it."""
    told = ""
    for kind, name in steps:
        if kind == "member":
            lowered = name[:1].lower() + name[1:]
            told = f"{told}.{lowered}" if told else lowered
        else:
            told = f"{told}.{1 if kind == 'item' else name}.member"
    return _built(shape, steps, value), told


def _built(shape: Any, steps: Steps, value: Any) -> Any:
    if not steps:
        return value
    (kind, name), rest = steps[0], steps[1:]
    if kind == "item":
        return [_built(shape.member, rest, value), *[smallest(shape.member)] * (shape.metadata.get("min", 1) - 1)]
    if kind == "entry":
        return {name: _built(shape.value, rest, value)}
    made = {} if shape.is_tagged_union else smallest(shape)
    made.pop(name, None)
    inner = _built(shape.members[name], rest, value)
    return made if inner is None else {**made, name: inner}
