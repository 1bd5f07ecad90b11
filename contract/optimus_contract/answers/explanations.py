"""Why a job has what it has, and what another job would change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from optimus_contract.answers.jobs import Allocation, Interval, JobState
from optimus_contract.membership import PauseParts
from optimus_contract.message import About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Marginal(Message):
    """Of the other jobs in the same round: the one that was granted a task with the least gain."""

    job_id: str
    name: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Message):
    """When a job is expected to start and to end; null: not known."""

    start_seconds: Annotated[Interval | None, About("until its first tasks take part, of a job that waits; 0: at once")]
    finish_seconds: Annotated[Interval | None, About("from now; without `computed_at` if it keeps what it has")]
    finish_at: Annotated[datetime | None, About("null beyond the year 9999, too")]
    computed_at: Annotated[
        datetime | None, About("when the queue was simulated forward; null: waiting and later changes are not in it")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleEffect(Message):
    """What the newest change of size cost, and what it bought: the whole way from one size that was decided to the
    next, with all sizes between."""

    at: Annotated[datetime, About("when all tasks of the new size took part")]
    before: Allocation
    after: Allocation
    stopped_seconds: float
    pause_parts: PauseParts | None
    lost_steps: int
    steps_per_second_before: Annotated[float | None, About("measured just before, without stops")]
    steps_per_second_after: Annotated[float | None, About("measured since then, without stops")]
    saved_seconds: Annotated[float | None, About("training time saved so far, the way taken off; may be negative")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Message):
    """Why a job has what it has (`GET /v1/jobs/{id}/explanation`), from its latest decision. For ended jobs as well."""

    job_id: str
    state: JobState
    at: Annotated[datetime | None, About("when it was decided, by a round or its owner; null as long as it is not")]
    reason: Annotated[str | None, About("reason code", examples=("BetterUsedElsewhere",))]
    message: Annotated[str, About("one sentence for the job's owner")]
    what_would_change_it: Annotated[str, About("what would have to happen for the job to get more")]
    sentences: Annotated[list[str], About("the whole explanation, to be read in this order")]
    allocation: Allocation
    previous: Allocation
    gain: Annotated[float | None, About("marginal gain of the last task that it was granted")]
    next_gain: Annotated[float | None, About("marginal gain that its next task would have had")]
    marginal: Marginal | None
    confidence: Annotated[float | None, About("of the forecast behind the decision, 0 to 1")]
    expected: Expected
    last_rescale: RescaleEffect | None
    troubles: Annotated[
        list[str],
        About(
            "what keeps its tasks from running, as the cluster says",
            examples=(["digits-x7k2p-worker-1-0: ImagePull: no such image"],),
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Message):
    """What a new job or a change would do to a job that is there."""

    job_id: str
    name: str
    before: Annotated[Allocation, About("what the next round would give it as things are")]
    after: Allocation
    finish_seconds_before: Interval | None
    finish_seconds_after: Interval | None
    lost_steps: Annotated[int, About("of a script that is not known to keep checkpoints: they are made again")] = 0
    lost_seconds: Annotated[float | None, About("training time that goes with them; null: none")] = None
    loses_since_checkpoint: Annotated[
        bool,
        About("of a script that goes on from checkpoints of its own: what it made since the newest, unless it saves"),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineAnswer(Message):
    """Whether a deadline can be promised (docs/deadlines.md)."""

    at: Annotated[datetime, About("the deadline")]
    answer: Annotated[
        Literal["promised", "declined", "open"],
        About("promised: met with a probability of 95 %; declined: with less than 10 %; open: neither"),
    ]
    earliest: Annotated[datetime | None, About("the earliest deadline that would be promised; null: none is known")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Message):
    """What would happen if a job were submitted now (`POST /v1/plan`). Nothing has been stored."""

    allocation: Annotated[Allocation, About("what the next round would give it; it may grow later")]
    reason: str
    message: str
    what_would_change_it: str
    sentences: Annotated[list[str], About("all of this, to be read in this order")]
    expected: Expected
    cost: Annotated[Interval | None, About("from start to end with this size; null without prices or forecast")]
    speed_from: Annotated[str | None, About("what the speed was predicted from; null: no speed is known")]
    finished_runs: Annotated[int, About("finished jobs of the same task that the forecast learned from")]
    confidence: float
    effects: Annotated[list[Effect], About("jobs that would get another size")]
    deadline: Annotated[DeadlineAnswer | None, About("null: it has none")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan(Message):
    """What would happen if a job (`POST /v1/jobs/{id}/plan`) or a quota (`POST /v1/projects/{name}/plan`) were changed
    now. Nothing has been stored."""

    sentences: Annotated[list[str], About("all of this, to be read in this order")]
    effects: Annotated[list[Effect], About("jobs that would get another size, a job that is changed among them")]
