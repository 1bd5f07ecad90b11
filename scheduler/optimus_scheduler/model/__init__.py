"""The values that a scheduling round reads and writes.

Everything here is immutable and knows no clock, database or network: a `Snapshot` goes into
`optimus_scheduler.round.plan`, a `Plan` comes out. The service and the simulator both speak these types.

Units: seconds, bytes, CPU cores, steps per second. Times are POSIX timestamps (UTC seconds).
"""

from __future__ import annotations

from optimus_scheduler.model.enums import Architecture, Directive, JobState, Mode, Reason, Role, SpeedSource, TaskPhase
from optimus_scheduler.model.jobs import (
    BY_CLOCK,
    COMMAND_ENDS,
    LIMIT_RULES,
    ConvergenceRule,
    EndedJob,
    Job,
    JobSpec,
    MetricTarget,
    SilentRun,
    SpeedSample,
    TaskDemand,
    waits_since,
)
from optimus_scheduler.model.resources import (
    NO_GPUS,
    TOLERANCE,
    Node,
    Nodes,
    Quota,
    Resources,
    WorkerLimit,
    gpu_type_of,
    total_of,
)
from optimus_scheduler.model.rounds import (
    REACH,
    Action,
    Decision,
    Forecast,
    Interval,
    Plan,
    SetWanted,
    Snapshot,
    StartTask,
    StartUps,
    StopTask,
)
from optimus_scheduler.model.tasks import NOTHING, Allocation, PlacedTask, Task, TaskKey, Trouble

__all__ = [
    "BY_CLOCK",
    "COMMAND_ENDS",
    "LIMIT_RULES",
    "NOTHING",
    "NO_GPUS",
    "REACH",
    "TOLERANCE",
    "Action",
    "Allocation",
    "Architecture",
    "ConvergenceRule",
    "Decision",
    "Directive",
    "EndedJob",
    "Forecast",
    "Interval",
    "Job",
    "JobSpec",
    "JobState",
    "MetricTarget",
    "Mode",
    "Node",
    "Nodes",
    "PlacedTask",
    "Plan",
    "Quota",
    "Reason",
    "Resources",
    "Role",
    "SetWanted",
    "SilentRun",
    "Snapshot",
    "SpeedSample",
    "SpeedSource",
    "StartTask",
    "StartUps",
    "StopTask",
    "Task",
    "TaskDemand",
    "TaskKey",
    "TaskPhase",
    "Trouble",
    "WorkerLimit",
    "gpu_type_of",
    "total_of",
    "waits_since",
]
