"""What a job's tasks know about it at the start, and how it ended."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from optimus_contract.fields import Count, Duration, Measured
from optimus_contract.limits import MAX_COUNT, MAX_RATE_POINTS
from optimus_contract.message import FINITE, About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile(Message):
    """What the job's tasks know about it (`PUT /v1/jobs/{id}/profile`). Of a script, what has been learned so far."""

    n_parameters: Count | None = None
    n_examples: Annotated[Count | None, About("training examples in one epoch")] = None
    global_batch_size: Annotated[int | None, About(ge=1, le=MAX_COUNT)] = None
    steps_per_epoch: Annotated[float | None, FINITE, About(gt=0, le=MAX_COUNT)] = None
    total_steps: Annotated[int | None, About("steps after which a script ends by itself", ge=1, le=MAX_COUNT)] = None
    learned_from: Annotated[
        Literal["client", "kubeflow", "mlflow", "otlp", "tensorboard", "printed"] | None,
        About("script: the way by which its steps and losses are learned"),
    ] = None
    resumes: Annotated[
        bool | None, About("script: whether it goes on from a checkpoint of its own when it is started again")
    ] = None
    fixed_workers: Annotated[
        int | None,
        About(
            "script: the only number of workers at which it goes on, because it counts its steps by its number of "
            "processes",
            ge=1,
            le=MAX_COUNT,
        ),
    ] = None
    checkpoint_every_seconds: Annotated[
        float | None, FINITE, About("script: between two of the checkpoints that it writes", gt=0, le=1e9)
    ] = None
    checkpoint_write_seconds: Annotated[
        float | None, FINITE, About("script: for which it writes one of them", gt=0, le=1e9)
    ] = None
    unread_line: Annotated[
        str | None, About("script: what it prints while no step is recognised, for some minutes", max_length=300)
    ] = None
    suggested_pattern: Annotated[
        str | None, About("script: the --progress-pattern that would read it", max_length=1000)
    ] = None
    began_at_step: Annotated[
        Count | None,
        About("script: the step that it began from, above 0 with a checkpoint from before the job; null: not known"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Message):
    """The layers of what a job trains (`PUT /v1/jobs/{id}/network`): speeds are calculated from them at first."""

    format: Literal["optimus-network/1"]
    name: Annotated[str, About(max_length=300)] = "network"
    layers: Annotated[list[dict[str, Any]], About("see docs/study.md", min_length=1, max_length=10000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRates(Message):
    """The learning rates that a job is to have (`PUT /v1/jobs/{id}/learning-rates`); the newest plan counts.

    Between two points they lie on a straight line, and after the last one they stay as they are. Only their ratios to
    each other matter: what the job's rates are, its samples say.
    """

    steps: Annotated[
        list[Count],
        About("steps of the job completed before, increasing", min_length=1, max_length=MAX_RATE_POINTS),
    ]
    rates: Annotated[
        list[Annotated[float, FINITE, About(ge=0, le=1e9)]],
        About("the learning rate of the step that comes then", min_length=1, max_length=MAX_RATE_POINTS),
    ]

    def check(self) -> None:
        if len(self.steps) != len(self.rates):
            raise ValueError(
                f"there are {len(self.steps)} steps and {len(self.rates)} rates: give one rate for each step"
            )
        if any(later <= earlier for earlier, later in pairwise(self.steps)):
            raise ValueError("steps must be increasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Message):
    """How the job ended (`POST /v1/jobs/{id}/result`)."""

    outcome: Literal["succeeded", "failed"]
    step: Count
    final_loss: Annotated[Measured | None, About("may be NaN or infinite, and is null in answers then")] = None
    metrics: Annotated[dict[str, Measured | None], About(max_length=100, examples=({"test_accuracy": 0.97},))] = field(
        default_factory=dict
    )
    checkpoint: Annotated[str | None, About(max_length=4096)] = None
    model: Annotated[str | None, About("path of the trained model's state_dict", max_length=4096)] = None
    error: Annotated[str | None, About("with `failed`: what went wrong", max_length=20000)] = None
    permanent: Annotated[bool, About("with `failed`: a retry would fail likewise, so none is made")] = False
    seconds_ago: Annotated[Duration, About("since it ended: the service may have been away")] = 0.0
    attempt: Annotated[
        int | None,
        About(
            "which attempt ended (`OPTIMUS_ATTEMPT`): the end of an older one is ignored; default: the present",
            ge=0,
            le=MAX_COUNT,
        ),
    ] = None


class FormedAt(NamedTuple):
    """What a membership of a task's job tells of its checkpoints."""

    at: float
    """When it began, seconds of any clock."""
    step: int
    cause: str
    lost_steps: int


class SavedStep(NamedTuple):
    """A checkpoint that there is."""

    step: int
    """0: none is known."""
    at: float | None
    """From when on the job trained beyond it, on the clock of the memberships; infinite: it has not; None: its tasks
    have changed since then, which may save as well."""


def saved_by_stops(memberships: Sequence[FormedAt], started_at: float | None) -> SavedStep:
    """The newest checkpoint of a task that its memberships, oldest first, show: a pause writes one, and a job that goes
    on or is rolled back begins at one. `started_at`: when the job began to train."""
    for index in reversed(range(len(memberships))):
        _, step, cause, lost_steps = memberships[index]
        if cause in ("pause", "resume") or lost_steps:
            goes_on = index + (cause == "pause")
            if goes_on == len(memberships):
                return SavedStep(step, math.inf)
            return SavedStep(step, memberships[goes_on].at if goes_on == len(memberships) - 1 else None)
    return SavedStep(0, started_at if len(memberships) <= 1 else None)


def last_checkpoint(
    path: str | None,
    step: int,
    trained_seconds: float | None = None,
    every_seconds: float | None = None,
    saved_step: int = 0,
) -> str:
    """A job's last checkpoint in words, with its step where the name of what was reported tells it.

    Args:
        path: `JobResult.checkpoint`.
        step: steps that the job had made.
        trained_seconds: from its first start, or from the checkpoint of `saved_step` on, to its end, at most; None: not
            known.
        every_seconds: between two checkpoints; None: not known.
        saved_step: of a checkpoint that is known to be there; 0: none is known.
    """
    name = None if path is None else re.search(r"manifest-(\d{12,})\.json$", path)
    if name is not None:
        return f"its last checkpoint, of step {int(name[1])}" + (f" of {step}" if int(name[1]) < step else "")
    if 0 < step <= saved_step:
        return f"its last checkpoint, of step {saved_step}"
    if trained_seconds is not None and every_seconds is not None and trained_seconds < every_seconds:
        few = f"it trained for less than the {every_seconds:g} s between two" + " after that" * bool(saved_step)
        return f"its last checkpoint, which may be of step {saved_step} of {step} ({few})"
    if saved_step:
        return f"its last checkpoint, of step {saved_step} or a later one of {step}"
    return f"its last checkpoint, which may be of a step before {step}"
