"""The closed list of reason codes in words: what each means, and what would change it. Listed in docs/explain.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimus_scheduler.model import Reason


@dataclass(frozen=True, slots=True)
class ReasonText:
    """One reason code."""

    meaning: str
    what_would_change_it: str


TEXTS: Mapping[str, ReasonText] = {
    Reason.GRANTED_MORE: ReasonText(
        "its next tasks save more time per share of the cluster than anybody else's",
        "It gets still more as long as its next task saves more time than that of any other job.",
    ),
    Reason.UNCHANGED: ReasonText(
        "what it has is still what it should have",
        "New jobs, finished jobs, or a better knowledge of this one's speed and loss.",
    ),
    Reason.BETTER_USED_ELSEWHERE: ReasonText(
        "other jobs gain more from the same resources, so it got less than it had or less than it could use",
        "Other jobs finish, its priority is raised, or the cluster grows.",
    ),
    Reason.NO_FURTHER_GAIN: ReasonText(
        "more tasks would not make it faster",
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
        "not even its minimum fits beside the jobs ahead of it",
        "Jobs ahead of it finish or shrink, a smaller minimum, or a larger cluster.",
    ),
    Reason.WAITING_FOR_QUOTA: ReasonText(
        "its project has used up what it may have, or others have a right to the room",
        "A larger quota of its project, jobs of its project that end, or idle room to borrow.",
    ),
    Reason.MEETING_DEADLINE: ReasonText(
        "it has the least that is predicted to meet its deadline, ahead of others",
        "An earlier deadline would give it more, a later one less.",
    ),
    Reason.DEADLINE_CANNOT_BE_MET: ReasonText(
        "no size that it may have is predicted to meet its deadline; it competes like a job without one",
        "A later deadline, a larger `max`, or faster GPUs.",
    ),
    Reason.WITHIN_BUDGET: ReasonText(
        "a larger size would be faster, but would cost more than is left of its budget",
        "A larger `max_cost`, or lower prices.",
    ),
    Reason.NO_FEASIBLE_NODE: ReasonText(
        "there is room in the cluster as a whole, but no node can host its tasks",
        "A node with enough free room for one of its tasks, or smaller tasks.",
    ),
    Reason.WAITING_FOR_RETRY: ReasonText(
        "its code failed after training had begun; it goes on from its last checkpoint after a wait",
        "The end of the wait; or cancel it, mend what failed, and resume it.",
    ),
    Reason.CONVERGED: ReasonText(
        "its convergence rule holds: it is being finished", "Nothing: it has reached its goal."
    ),
    Reason.CANCELLING: ReasonText("its owner cancelled it; its tasks are being stopped", "Nothing: it was cancelled."),
    Reason.TRACKED: ReasonText(
        "it runs outside the cluster: it is watched, not scheduled",
        "Submit its command with `optimus submit`: it is then started, resized and retried.",
    ),
}

UNKNOWN = ReasonText("a reason of a newer version", "New jobs, finished jobs, or better knowledge of this one.")


def text_of(reason: str) -> ReasonText:
    """The words for a stored reason code."""
    return TEXTS.get(reason, UNKNOWN)


def as_markdown() -> str:
    """The table of docs/explain.md."""
    rows = [f"| `{code}` | {text.meaning} | {text.what_would_change_it} |" for code, text in TEXTS.items()]
    return "\n".join(["| code | the job has what it has because | what would change it |", "|---|---|---|", *rows, ""])
