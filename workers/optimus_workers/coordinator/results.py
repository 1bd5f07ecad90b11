"""How a job ended, as values for the journal and the service. Pure."""

from __future__ import annotations

import math

from optimus_workers.coordinator.journal import Ended

ERROR_CHARACTERS = 8_000
"""The tail of a traceback that goes into the result: the end says what went wrong."""


def success(
    step: int, loss: float | None, metrics: dict[str, float], checkpoint: str | None, model: str | None = None
) -> Ended:
    """The job is done; figures that are not finite become None."""
    figures = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return Ended("succeeded", step, loss, figures, checkpoint, model=model)


def failure(step: int, loss: float | None, error: str, checkpoint: str | None, *, permanent: bool = False) -> Ended:
    """The job cannot go on; `permanent`: nor could another attempt."""
    return Ended("failed", step, loss, {}, checkpoint, storable(error)[-ERROR_CHARACTERS:], permanent=permanent)


def storable(text: str) -> str:
    """The text without what no database can hold: a traceback may have any file's name in it."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
