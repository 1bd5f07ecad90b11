"""What the store takes and gives: immutable values that know no database.

All times are POSIX timestamps (UTC seconds). Documents (`spec`, `profile`, `result`, `data`, `forecast`) are what JSON
can say, plus NaN and infinities, and come back equal. Records with an `id` are given one by the store: leave it at
`UNSAVED` in a record that is to be added.
"""

from optimus_service.store.records.basics import UNSAVED, Document, NameMatch, Page
from optimus_service.store.records.jobs import (
    BEFORE_TASKS,
    REPLACED,
    JobRecord,
    KeptSubmission,
    MembershipRecord,
    NewJob,
    SubmittedJob,
    TaskAges,
    TaskRecord,
    WantedRecord,
    asked_by,
    time_is_over_at,
)
from optimus_service.store.records.people import (
    AuditRecord,
    MemberLimits,
    ProjectRecord,
    TokenRecord,
    UsageRecord,
    UserRecord,
)
from optimus_service.store.records.rounds import (
    Awaited,
    DecisionRecord,
    EndedPrediction,
    EventRecord,
    ExpectedTimesRecord,
    LeaseRecord,
    Observed,
    PredictionRecord,
    PromisedDeadline,
    Pruned,
    PrunedRounds,
    RoundRecord,
)
from optimus_service.store.records.samples import (
    AddedSamples,
    FinishedRunRecord,
    IgnoredSample,
    IgnoredWhy,
    KeptHistory,
    PostedSamples,
    SampleBatch,
    SampleRecord,
)

__all__ = [
    "BEFORE_TASKS",
    "REPLACED",
    "UNSAVED",
    "AddedSamples",
    "AuditRecord",
    "Awaited",
    "DecisionRecord",
    "Document",
    "EndedPrediction",
    "EventRecord",
    "ExpectedTimesRecord",
    "FinishedRunRecord",
    "IgnoredSample",
    "IgnoredWhy",
    "JobRecord",
    "KeptHistory",
    "KeptSubmission",
    "LeaseRecord",
    "MemberLimits",
    "MembershipRecord",
    "NameMatch",
    "NewJob",
    "Observed",
    "Page",
    "PostedSamples",
    "PredictionRecord",
    "ProjectRecord",
    "PromisedDeadline",
    "Pruned",
    "PrunedRounds",
    "RoundRecord",
    "SampleBatch",
    "SampleRecord",
    "SubmittedJob",
    "TaskAges",
    "TaskRecord",
    "TokenRecord",
    "UsageRecord",
    "UserRecord",
    "WantedRecord",
    "asked_by",
    "time_is_over_at",
]
