"""Jobs whose loss is NaN or infinite: what is said of them, and when they are ended. Pure."""

from __future__ import annotations

import math

from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import JobRecord

LOSS_NOT_FINITE = "LossNotFinite"
"""The event that is told at once."""
NONFINITE_STEPS = 20
"""Steps in a row without a finite loss after which a job has diverged. Scaled half precision has single ones."""
_WHAT_TO_DO = "a smaller learning rate often helps; `on_nonfinite: warn` would have let it train on"


def fails_on_nonfinite(job: JobRecord) -> bool:
    """Whether the job is to end when its loss stays NaN or infinite."""
    return job.asked.on_nonfinite == "fail"


def first_words(step: int) -> str:
    """That the loss is not finite any more."""
    return f"The loss is NaN or infinite, by step {step}."


def why_failed(job: JobRecord, history: JobHistory) -> str | None:
    """Why the job has to end now; None: it need not."""
    if not fails_on_nonfinite(job) or history.nonfinite_steps < NONFINITE_STEPS:
        return None
    return (
        f"the loss was NaN or infinite by step {history.nonfinite_since}, and for {NONFINITE_STEPS} steps or more: "
        f"{_WHAT_TO_DO}"
    )


def why_not_succeeded(job: JobRecord) -> str | None:
    """Why a job that says that it is done has failed; None: it has not."""
    if job.loss is None or math.isfinite(job.loss) or not fails_on_nonfinite(job):
        return None
    return f"the job's last loss is NaN or infinite: {_WHAT_TO_DO}"
