"""Which members of a request are taken: the service model says what exists, the table of operations what becomes of it.

Paths are the model's: ``InstanceGroups[].LifeCycleConfig.OnCreate``; every member of every structure has one, ``[]`` steps into a list and ``{}`` into
the values of a map. What the table refuses is refused by name, with its remedy, and so is a member that only the installed model knows: a newer
botocore may send what nobody here has thought about, and accepting that would be to drop it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape

from api.aws.table.kinds import Listing, Member, Operation, Support, Treatment
from api.aws.validate import Violated, below, read_all, violation

_NEW = "Member is newer than this version of Everstep, which would not act on it. Leave it out"


def read_request(model: OperationModel, operation: Operation | Listing, wire: dict[str, Any]) -> dict[str, Any]:
    """The request's members by their wire names; whatever is wrong with them is told at once.

    An operation whose table tells of no member takes what its model has.

    Raises:
        Unreadable: a member has the wrong JSON type.
        Violated: constraints of the model do not hold, or members are not supported.
    """
    members, violations = read_all(model.input_shape, wire)
    if operation.members and model.input_shape is not None:
        violations += unsupported(model.input_shape, members, operation.members)
    if violations:
        raise Violated(violations)
    return members


def unsupported(shape: StructureShape, members: Mapping[str, Any], support: Support) -> list[str]:
    """A violation for every given member that is refused; what is below such a member is not looked at."""
    return list(_refusals(shape, members, "", "", support))


def paths(shape: Shape | None) -> tuple[str, ...]:
    """The path of every member that a shape has, at whatever depth, in the model's order."""
    return tuple(_paths(shape, "", ()))


def word_of(support: Support, path: str) -> Member | None:
    """What the table says of a member; below a refused member everything is refused. None: nothing is said."""
    if path in support:
        return support[path]
    around = path
    while around := _container(around):
        if around in support:
            return support[around] if support[around].treatment is Treatment.REFUSED else None
    return None


def why_absent(absent: Mapping[str, str], path: str) -> str | None:
    """Why an output member, or one around it, is never written; None if it is."""
    while path:
        if path in absent:
            return absent[path]
        path = _container(path)
    return None


def _refusals(shape: Shape, value: Any, path: str, shown: str, support: Support) -> Iterator[str]:
    if isinstance(shape, StructureShape):
        for name, item in value.items():
            yield from _of_member(shape.members[name], item, _step(path, name), below(shown, name), support)
    elif isinstance(shape, ListShape):
        for place, item in enumerate(value, start=1):
            yield from _refusals(shape.member, item, f"{path}[]", f"{shown}.{place}.member", support)
    elif isinstance(shape, MapShape):
        for key, item in value.items():
            yield from _refusals(shape.value, item, f"{path}{{}}", f"{shown}.{key}.member", support)


def _of_member(shape: Shape, value: Any, path: str, shown: str, support: Support) -> Iterator[str]:
    word = support.get(path)
    if word is None:
        yield violation(value, shown, _NEW)
    elif word.treatment is Treatment.REFUSED:
        yield violation(value, shown, f"Member is not supported by this control plane. {word.note}".rstrip("."))
    else:
        yield from _refusals(shape, value, path, shown, support)


def _paths(shape: Shape | None, path: str, around: tuple[str, ...]) -> Iterator[str]:
    if isinstance(shape, StructureShape) and shape.name not in around:
        for name, member in shape.members.items():
            yield _step(path, name)
            yield from _paths(member, _step(path, name), (*around, shape.name))
    elif isinstance(shape, ListShape):
        yield from _paths(shape.member, f"{path}[]", around)
    elif isinstance(shape, MapShape):
        yield from _paths(shape.value, f"{path}{{}}", around)


def _step(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _container(path: str) -> str:
    """The member around a member, "" for one of the request itself."""
    return path.rpartition(".")[0].rstrip("[]{}")
