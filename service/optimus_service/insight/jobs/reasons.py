"""The closed list of reason codes in words: what each means, and what would change it (listed in docs/explain.md);
types of events; what the owner of a script is told in whose output no step is recognised. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS, RIGHT_OF_OTHERS
from optimus_scheduler.allocate.staying import CLOSED_OR_LOST
from optimus_scheduler.explain import BETTER_USED
from optimus_scheduler.model import Allocation, JobState, Reason
from optimus_scheduler.model.format import headline, size_words
from optimus_scheduler.quota_words import IN_ITS_QUOTA, USED_UP
from optimus_scheduler.what_if import Behind
from optimus_service.observe.spec import limits_in_force
from optimus_service.store.records import DecisionRecord, JobRecord


@dataclass(frozen=True, slots=True)
class ReasonText:
    """One reason code."""

    meaning: str
    what_would_change_it: str


TEXTS: Mapping[str, ReasonText] = {
    Reason.GRANTED_MORE: ReasonText(
        "its next tasks save time, and no other job would save more with the room",
        "It gets still more as long as its next task saves more time than that of any other job.",
    ),
    Reason.UNCHANGED: ReasonText(
        "no other size within its limits is clearly better for it",
        "New jobs, finished jobs, or a better knowledge of this one's speed and loss.",
    ),
    Reason.BETTER_USED_ELSEWHERE: ReasonText(
        "other jobs gain more from the same resources, so it got less than it had or less than it could use",
        "Other jobs finish, its priority is raised, or the cluster grows.",
    ),
    Reason.CLUSTER_FULL: ReasonText(
        "its next tasks would not fit even if no other job had any",
        "A larger cluster, or smaller tasks.",
    ),
    Reason.MINIMUM_ELSEWHERE: ReasonText(
        "there is no room for its next tasks beside what the other jobs keep at least: what they need, have a "
        "right to, or hold until they have ended",
        "Other jobs finish, or the cluster grows.",
    ),
    Reason.AT_QUOTA: ReasonText(
        "its next tasks would be more than its project may have",
        "A larger quota of its project, leave to borrow, or jobs of its project that end.",
    ),
    Reason.AT_WORKER_LIMIT: ReasonText(
        "it has its part of the workers that the jobs of its owner, or of its project, may hold together",
        "A larger limit (`workers_together`), or jobs of the same owner or project that end.",
    ),
    Reason.NO_FURTHER_GAIN: ReasonText(
        "more tasks, of those that its owner allows, would make it hardly faster",
        "A larger global batch or a model that communicates less would let it use more tasks.",
    ),
    Reason.AT_MAXIMUM: ReasonText(
        "it has all the tasks that its owner allows",
        "A larger `max` in its specification.",
    ),
    Reason.NOT_WORTH_RESCALING: ReasonText(
        "another size would be better, but changing costs more than it saves",
        "A longer time left or a cheaper change of size.",
    ),
    Reason.LEARNING_SPEED: ReasonText(
        "too little is measured yet; its size is chosen so that its speed is learned",
        "A few more measurements of its speed at this size.",
    ),
    Reason.WAITING_FOR_RESOURCES: ReasonText(
        "not even its minimum fits beside jobs that train or go first",
        "Those jobs end or shrink, a smaller minimum, or a larger cluster.",
    ),
    Reason.WAITING_FOR_QUOTA: ReasonText(
        "quotas leave no room for it: that of its project is used up or too small for it, or those of others give them "
        "a right to the room",
        "A larger quota of its project, jobs of its project that end, or idle room to borrow.",
    ),
    Reason.WAITING_FOR_WORKER_LIMIT: ReasonText(
        "other jobs of its owner, or of its project, need the workers that all of them may hold together",
        "Jobs of the same owner or project that end, or a larger limit (`workers_together`).",
    ),
    Reason.MEETING_DEADLINE: ReasonText(
        "it has the least that is predicted to meet its deadline, or ends soonest where that is tight, ahead of others",
        "An earlier deadline would give it more, a later one less.",
    ),
    Reason.DEADLINE_CANNOT_BE_MET: ReasonText(
        "no size is predicted to meet its deadline (missed by little it still claims the one that ends soonest), or "
        "what comes first leaves too little room for it: other deadlines, guarantees, jobs whose pause would lose more",
        "A later deadline, a larger `max`, or faster GPUs.",
    ),
    Reason.WITHIN_BUDGET: ReasonText(
        "a larger size would be faster, but would cost more than is left of its budget",
        "A larger `max_cost`, or lower prices.",
    ),
    Reason.NO_FEASIBLE_NODE: ReasonText(
        "no node has the room for its tasks, or for more of them",
        "A node with enough free room for one of its tasks, or smaller tasks.",
    ),
    Reason.WAITING_FOR_RETRY: ReasonText(
        "its code failed after training had begun; it goes on after a wait, from its last checkpoint if it has one",
        "The end of the wait, or `optimus resume`, which ends it: mend what failed before that.",
    ),
    Reason.PAUSED_BY_OWNER: ReasonText(
        "its owner paused it: it gets nothing until it is resumed", "Resume it: `optimus resume JOB`."
    ),
    Reason.CONVERGED: ReasonText(
        "its loss or metric is where its owner wanted it: it is being finished", "Nothing: it has reached its goal."
    ),
    Reason.LIMIT_REACHED: ReasonText(
        "its limit of steps, epochs, time or money is reached: it is being finished", "Nothing: its limit is reached."
    ),
    Reason.CANCELLING: ReasonText("its owner cancelled it; its tasks are being stopped", "Nothing: it was cancelled."),
    Reason.TRACKED: ReasonText(
        "it runs outside the cluster: it is watched, not scheduled",
        "Submit its command with `optimus submit`: it is then started and retried, and resized where it can be.",
    ),
}

UNKNOWN = ReasonText("a reason of a newer version", "New jobs, finished jobs, or better knowledge of this one.")


def text_of(reason: str) -> ReasonText:
    """The words for a stored reason code."""
    return TEXTS.get(reason, UNKNOWN)


def waiting_words(decision: DecisionRecord | None) -> tuple[str | None, str]:
    """Why a job waits: the reason code, and a phrase that names no other job."""
    if decision is None:
        return None, "no round has looked at it since it began to wait"
    if decision.reason == Reason.WAITING_FOR_RESOURCES and BETTER_USED in decision.message:
        return decision.reason, "other jobs make better use of the room that its minimum would need"
    if decision.reason == Reason.NO_FEASIBLE_NODE and CLOSED_OR_LOST in decision.message:
        return decision.reason, "no open node has the room for its tasks, and some nodes are closed or lost"
    of_quotas = _OF_QUOTAS.items() if decision.reason == Reason.WAITING_FOR_QUOTA else ()
    told = [why for part, why in of_quotas if part in decision.message]
    return decision.reason, told[0] if told else text_of(decision.reason).meaning


_OF_QUOTAS: Mapping[str, str] = {
    NO_END_HELPS: "it needs more than its project may hold: the project may not borrow, and its quota is too small",
    USED_UP: "other jobs of its project leave too little of the project's quota, and the project may not borrow",
    IN_ITS_QUOTA: "other jobs of its project make better use of the room in the project's quota",
    RIGHT_OF_OTHERS: "quotas of other projects give them a right to the room",
}
"""Why a job waits for a quota, by what its message says of that."""


_ENDED_BY: Mapping[str, str] = {
    "loss_decrease": "its loss hardly fell any more",
    "target_loss": "its loss reached its target",
    "target_metric": "its metric reached its target",
    "max_steps": "it made all the steps of its limit",
    "max_epochs": "it made all the epochs of its limit",
    "max_seconds": "the time of its limit was over",
    "max_cost": "its budget was spent",
}
"""The rules that end a job, by their field."""


def ended_words(job: JobRecord, decision: DecisionRecord | None) -> str:
    """How the job ended, and why: by the limit that it has reached, else as far as its last decision says so."""
    if job.state is JobState.FAILED:
        return "The job failed." if job.failure is None else f"The job failed: {headline(job.failure)}"
    if job.state is JobState.CANCELLED:
        return "The job was cancelled."
    ended = Reason.CONVERGED, Reason.LIMIT_REACHED
    # One that is resumed when its time is over is given tasks once more, to end with.
    ends = decision is not None and (decision.reason in ended or decision.forecast.converged)
    rule = _spent(job) or (decision.forecast.rule if decision is not None and ends else None)
    why = None if rule is None else _ENDED_BY.get(rule)
    # What it has learned is of no use then, though its owner let it train on.
    useless = "" if job.loss is None or math.isfinite(job.loss) else ", but its loss was NaN or infinite at the end"
    return f"The job succeeded{'' if why is None else f': {why}'}{useless}."


def _spent(job: JobRecord) -> str | None:
    """The limit that the job has reached; None: none, or one that only a round knows of."""
    limits = limits_in_force(job)
    if limits.max_steps is not None and job.step >= limits.max_steps:
        return "max_steps"
    return "max_epochs" if limits.max_epochs is not None and (job.epoch or 0) >= limits.max_epochs else None


def gives_more(
    changes: Sequence[str] | None, waits: bool, has_started: bool = False, behind: Behind | None = None
) -> str | None:
    """What was tried and gives the job more (`optimus_scheduler.what_if`), in a sentence; None: nothing was tried."""
    if changes is None:
        return None
    gets = "get more" if not waits else "go on" if has_started else "start"
    if behind is not None and not changes:
        return _after(behind, f"lets it {gets}")
    if not changes:
        return f"Nothing that was tried gives it more now: {_TRIED}."
    return f"It would {gets} with {any_of(changes)}."


def keeps(changes: Sequence[str], size: Allocation, behind: Behind | None = None) -> str:
    """The same of a job to which the next round would leave only `size` of what it has."""
    loses = "pause it" if size.is_empty else f"leave it only {size_words(size)}"
    soon = f"As things are now, the next round would {loses}."
    if behind is not None and not changes:
        return f"{soon} {_after(behind, 'lets it keep what it has')}"
    if not changes:
        return f"{soon} Nothing that was tried lets it keep what it has: {_TRIED}."
    return f"{soon} It would keep what it has with {any_of(changes)}."


def _after(behind: Behind, gets: str) -> str:
    """Whose ends alone help a job: of all that was tried, nothing that somebody could do does."""
    told = [(behind.with_tasks, "with tasks"), (behind.waiting, "of those that wait")]
    parts = [f"{count} {which}" for count, which in told if count]
    together = 0 if behind.waiting is None else (behind.with_tasks or 0) + behind.waiting
    who = f"{together} other job{'s' * (together != 1)}" if together else "Other jobs"
    if behind.waiting is None and parts:
        parts.append("some of those that wait")
    of_whom = f" ({' and '.join(parts)})" if parts else ""
    first = f"{who}{of_whom} go{'es' * (together == 1)} first."
    return f"{first} Nothing that was tried {gets} now: {_TRIED_BUT_ENDS}."


_TRIED_BUT_ENDS = "its limits and priority, quotas, one more node"
_TRIED = "its limits and priority, quotas, one more node, the end of other jobs"


def any_of(changes: Sequence[str]) -> str:
    """One of these changes, in words."""
    return f"{'any one of these' if len(changes) > 1 else 'this'}: {'; '.join(changes)}"


CHECKPOINTS = "Checkpoints"
"""The event of a job whose checkpoints cannot be written, or can be again."""
PRINTS_TOO_MUCH = "PrintsTooMuch"
"""The event of a script that prints more than is read."""
PATTERN_TOO_SLOW = "PatternTooSlow"
"""The event of a script of which a pattern is not looked for any more."""
WORKER_SILENT = "WorkerSilent"
"""The event of a job of which a task does not answer its coordinator, or answers again."""
PRINTS_NOTHING = "(nothing so far)"
"""What workers report in place of a line of a script that is silent."""
NO_STEP = (
    "The command told no step: it printed nothing, or in no known form. --progress-pattern, or one line "
    "with optimus_client, shows its progress (docs/scripts.md)."
)
"""Of one that ended before such a line was reported."""


def unread_words(line: str, pattern: str | None, *, has_ended: bool = False) -> str:
    """What was looked for, what is there, and the one-line mend."""
    mend = "One line in the script, optimus_client.report(step=step, loss=loss),"
    if line == PRINTS_NOTHING:
        printed = "It printed nothing" if has_ended else "It has printed nothing so far"
        return f"{printed}, so that no step is known. {mend} shows its progress (docs/scripts.md)."
    far, prints = ("", "printed") if has_ended else (" so far", "prints")
    found = f"No step was recognised{far}; looked for lines such as `step 12/200 loss 0.4`. It {prints}: `{line}`."
    given, fits = ("", "") if pattern is None else (f" '{pattern}'", "; see that the groups fit")
    return f"{found} {mend} or --progress-pattern{given} shows its progress{fits} (docs/scripts.md)."


def on_unread(job: JobRecord) -> list[str]:
    """The same as a sentence, while it holds."""
    profile = job.profile or {}
    if job.step > 0:
        return []
    if not profile.get("unread_line"):
        return [NO_STEP] if job.state is JobState.SUCCEEDED and job.asked.command is not None else []
    return [unread_words(profile["unread_line"], profile.get("suggested_pattern"), has_ended=job.state.is_final)]
