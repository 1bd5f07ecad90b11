"""How often a script should write its checkpoint: from how it does, and from interruptions of jobs here. Pure."""

from __future__ import annotations

from optimus_contract import answers
from optimus_models.checkpoints import best_interval, lost_share, seconds_between
from optimus_scheduler.model.format import time_words
from optimus_service.store.records import JobRecord

PAST_SECONDS = 90 * 86_400.0
"""Interruptions of jobs that were submitted in this time count."""
WORTH = 0.005
"""Part of the time that another interval has to save, to be advised."""


def checkpoint_advice(job: JobRecord, past: tuple[int, float], now: float) -> answers.CheckpointAdvice | None:
    """None: it is not known how the job writes its checkpoints. `past`: interruptions of all jobs in so many seconds of
    running (`Repository.interruptions`); `now`: POSIX seconds."""
    profile = job.profile or {}
    every, write = profile.get("checkpoint_every_seconds"), profile.get("checkpoint_write_seconds")
    if not every or not write or write >= every:
        return None
    between = _between(job, past, now)
    best = best_interval(write, between)
    present, least = lost_share(every - write, write, between), lost_share(best, write, between)
    return answers.CheckpointAdvice(
        every_seconds=every,
        write_seconds=write,
        best_every_seconds=best + write,
        seconds_between_interruptions=between,
        lost_share=present,
        best_lost_share=least,
        message=_message(every, best + write, write, between, present, least),
    )


def _between(job: JobRecord, past: tuple[int, float], now: float) -> float:
    """Seconds between two moments at which the job goes on from a checkpoint. A change of its size is one, too, unless
    it saves for it."""
    unplanned = 1.0 / seconds_between(*past)
    saves_when_asked = (job.profile or {}).get("learned_from") == "client"
    running = 0.0 if job.started_at is None else (job.finished_at or now) - job.started_at
    planned = 0.0 if saves_when_asked or running <= 0 else job.rescales / running
    return 1.0 / (unplanned + planned)


def _message(every: float, best: float, write: float, between: float, present: float, least: float) -> str:
    facts = f"writing one takes {time_words(write)}, and an interruption is expected every {time_words(between)}"
    if present - least < WORTH:
        return f"Checkpoints every {time_words(every)} are about right: {facts}."
    return (
        f"Checkpoints every {time_words(best)} instead of every {time_words(every)}: "
        f"{100 * least:.1f} % of the time lost instead of {100 * present:.1f} %; {facts}."
    )
