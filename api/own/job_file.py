"""The job file: what a user may ask of a job, and what exactly is wrong with it otherwise.

Every key counts: a misspelt one, or one of a feature that is not there yet, is refused by name, because a job that silently ran without
its spares is worse than one that did not start.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema, field_validator
from pydantic.alias_generators import to_pascal, to_snake

from api.own import job_checkpoint, job_elastic
from api.own.job_checkpoint import Checkpointing, CheckpointKeep
from api.own.job_elastic import Elastic
from api.own.wire import Asked, ClientToken
from everstep.evidence import HANG_AFTER_S
from everstep.protocol import FAULTS_VARIABLE
from models.errors import Invalid, Unsupported
from models.job.elastic import AUTO
from models.job.plain import is_plain
from models.job.stragglers import TELL, are_replaced

LATER: Final = {
    "accelerators": "Processes get the whole node.",
    "accelerator_partition": "Processes get the whole node.",
    "priority": "A job starts as soon as enough nodes are free for it.",
    "recipe": "Give a command.",
}
"""Keys of features that this version does not have, and what to do instead."""
_RESERVED: Final = frozenset(
    [
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    ]
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_TOLD = 5
_UNTOLD = (
    "The job file is not valid: stragglers: 'replace' needs ranks that tell how long their steps take, which they do not with recovery "
    "'process'; say 'tell', or leave 'recovery' out."
)
NAME: Final = r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$"

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=1, le=100_000)]
# A member of a service model has one type, so clients that are made from it say a number; a file may say more.
Spares = Annotated[
    Annotated[int, Field(ge=0, le=10_000)] | Literal["auto"], WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 10_000})
]


class JobFile(Asked):
    """A training job. ``replicas`` is how many nodes take part, ``spares`` how many more stand by, warm.

    Where a file says ``auto`` of spares, their number follows from the faults that are observed.

    A process that makes no progress may be said to hang after ``hang_after`` seconds, and after ten of its own slow steps if that is longer.

    ``stragglers`` is what is done about a rank that holds the others up for long: tell of it, or replace it as well, where a spare stands ready.

    Where the job is ``elastic``, ``replicas`` is how many it is to have when there are enough; left out, as many as it may.

    ``recovery`` is how it goes on after a fault: in its processes, or, for scripts that know nothing of that, in new ones, with torchrun's environment.
    ``team`` is whose job it is; a caller who is bound to a team submits for that one.
    """

    model_config = ConfigDict(strict=True)

    name: Annotated[str, StringConstraints(pattern=NAME)]
    cluster: Text
    command: Annotated[list[Text], Field(min_length=1, max_length=1000)]
    working_dir: Annotated[str, StringConstraints(pattern=r"^/.*$", max_length=4096)]
    replicas: Count | None = None
    processes_per_node: Annotated[int, Field(ge=1, le=128)] = 1
    env: dict[str, str] = Field(default_factory=dict)
    instance_groups: list[Text] = Field(default_factory=list)
    spares: Spares = 0
    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    recovery: Literal["in-process", "process"] = "in-process"
    team: Annotated[str, StringConstraints(pattern=NAME)] | None = None
    checkpoint: Checkpointing = Field(default_factory=Checkpointing)
    elastic: Elastic | None = None
    hang_after: Annotated[float, Field(ge=1, le=1e6)] = HANG_AFTER_S
    stragglers: Literal["tell", "replace"] = TELL

    @field_validator("env")
    @classmethod
    def _settable(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name):
                message = f"{name!r} is no name of an environment variable"
                raise ValueError(message)
            if name in _RESERVED or (name.startswith("EVERSTEP_") and name != FAULTS_VARIABLE):
                message = f"{name} is set by Everstep itself for every process"
                raise ValueError(message)
            if "\0" in value:
                message = f"the value of {name} holds a NUL character"
                raise ValueError(message)
        return env


class Submission(JobFile):
    """A job file as it is submitted."""

    client_token: ClientToken = None

    @property
    def standing_by(self) -> int:
        """How many spares the job begins with; where that is left to us, the planner changes it soon."""
        return 1 if self.spares == AUTO else self.spares

    @property
    def nodes(self) -> int:
        """How many nodes the job is to have; ``read`` has seen to it that it says so."""
        return self.replicas or 0

    @property
    def spec(self) -> dict[str, Any]:
        """The job file alone, its defaults filled in."""
        return self.model_dump(mode="json", exclude={"client_token"})


KEYS: Final = tuple(Submission.model_fields)
CHECKPOINT: Final = "checkpoint"
ELASTIC: Final = "elastic"
HANG_AFTER: Final = "hang_after"


def read(document: Mapping[str, Any]) -> Submission:
    """Checks a job file that has been parsed.

    Raises:
        Invalid: a key is unknown, missing or there twice, or a value is of the wrong type or out of range; the message names the key.
        Unsupported: a key or value belongs to a feature that is not there yet.
    """
    named = _named(document, (*KEYS, *LATER))
    for key in named:
        if key in LATER:
            raise Unsupported(member=f"The key '{key}' of a job file", remedy=LATER[key])
    if CHECKPOINT in named:
        named[CHECKPOINT] = _checkpoint(named[CHECKPOINT])
    if HANG_AFTER in named:
        named[HANG_AFTER] = job_checkpoint.seconds(named[HANG_AFTER], of=HANG_AFTER)
    if named.get(ELASTIC) is not None:
        keys = _named(job_elastic.block(named[ELASTIC]), Elastic.model_fields, under=f"{ELASTIC}.")
        named[ELASTIC] = job_elastic.durations(keys)
    try:
        job = Submission.model_validate(named)
    except ValidationError as error:
        raise Invalid(message=f"The job file is not valid: {_told(error)}") from error
    if are_replaced(job.spec) and is_plain(job.spec):
        raise Invalid(message=_UNTOLD)
    return _sized(job)


def _sized(job: Submission) -> Submission:
    """The job with its number of nodes and the bounds of it. Raises Invalid."""
    if job.elastic is not None:
        elastic = job_elastic.settled(job.elastic)
        return job.model_copy(update={ELASTIC: elastic, "replicas": job_elastic.wish(elastic, job.replicas)})
    if job.replicas is None:
        raise Invalid(message="The job file is not valid: replicas: Field required, unless there is a block 'elastic'.")
    return job


def _named(document: Mapping[str, Any], keys: Iterable[str], *, under: str = "") -> dict[str, Any]:
    """The document by its snake_case keys. ``under`` is the path of the block that it is, with a dot."""
    known = {spelling: key for key in keys for spelling in (key, to_pascal(key))}
    named: dict[str, Any] = {}
    for spelling, value in document.items():
        if spelling not in known:
            nearest = f"{under}{_nearest(str(spelling), known)}"
            raise Invalid(message=f"The job file has no key '{under}{spelling}'; did you mean '{nearest}'?")
        if known[spelling] in named:
            raise Invalid(message=f"The job file has the key '{under}{known[spelling]}' twice, in two spellings.")
        named[known[spelling]] = value
    return named


def _checkpoint(written: Any) -> dict[str, Any]:
    """The block, by its snake_case keys."""
    block = _named(job_checkpoint.block(written), Checkpointing.model_fields, under=f"{CHECKPOINT}.")
    if isinstance(block.get("keep"), Mapping):
        block["keep"] = _named(block["keep"], CheckpointKeep.model_fields, under=f"{CHECKPOINT}.keep.")
        if "max_age" in block["keep"]:
            block["keep"]["max_age"] = job_checkpoint.seconds(block["keep"]["max_age"])
    return block


def _nearest(spelling: str, known: Mapping[str, str]) -> str:
    return difflib.get_close_matches(spelling, known, n=1, cutoff=0.0)[0]


def _told(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    told = [f"{_path(item['loc'])}: {item['msg'].removeprefix('Value error, ')}" for item in found[:_MOST_TOLD]]
    more = len(found) - _MOST_TOLD
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _path(loc: tuple[int | str, ...]) -> str:
    """As the file says it. Names of variables are the user's, and stay as they are."""
    first, *rest = loc
    key = to_snake(str(first))
    words = rest if key not in (CHECKPOINT, ELASTIC) else [to_snake(str(part)) for part in rest]
    return key + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in words)
