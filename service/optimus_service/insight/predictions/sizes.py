"""What finishing a job would take with each size, in time and money, which size to take, and what its owner might do
better: a size that is much cheaper or much faster, and how often a script should write checkpoints. Pure.

Times left are those of a round (`optimus_scheduler.forecast.time_left`), costs their products with prices. Nothing is
advised that the speeds' intervals do not bear out: the bounds below hold for the unlikely end of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from optimus_contract import answers
from optimus_models import cost as money
from optimus_models.checkpoints import best_interval, lost_share, seconds_between
from optimus_models.cost import Estimate, NothingFits
from optimus_models.rescale import RescaleCost
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.forecast.forecast import at_present_pace, habits_of, most_seconds
from optimus_scheduler.forecast.prices import cost_per_second, has_prices, job_prices, priced, seconds_of_budget
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.time_left import LIMIT_ENDS_SECONDS, after, step_seconds, until_limit
from optimus_scheduler.model import Allocation, Interval, Job
from optimus_scheduler.model.format import size_words, time_words
from optimus_scheduler.settings import Settings
from optimus_service.insight.format import interval_body
from optimus_service.store.records import JobRecord


class Size(NamedTuple):
    """One size and what is predicted of it."""

    allocation: Allocation
    steps_per_second: Estimate
    left: money.TimeAndCost | None
    """Time and cost to the end; None when it is not known how many steps are left."""
    is_cut: bool = False
    """Whether a limit of time or money is expected to end it, before its steps are made."""


class Basis(NamedTuple):
    """What times and costs depend on beside the job."""

    now: float
    settings: Settings
    left: Estimate | None = None
    """Seconds left with the present size, by the forecast that is shown; other sizes are told relative to it. None: it
    is of a size that the job has no more, or says nothing."""
    is_by_clock: bool = False
    """Whether a limit of time or money is expected to end the job at its present size, and not its steps."""
    course: CourseToCome = AS_MEASURED
    """How its pace goes on, whatever its size."""


class Limits(NamedTuple):
    """What the choice of a size has to keep."""

    deadline_seconds: float | None = None
    """From now."""
    budget: float | None = None
    """For what is left to do."""


def sizes(
    job: Job, speeds: Speeds, allocations: Sequence[Allocation], steps_left: Estimate | None, basis: Basis
) -> list[Size]:
    """Each of `allocations`, all of one GPU type; empty when no speed is measured. `steps_left`: by what ends the job
    but limits of time and money, to which every size comes after its own time; None: nothing is known to."""
    if not speeds.is_measured or not allocations:
        return []
    estimated = estimated_speeds(speeds, allocations)
    if steps_left is None and not basis.is_by_clock:
        return [Size(allocation, estimated[allocation], None) for allocation in allocations]
    prices = job_prices(job.spec, allocations[0].gpu_type, basis.settings)
    habits = habits_of(job, basis.now, RescaleCost.fit(job.rescale_seconds).predict(), basis.course)

    def by_steps(size: Allocation, speed: Estimate) -> Estimate:
        if steps_left is None:
            return _NEVER
        most = _clock_seconds(job, size, basis) + LIMIT_ENDS_SECONDS
        return Estimate(*at_present_pace(job, Interval(*steps_left), step_seconds(speed, habits), most)[0])

    factor = _up_to_date(job, speeds, by_steps, basis)
    found = []
    for size in allocations:
        ends, limit = by_steps(size, estimated[size]).times(factor), until_limit(_clock_seconds(job, size, basis))
        seconds = Estimate(*(min(each, most) for each, most in zip(ends, limit, strict=True)))
        is_cut = ends.mean >= limit.mean
        if size == job.allocation and basis.left is not None:
            seconds, is_cut = Estimate(*(min(each, limit.high) for each in basis.left)), basis.is_by_clock
        found.append(_size(size, estimated[size], seconds, prices, is_cut=is_cut))
    return found


_NEVER = Estimate(math.inf, math.inf, math.inf)


def _clock_seconds(job: Job, size: Allocation, basis: Basis) -> float:
    """How long limits of time and money leave the job with this size; inf: it has none."""
    by_time = most_seconds(job, basis.now) - LIMIT_ENDS_SECONDS
    return min(by_time, seconds_of_budget(job, size, basis.settings))


def _size(size: Allocation, speed: Estimate, seconds: Estimate, prices: money.Prices, *, is_cut: bool) -> Size:
    cost = seconds.times(prices.per_second(priced(size)))
    return Size(size, speed, money.TimeAndCost(priced(size), seconds, cost), is_cut)


def _up_to_date(job: Job, speeds: Speeds, by_steps: Callable[[Allocation, Estimate], Estimate], basis: Basis) -> float:
    """How many times as long the present size takes by the forecast that is shown as by the speeds of now; that of one
    which a limit of time or money ends says nothing of speeds."""
    if basis.left is None or basis.is_by_clock or job.allocation.is_empty:
        return 1.0
    here = by_steps(job.allocation, speeds.estimate(job.allocation)).mean
    return basis.left.mean / here if 0 < here < math.inf and basis.left.mean > 0 else 1.0


def estimated_speeds(speeds: Speeds, allocations: Sequence[Allocation]) -> dict[Allocation, Estimate]:
    """Steps/s of each size, all of one GPU type, with the interval of a measured speed."""
    return dict(zip(allocations, speeds.estimates(allocations), strict=True))


def cost_body(
    found: Sequence[Size], present: Allocation, so_far: float, limits: Limits, waiting: Interval | None
) -> answers.Cost:
    """The money side of a prediction. `waiting`: seconds until the job has tasks, with which it ends by a deadline or
    not; None: nothing tells when it gets any. A size that a limit of time or money ends is no faster or cheaper than
    others: it does more or less of the work."""
    known = [size.left for size in found if size.left is not None]
    done = [size.left for size in found if size.left is not None and not size.is_cut]
    here = next((size.left for size in found if size.allocation == present), None)
    in_time = None
    if limits.deadline_seconds is not None and waiting is not None:
        from_now = [each._replace(seconds=Estimate(*after(waiting, Interval(*each.seconds)))) for each in known]
        in_time = _choice(money.cheapest_before(from_now, limits.deadline_seconds))
    return answers.Cost(
        so_far=so_far,
        to_finish=None if here is None else interval_body(here.cost),
        cheapest_before_deadline=in_time,
        fastest_under_budget=None if limits.budget is None else _choice(money.fastest_under(known, limits.budget)),
        worth_considering=[choice for size in money.worth_considering(done) if (choice := _choice(size)) is not None],
    )


def _choice(found: money.TimeAndCost | NothingFits) -> answers.Choice | None:
    best = found.nearest if isinstance(found, NothingFits) else found
    if best is None:
        return None
    seconds, cost = interval_body(best.seconds), interval_body(best.cost)
    if seconds is None or cost is None:
        return None
    return answers.Choice(
        workers=best.allocation.workers,
        servers=best.allocation.servers,
        remaining_seconds=seconds,
        cost=cost,
        keeps_limit=not isinstance(found, NothingFits),
    )


def estimate_of(body: answers.Interval | None) -> Estimate | None:
    """The inverse of `interval_body`: a bound that is not known is far away."""
    if body is None:
        return None
    low = 0.0 if body.low is None else body.low
    return Estimate(body.mean, low, float("inf") if body.high is None else body.high)


MOST_SLOWER = 1.25
"""A cheaper size may take so many times as long, at the unlikely end of its interval."""
LEAST_SAVED = 0.1
"""... and saves this part of the cost at least, at the unlikely end of its."""
LEAST_FASTER = 0.8
"""A faster size takes this part of the time at most, at the unlikely end ..."""
MOST_DEARER = 1.5
"""... and costs so many times as much at most."""
LEAST_SIZES = 2
"""Different numbers of workers that must have been measured: one says nothing of how the speed grows."""
MOST_TIMES = 4
"""Sizes up to so many times the present one are looked at: speeds further away are guesses."""


def advice(
    job: Job, speeds: Speeds, settings: Settings, may_have: Callable[[Allocation], bool]
) -> list[answers.Advice]:
    """The cheaper size and the faster size that are worth a thought; none while too little is measured.

    `may_have`: whether the job's limits and the cluster allow a size.
    """
    present = _present(job)
    if present is None or speeds.source is None or len(_measured_workers(job)) < LEAST_SIZES:
        return []
    others = [size for size in _others(present) if may_have(size)]
    speed = estimated_speeds(speeds, [present, *others])
    terms = ("dearer", "cheaper") if has_prices(settings) else ("more task-hours", "fewer task-hours")
    choices = [_compared(job, present, other, speed, settings) for other in others]
    cheaper = [each for each in choices if each.seconds.high <= MOST_SLOWER and each.cost.high <= 1.0 - LEAST_SAVED]
    faster = [each for each in choices if each.seconds.high <= LEAST_FASTER and each.cost.high <= MOST_DEARER]
    found = []
    if cheaper:
        found.append(min(cheaper, key=lambda each: each.cost.mean).body("cheaper", terms))
    if faster:
        found.append(min(faster, key=lambda each: each.seconds.mean).body("faster", terms))
    return found


def _present(job: Job) -> Allocation | None:
    """The size that the job has, or (one that has ended) mostly had; None: it had none."""
    if not job.allocation.is_empty:
        return job.allocation
    if not job.speed_samples:
        return None
    most = max(job.speed_samples, key=lambda sample: sample.n_steps)
    return Allocation(most.workers, most.servers, most.gpu_type)


def _measured_workers(job: Job) -> set[int]:
    """Numbers of workers that this job, or an earlier run of the same task, has measured."""
    samples = [*job.speed_samples, *(sample for ended in job.similar for sample in ended.speed_samples)]
    return {sample.workers for sample in samples}


def _others(present: Allocation) -> Iterable[Allocation]:
    """Other numbers of workers, with as many servers for each."""
    for workers in range(1, MOST_TIMES * present.workers + 1):
        servers = max(1, round(present.servers * workers / present.workers)) if present.servers else 0
        if workers != present.workers:
            yield Allocation(workers, servers, present.gpu_type)


class _Choice:
    """Another size, as ratios to the present one."""

    def __init__(self, present: Allocation, other: Allocation, seconds: Estimate, cost: Estimate) -> None:
        self.present, self.other, self.seconds, self.cost = present, other, seconds, cost

    def body(self, kind: answers.AdviceKind, terms: tuple[str, str]) -> answers.Advice:
        seconds, cost = interval_body(self.seconds), interval_body(self.cost)
        assert seconds is not None and cost is not None, "bounds were asked of them"  # noqa: PT018
        return answers.Advice(
            kind=kind,
            message=f"{size_words(self.other)} instead of {size_words(self.present)}: "
            f"{_change(self.seconds.mean, 'more time', 'less time')}, {_change(self.cost.mean, *terms)}.",
            workers=self.other.workers,
            servers=self.other.servers,
            seconds_ratio=seconds,
            cost_ratio=cost,
        )


def _compared(
    job: Job, present: Allocation, other: Allocation, speed: dict[Allocation, Estimate], settings: Settings
) -> _Choice:
    seconds = speed[present].over(speed[other])
    return _Choice(
        present, other, seconds, seconds.times(_price(job, other, settings) / _price(job, present, settings))
    )


def _price(job: Job, size: Allocation, settings: Settings) -> float:
    """Money for a second; without prices, all tasks cost the same."""
    priced = cost_per_second(job.spec, size, settings) if has_prices(settings) else 0.0
    return priced or float(size.workers + size.servers)


def _change(ratio: float, more: str, less: str) -> str:
    """A ratio of times or costs in words: 1.03 is `3 % more time`, 0.5 is `2.0 times as fast`."""
    if ratio <= 0.5 and less == "less time":
        return f"{1 / ratio:.1f} times as fast"
    percent = round(abs(ratio - 1) * 100)
    if percent == 0:
        return f"no {more}"
    return f"{percent} % {more if ratio > 1 else less}"


# --- how often to write checkpoints ----------------------------------------------------------------------------------

PAST_SECONDS = 90 * 86_400.0
"""Interruptions of jobs that were submitted in this time count."""
WORTH = 0.005
"""Part of the time that another interval has to save, to be advised."""


def checkpoint_advice(job: JobRecord, past: tuple[int, float], now: float) -> answers.CheckpointAdvice | None:
    """None: it is not known how the job writes its checkpoints. `past`: interruptions of all jobs in so many seconds of
    running (`Memberships.interruptions`); `now`: POSIX seconds."""
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
