"""Reads job and recipe files: YAML, or JSON, which is YAML. Needs ``pyyaml`` (the ``server`` extra).

Stricter than YAML where YAML would guess or explode: a key that comes twice is an error, not the last one's value; aliases are refused,
because a few lines of them unfold to gigabytes; a date is not a string that happens to look like one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NoReturn

import yaml


class Unreadable(ValueError):
    """The text is no YAML mapping; the message says where it stops being one."""


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            message = f"aliases (*{event.anchor}) are not taken, write the value out{_at(event.start_mark)}"
            raise yaml.YAMLError(message)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                message = f"the key {key!r} is no text{_at(key_node.start_mark)}"
                raise yaml.YAMLError(message)
            if key in seen:
                message = f"the key {key!r} is there twice{_at(key_node.start_mark)}"
                raise yaml.YAMLError(message)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refuse_tag(_loader: _Loader, node: yaml.Node) -> NoReturn:
    message = f"{node.tag.replace('tag:yaml.org,2002:', '!!')} is no value that JSON has{_at(node.start_mark)}"
    raise yaml.YAMLError(message)


for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_tag)

# Dates stay text: nothing in a job file is one, and 2026-01-01 may well be a name.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str | bytes) -> dict[str, Any]:
    """Raises Unreadable."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        what = " ".join(part for part in (error.context, error.problem) if part)
        message = f"not YAML: {what}{_at(error.problem_mark)}"
        raise Unreadable(message) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = f"not YAML: {error}"
        raise Unreadable(message) from error
    if not isinstance(document, dict):
        kind = "nothing" if document is None else f"a {type(document).__name__}"
        message = f"a mapping of keys to values is expected, and there is {kind}"
        raise Unreadable(message)
    return document


def _at(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
