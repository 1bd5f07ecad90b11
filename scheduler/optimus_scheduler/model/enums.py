"""Fixed words: what tasks are, how jobs train, where they stand, and why they get what they get."""

from __future__ import annotations

from enum import StrEnum


class Words(StrEnum):
    """One of a few fixed words."""

    # What an enumeration inherits is a function in Python: keys with a role are looked up for every task there is.
    __hash__ = str.__hash__


class Role(Words):
    """What a task does for its job."""

    WORKER = "worker"
    """Computes gradients."""
    SERVER = "server"
    """A parameter server: holds one range of the parameters and applies updates to it."""
    COORDINATOR = "coordinator"
    """One small process per job that owns the membership and the step barrier; it is not allocated by gain."""


class JobState(Words):
    """`queued → running ⇄ paused → succeeded | failed | cancelled`."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Mode(Words):
    """How worker updates are combined."""

    SYNC = "sync"
    """One step uses the whole global batch, shared among the workers (its size does not depend on w)."""
    ASYNC = "async"
    """One step is one worker's mini-batch, applied when it arrives."""


class Architecture(Words):
    """How a job trains."""

    PS = "ps"
    """Workers exchange gradients with parameter servers."""
    ALLREDUCE = "allreduce"
    """Workers sum their gradients among themselves."""
    SCRIPT = "script"
    """Workers run a command that trains by its own means."""

    @property
    def has_servers(self) -> bool:
        return self is Architecture.PS


class Directive(Words):
    """What the scheduler wants a job's coordinator to do at the next step boundary."""

    RUN = "run"
    """Train with the wanted tasks."""
    PAUSE = "pause"
    """Write a checkpoint and let all tasks go; the job may be given tasks again later."""
    FINISH = "finish"
    """The job has converged: checkpoint, evaluate, report the result, exit."""
    CANCEL = "cancel"
    """Stop at once, without evaluating."""


class TaskPhase(Words):
    """The phase of a task that the cluster reports."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class Reason(Words):
    """Why a job got what it got in a round: the closed list behind `optimus explain`."""

    GRANTED_MORE = "GrantedMore"
    """Its next tasks saved more time per share than anybody else's."""
    UNCHANGED = "Unchanged"
    """What it has is still what it should have."""
    BETTER_USED_ELSEWHERE = "BetterUsedElsewhere"
    """Others gain more from the same resources, so it got less than before or less than it could use."""
    CLUSTER_FULL = "ClusterFull"
    """Its next tasks would not fit even if no other job had any."""
    MINIMUM_ELSEWHERE = "MinimumElsewhere"
    """There is no room for its next tasks, even where every other job has no more than it is sure of."""
    AT_QUOTA = "AtQuota"
    """Its next tasks would be more than its project may have."""
    AT_WORKER_LIMIT = "AtWorkerLimit"
    """It has its part of the workers that its owner's, or its project's, jobs may hold together."""
    NO_FURTHER_GAIN = "NoFurtherGain"
    """More tasks would not make it faster."""
    AT_MAXIMUM = "AtMaximum"
    """It has all the workers and servers that its owner allows."""
    NOT_WORTH_RESCALING = "NotWorthRescaling"
    """A different size would be better, but changing costs more than it saves."""
    LEARNING_SPEED = "LearningSpeed"
    """Too little is measured yet; its size is chosen so that the speed model learns."""
    WAITING_FOR_RESOURCES = "WaitingForResources"
    """Not even its minimum fits beside jobs that train or go first."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """Its project has used up what it may have, or others have a claim to the capacity that it would need."""
    WAITING_FOR_WORKER_LIMIT = "WaitingForWorkerLimit"
    """Its owner's, or its project's, other jobs need the workers that all of them may hold together."""
    MEETING_DEADLINE = "MeetingDeadline"
    """It has the least that is predicted to meet its deadline, ahead of others."""
    DEADLINE_CANNOT_BE_MET = "DeadlineCannotBeMet"
    """No size that it may have is predicted to meet its deadline, or it is given up so that others meet theirs; it
    competes like a job without one, but where it is late by little."""
    WITHIN_BUDGET = "WithinBudget"
    """A larger size would be faster, but its steps would cost more than is left of its budget."""
    NO_FEASIBLE_NODE = "NoFeasibleNode"
    """The free capacity of the cluster would suffice, but no node can host its tasks."""
    WAITING_FOR_RETRY = "WaitingForRetry"
    """Its owner's code failed; it goes on from its last checkpoint after a while."""
    PAUSED_BY_OWNER = "PausedByOwner"
    """Its owner wants it to have nothing until it is resumed."""
    CONVERGED = "Converged"
    """Its loss or metric is where its owner wanted it: it is being finished."""
    LIMIT_REACHED = "LimitReached"
    """Its limit of steps, epochs, time or money is reached: it is being finished."""
    CANCELLING = "Cancelling"
    """Its owner cancelled it; its tasks are being stopped."""
    TRACKED = "Tracked"
    """It runs outside the cluster: it is forecast, not scheduled."""


class SpeedSource(StrEnum):
    """What predicted speeds rest on."""

    MEASURED = "measured"
    SIMILAR_JOBS = "similar jobs"
    """Ended jobs of the same task; the job itself has measured nothing yet."""
    ANALYSIS = "analysis"
    """The layers of its network and the data sheet of its device."""
