"""How our own resources look on the wire: PascalCase members, as everywhere in this API; snake_case is taken as well."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_pascal
from starlette.responses import Response


class Wire(BaseModel):
    """A float that JSON has no word for is written as a string (``"NaN"``): a loss that diverged must be seen."""

    model_config = ConfigDict(alias_generator=to_pascal, populate_by_name=True, frozen=True, ser_json_inf_nan="strings")


class Asked(Wire):
    """What an operation takes. A member that it does not know is refused, never dropped."""

    model_config = ConfigDict(extra="forbid")


ClientToken = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255)] | None,
    Field(description="A repetition with the same token is the same request."),
]
"""Of a member ``client_token``."""
NextToken = Annotated[
    Annotated[str, StringConstraints(max_length=8192)] | None,
    Field(description="Of the page before: the listing goes on after it."),
]
"""Of a member ``next_token`` that a listing takes."""


Real = Annotated[
    float,
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}, mode="serialization"
    ),
]
"""A number that may be none: what diverged is told."""


def answer(view: Wire, status: int = 200) -> Response:
    return Response(view.model_dump_json(by_alias=True), status, media_type="application/json")


def word(state: StrEnum) -> str:
    """A state as it is written on the wire: ``in_service`` is ``InService``."""
    return "".join(part.capitalize() for part in state.value.split("_"))
