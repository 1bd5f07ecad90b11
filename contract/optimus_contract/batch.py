"""Requests about many jobs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from optimus_contract.fields import LABELS, LABELS_SCHEMA, MAX_ASKED_LABELS, Name
from optimus_contract.limits import MAX_BATCH_JOBS
from optimus_contract.message import About, Message

_ANY_VALUE = LABELS_SCHEMA | {
    "additionalProperties": {"anyOf": [LABELS_SCHEMA["additionalProperties"], {"type": "null"}]}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBatch(Message):
    """Jobs to submit together."""

    jobs: Annotated[
        list[dict[str, Any]],
        About("specifications, as `POST /v1/jobs` takes them", min_length=1, max_length=MAX_BATCH_JOBS),
    ]
    atomic: Annotated[
        bool,
        About("true: all of these jobs are made, or none; false: each on its own, and the answer says which were not"),
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection(Message):
    """Active jobs that meet all of these conditions."""

    labels: Annotated[
        dict[str, str | None],
        About("null: any value", min_length=1, max_length=MAX_ASKED_LABELS, json_schema=_ANY_VALUE),
        LABELS,
    ]
    project: Annotated[Name | None, About("null: of any project")] = None
