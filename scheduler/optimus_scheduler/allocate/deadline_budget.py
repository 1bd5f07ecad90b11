"""What a deadline and a budget mean for one job's size: a least one, a largest one, and a sentence for its owner.

* **Deadline**: the least size, by dominant share, that ends in time. The steps left are taken `deadline_margin` as
  many, or at their upper bound if that is less. Where no size meets that, the one that ends soonest, at face value:
  with less and less slack the claim only grows. It stays when the deadline will be missed, by `deadline_grace` of the
  time between submission and deadline at most; twice as much for a job that has that size, so that nothing turns back
  and forth. Beyond that the job competes like any other, and its owner is told. One of which nothing can be predicted
  yet claims its minimum, as it has to run to be known, unless even the shortest runs like it took longer. One whose
  speed is being learned claims at most one step of growth.
* **Budget** (`max_cost`): at most the fastest size at whose cost per step what is left pays for all steps left. Where
  no size does, the one with the cheapest steps: most steps for the money. The rule ends the job when it is spent.

The ceiling of a budget comes first: a deadline is met within it or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from optimus_scheduler.forecast.alike_runs import seconds_of_silent_runs, steps_left_like_alike_runs
from optimus_scheduler.forecast.end import epoch_steps
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.prices import cost_per_second, has_prices
from optimus_scheduler.model import Allocation, Interval, JobSpec, Reason, Resources, SpeedSource, TaskDemand
from optimus_scheduler.model.format import instant_words, size_words, time_words
from optimus_scheduler.settings import Settings

_MARGIN_TO_SHRINK = 1.1
"""A job that is in time gives up tasks when it would be with a tenth more steps, too: speeds err by a few per cent."""
_ABOUT_AS_SOON = 1.03
"""Ends that differ by less are about the same."""
_EVERY_SIZE_TO = 16
"""Up to so many tasks of a role each number is looked at, beyond it only every eighth power of two and the maximum."""
_HARDLY, _CANNOT, _MISSED, _NEAR = "can hardly be met", "cannot be met", "will probably be missed", "is near:"


def says_it_is_missed(message: str) -> bool:
    """Whether a decision's message says already that the deadline will hardly be met."""
    return any(f" {verdict}" in message for verdict in (_HARDLY, _CANNOT, _MISSED))


def leaves_deadline_in_doubt(message: str) -> bool:
    """Whether a decision's message says that the deadline may well be missed."""
    return says_it_is_missed(message) or f" {_NEAR}" in message


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one job in one round."""

    outlook: Outlook
    """With minimum and maximum as narrow as the budget asks for."""
    claim: Allocation | None = None
    """What it needs to meet its deadline."""
    reason: Reason | None = None
    """Instead of the policy's, for a job that keeps what it has."""
    note: str | None = None


def may_have_limits(spec: JobSpec) -> bool:
    """Whether its owner gave it a deadline or a budget."""
    return spec.deadline_at is not None or spec.convergence.max_cost is not None


def limits_of(outlook: Outlook, capacity: Resources, now: float, settings: Settings) -> Limits | None:
    """None for a job with neither deadline nor budget."""
    rule, deadline = outlook.job.spec.convergence, outlook.job.spec.deadline_at
    has_budget = rule.max_cost is not None and has_prices(settings)
    if deadline is None and not has_budget:
        return None
    limits = _under_budget(outlook, capacity, settings) if has_budget else Limits(outlook)
    return limits if deadline is None else _before(deadline, limits, capacity, now, settings)


def bounded(outlook: Outlook, least: Allocation, most: Allocation) -> Outlook:
    """The same job with these limits, within those of its owner."""
    spec = outlook.job.spec
    worker = _narrowed(spec.worker, least.workers, most.workers)
    server = _narrowed(spec.server, least.servers, most.servers)
    if (worker, server) == (spec.worker, spec.server):
        return outlook
    return outlook._replace(job=replace(outlook.job, spec=replace(spec, worker=worker, server=server)))


def _narrowed(demand: TaskDemand, least: int, most: int) -> TaskDemand:
    maximum = max(min(most, demand.maximum), demand.minimum)
    return replace(demand, minimum=min(max(least, demand.minimum), maximum), maximum=maximum)


# --- sizes -----------------------------------------------------------------------------------------------------------


def sizes(outlook: Outlook, capacity: Resources) -> Iterator[Allocation]:
    """Sizes that the job may have and that would fit an empty cluster."""
    worker, server = outlook.job.spec.worker, outlook.job.spec.server
    for workers in _counts(worker):
        for servers in _counts(server):
            size = outlook.size(workers, servers)
            if outlook.demand(size).fits_in(capacity):
                yield size


def in_step(outlook: Outlook) -> Iterator[Allocation]:
    """Growing sizes with as many servers as workers, where there may be so many."""
    server = outlook.job.spec.server
    for workers in _counts(outlook.job.spec.worker):
        yield outlook.size(workers, min(max(workers, server.minimum), server.maximum))


def _counts(demand: TaskDemand) -> list[int]:
    """Numbers of tasks that are tried, increasing."""
    counts = set(range(demand.minimum, min(demand.maximum, max(_EVERY_SIZE_TO, demand.minimum)) + 1))
    power = 4.0 * 8
    while (count := round(2 ** (power / 8))) < demand.maximum:
        counts |= {count} if count > demand.minimum else set()
        power += 1
    return sorted({*counts, demand.maximum})


# --- deadlines -------------------------------------------------------------------------------------------------------


def _before(deadline: float, limits: Limits, capacity: Resources, now: float, settings: Settings) -> Limits:
    outlook, left = limits.outlook, deadline - now
    remaining = outlook.forecast.remaining_steps
    if remaining is None or outlook.end_is_guessed or not outlook.speeds.is_measured:
        if left <= 0:
            return _reported(
                limits, Reason.DEADLINE_CANNOT_BE_MET, f"Its deadline passed at {instant_words(deadline)}."
            )
        if (needed := _least_by_alike_runs(outlook, capacity)) is not None and needed > left:
            missed = f"Its deadline at {instant_words(deadline)} {_HARDLY}"
            takes = f"its fastest size takes {time_words(needed)} or more, without its start"
            note = f"{missed}: by runs like it, {takes}, with a probability of 90 %."
            return _reported(limits, Reason.DEADLINE_CANNOT_BE_MET, note)
        note = f"Too little of it is measured to choose its size by its deadline at {instant_words(deadline)}."
        return replace(_reported(limits, None, note), claim=outlook.minimum)
    possible = list(sizes(outlook, capacity))
    least = _least(outlook, possible, min(remaining.high, settings.deadline_margin * remaining.mean), left, capacity)
    if least is not None:
        or_miss = "" if least == outlook.minimum else "; with less it may miss it"
        needs = f"it needs{_basis(outlook)}{size_words(least)}{or_miss}"
        note = f"To meet its deadline at {instant_words(deadline)} {needs}."
        return replace(_reported(limits, None, note), claim=_reachable(outlook, least, possible, settings))
    if outlook.learning and left > 0 and _might_do(outlook, possible, remaining.mean, left):
        note = f"Which size meets its deadline at {instant_words(deadline)} is still being measured."
        return replace(_reported(limits, None, note), claim=_most_hopeful(outlook, possible, capacity, settings))
    return _without_slack(deadline, limits, possible, remaining, left, capacity, settings)


def _least_by_alike_runs(outlook: Outlook, capacity: Resources) -> float | None:
    """Seconds until its end at the fastest size, by the low end of the steps that jobs like it made and the high end of
    its speed; None: that is not known."""
    if seconds_of_silent_runs(outlook.job) is not None:
        return None  # of its least size alone it is known
    steps = steps_left_like_alike_runs(outlook.job, epoch_steps(outlook.job))
    if steps is None or not outlook.speeds.is_measured:
        return None
    possible = sizes(outlook, capacity)
    return min((_seconds(outlook, size, steps.low, _high(outlook, size)) for size in possible), default=None)


def most_by_alike_runs(outlook: Outlook) -> float | None:
    """Seconds until its end at its minimum, by the high end of what jobs like it took; None: that is not known."""
    silent = seconds_of_silent_runs(outlook.job)
    if silent is not None:
        return silent.high
    steps = steps_left_like_alike_runs(outlook.job, epoch_steps(outlook.job))
    if steps is None or not outlook.speeds.is_measured:
        return None
    return _seconds(outlook, outlook.minimum, steps.high)


def _least(
    outlook: Outlook, possible: list[Allocation], steps: float, left: float, capacity: Resources
) -> Allocation | None:
    """The least size that is in time, in `left` seconds for `steps`; a smaller one than the present only with room."""

    def least_of(meeting: list[Allocation]) -> Allocation | None:
        return min(
            meeting, key=lambda size: (_share(outlook, size, capacity), size.workers, size.servers), default=None
        )

    meeting = [size for size in possible if _seconds(outlook, size, steps) <= left]
    if outlook.present not in meeting:
        return least_of(meeting)
    has = _share(outlook, outlook.present, capacity)
    with_margin = [size for size in meeting if _seconds(outlook, size, _MARGIN_TO_SHRINK * steps) <= left]
    return least_of([size for size in with_margin if _share(outlook, size, capacity) < has] + [outlook.present])


def _without_slack(
    deadline: float,
    limits: Limits,
    possible: list[Allocation],
    remaining: Interval,
    left: float,
    capacity: Resources,
    settings: Settings,
) -> Limits:
    """Of a job that no size brings there with a margin: the best size, for as long as it is not hopelessly late."""
    outlook, steps = limits.outlook, remaining.mean
    if not possible:
        note = f"Its deadline at {instant_words(deadline)} {_CANNOT}: the cluster has no room for it."
        return _reported(limits, Reason.DEADLINE_CANNOT_BE_MET, note)
    soonest = min(_seconds(outlook, size, steps) for size in possible)
    about = [size for size in possible if _seconds(outlook, size, steps) <= _ABOUT_AS_SOON * soonest]
    # What it has stays as long as it is about as good; else the smallest of those that are.
    best = min(about, key=lambda size: (size != outlook.present, _share(outlook, size, capacity)))
    late, has_it = soonest - left, best == outlook.present
    grace = settings.deadline_grace * (deadline - outlook.job.submitted_at) * (2.0 if has_it else 1.0)
    claim = _reachable(outlook, best, possible, settings)
    soonest_with = f"it ends{_basis(outlook)}soonest with {size_words(best)}"
    if late <= 0:
        note = f"Its deadline at {instant_words(deadline)} {_NEAR} {soonest_with}."
        return replace(_reported(limits, None, note), claim=claim)
    missed = f"Its deadline {'passed ' if left <= 0 else ''}at {instant_words(deadline)}"
    if late <= grace:
        tells = "" if left <= 0 else f" {_MISSED} by about {time_words(late)}"
        note = f"{missed}{tells}: {soonest_with}."
        return replace(_reported(limits, Reason.DEADLINE_CANNOT_BE_MET, note), claim=claim)
    if left <= 0:
        return _reported(limits, Reason.DEADLINE_CANNOT_BE_MET, f"{missed}.")
    needs = f"it needs{_basis(outlook)}about {time_words(soonest)} even with {size_words(best)}"
    is_measured = outlook.speeds.source is SpeedSource.MEASURED
    may_do = not is_measured or _might_do(outlook, possible, remaining.low, left)
    fails = _MISSED if may_do else _CANNOT
    return _reported(limits, Reason.DEADLINE_CANNOT_BE_MET, f"{missed} {fails}: {needs}.")


def _basis(outlook: Outlook) -> str:
    """What a sentence rests on before the job's own speed is measured: it may turn out otherwise then."""
    return ", by runs like it, " if outlook.speeds.source is SpeedSource.SIMILAR_JOBS else " "


def _reported(limits: Limits, reason: Reason | None, note: str) -> Limits:
    """The sentence about the deadline after the one about the budget."""
    before = f"{limits.note} " if limits.note else ""
    return replace(limits, reason=reason or limits.reason, note=before + note)


def _seconds(outlook: Outlook, size: Allocation, steps: float, speed: float | None = None) -> float:
    """Until the end, with the change to this size: new tasks take a while to join, then training stops.

    `speed`: steps per second with this size, where not the predicted one.
    """
    if steps <= 0:  # it has made all that it is predicted to make
        return 0.0
    speed = outlook.speeds.at(size) if speed is None else speed
    if size == outlook.present:
        return steps / speed
    has = outlook.present
    joining = outlook.joining_seconds if size.workers > has.workers or size.servers > has.servers else 0.0
    meanwhile = joining * outlook.speeds.at(has) if outlook.has_tasks else 0.0
    if steps <= meanwhile:
        return steps / outlook.speeds.at(has)
    return joining + outlook.stop_seconds + (steps - meanwhile) / speed


def _might_do(outlook: Outlook, possible: list[Allocation], steps: float, left: float) -> bool:
    """Whether some size would be in time at the high end of its predicted speed."""
    return any(_seconds(outlook, size, steps, _high(outlook, size)) <= left for size in possible)


def _most_hopeful(outlook: Outlook, possible: list[Allocation], capacity: Resources, settings: Settings) -> Allocation:
    """The size within one step of growth that might be the fastest: what is worth measuring.

    What the job has stays until it is measured. One that could be as fast is taken only if it is smaller.
    """
    if outlook.has_tasks and not outlook.measured:
        return outlook.present
    near = [size for size in possible if _is_near(outlook, size, settings)]
    return max(
        near,
        key=lambda size: (_high(outlook, size), -_share(outlook, size, capacity), size == outlook.present),
        default=outlook.minimum,
    )


def _high(outlook: Outlook, size: Allocation) -> float:
    """Steps per second at the upper end of the 80 % interval."""
    return outlook.speeds.estimate(size).high


def _is_near(outlook: Outlook, size: Allocation, settings: Settings) -> bool:
    """Whether a size is within one step of growth of what the job has, or of its minimum."""
    here = outlook.present if outlook.has_tasks else outlook.minimum
    return size.workers + size.servers <= settings.growth_factor * (here.workers + here.servers)


def _reachable(outlook: Outlook, least: Allocation, possible: list[Allocation], settings: Settings) -> Allocation:
    """The least size itself, or while the speed is being learned the largest within one step of growth."""
    if not outlook.learning or _is_near(outlook, least, settings):
        return least
    if outlook.has_tasks and not outlook.measured:
        return outlook.present
    near = [size for size in possible if _is_near(outlook, size, settings)]
    return max(near, key=lambda size: (size.workers, size.servers), default=outlook.minimum)


def _share(outlook: Outlook, size: Allocation, capacity: Resources) -> float:
    return outlook.demand(size).dominant_share(capacity)


# --- budgets ---------------------------------------------------------------------------------------------------------


def _under_budget(outlook: Outlook, capacity: Resources, settings: Settings) -> Limits:
    max_cost = outlook.job.spec.convergence.max_cost
    remaining = outlook.forecast.remaining_steps
    assert max_cost is not None, "asked for jobs with a budget only"
    left = max_cost - outlook.job.spent
    possible = list(sizes(outlook, capacity))
    if left <= 0 or remaining is None or outlook.speeds.source is None or not possible:
        return Limits(outlook)
    cheapest = min(possible, key=lambda size: (_step_cost(outlook, size, settings), -outlook.speeds.at(size)))
    affordable = [size for size in possible if _is_affordable(outlook, size, remaining.mean, left, settings)]
    # The predicted end is where the money ends: it would not have converged by then, at the present cost of a step.
    ends_by_cost = outlook.forecast.rule == "max_cost"
    if ends_by_cost or not affordable:
        note = f"Of its budget {left:.4g} is left: it gets the size with the cheapest steps."
        return Limits(bounded(outlook, outlook.minimum, cheapest), reason=Reason.WITHIN_BUDGET, note=note)
    fastest = max(affordable, key=lambda size: (outlook.speeds.at(size), -_step_cost(outlook, size, settings)))
    best = max(possible, key=outlook.speeds.at)
    if outlook.speeds.at(best) <= outlook.speeds.at(fastest) * (1.0 + settings.least_speedup):
        return Limits(outlook)
    note = f"Of its budget {left:.4g} is left: enough for {size_words(fastest)}, not for more."
    return Limits(bounded(outlook, outlook.minimum, fastest), reason=Reason.WITHIN_BUDGET, note=note)


def _is_affordable(outlook: Outlook, size: Allocation, steps: float, left: float, settings: Settings) -> bool:
    """Whether the money left pays for all steps left; for another size than the present one with a margin."""
    margin = 1.0 if size == outlook.present else settings.budget_margin
    return steps * _step_cost(outlook, size, settings) <= margin * left


def _step_cost(outlook: Outlook, size: Allocation, settings: Settings) -> float:
    return cost_per_second(outlook.job.spec, size, settings) / outlook.speeds.at(size)
