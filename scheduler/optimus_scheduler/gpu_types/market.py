"""A market of GPU types: each job takes the type where it gains most at the prices that clear all types.

A fast GPU is for jobs that gain much from it, and for short jobs before long ones. So each size of each job on each
type that it accepts is an offer, worth

    weight · speed there / its best speed per GPU on any type,

less the charge of changing to it, with weights and charges of the policy `optimus` (`goals`, `candidates`); another
type costs at least `least_type_gain`. The largest sum over all jobs, one offer each and no type above its GPUs,
is solved as its LP relaxation. The dual has one price per type: at the optimal prices, each job takes the offer with
the largest surplus. Prices follow demand until the dual is least; then jobs take their offers in turn, those first that
would lose most elsewhere. Only the type of an offer counts: the policy chooses the size.

References: Bertsekas, "Linear Network Optimization", MIT Press 1991, chapter 4 (assignment by prices); Narayanan et
al., "Gavel", OSDI 2020 (what a type is worth differs by job).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray
from optimus_scheduler.allocate.optimus.candidates import Candidates, candidates, sizes_of
from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.goals import Round, goal_weights
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.forecast.gpu_types import RelativeSpeeds, gpus_by_type, gpus_of_a_worker, may_move
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Directive, Job, Snapshot
from optimus_scheduler.settings import Settings

_ROUNDS = 60
"""How often prices follow demand; each time less, ..."""
_FIRST_STEP, _SMALLER = 0.6, 0.93
"""... at first by this logarithm at most. Together they reach prices apart by a factor of thousands."""


def traded_types(
    outlooks: Sequence[Outlook],
    reported: Snapshot,
    choices: Mapping[str, Sequence[str]],
    speeds: RelativeSpeeds,
    settings: Settings,
) -> dict[str, str]:
    """The GPU type of each job that competes for GPUs, by job id. Independent of the order of `outlooks`.

    `outlooks` are forecasts on one type each, any that the job accepts; `reported` has what was measured on which type.
    """
    offered = gpus_by_type(reported.nodes)
    types = sorted(offered)
    gpus = np.array([offered[gpu_type] for gpu_type in types], dtype=np.float64)
    there: list[Outlook] = []
    for one in outlooks:
        if one.id not in choices or one.job.directive is Directive.CANCEL:
            continue
        if one.forecast.converged and one.has_tasks:  # keeps what it has for the moment
            has = one.present.gpu_type
            gpus -= [one.present.workers * gpus_of_a_worker(one.job) * (gpu_type == has) for gpu_type in types]
        else:
            there.append(one)
    if not there or not types:
        return {}
    there.sort(key=lambda one: (one.job.submitted_at, one.id))
    jobs = {job.id: job for job in reported.jobs}
    settled = frozenset(one.id for one in there if not may_move(jobs[one.id], reported.now, settings))
    traders = _traders(there, jobs, choices, settled, types, speeds)
    gpus = np.maximum(gpus, 0.0)
    offers = _offers(traders, gpus, reported, settings)
    if not len(offers.job):
        return {}
    gpu_type = taken(offers, prices(offers, gpus), gpus, traders.present_type).tolist()
    return {one.id: types[number] for one, number in zip(there, gpu_type, strict=True) if number >= 0}


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """k sizes of jobs on m types; rows sorted by job."""

    job: IntArray
    """(k,)"""
    gpu_type: IntArray
    """(k,) the number of the type."""
    gpus: FloatArray
    """(k,)"""
    worth: FloatArray
    """(k,) less what changing to it costs; above 0 or 0."""


# --- what is offered -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Traders:
    """n jobs on m types."""

    outlooks: Sequence[Outlook]
    """Each with the forecast for one type."""
    speeds: FloatArray
    """(n, m) how many times as fast each is on each type as on that one; 0 where it may not go."""
    present_type: IntArray
    """(n,) the type of the GPUs that it has; -1 without."""


def _traders(
    outlooks: Sequence[Outlook],
    reported: Mapping[str, Job],
    choices: Mapping[str, Sequence[str]],
    settled: frozenset[str],
    types: Sequence[str],
    speeds: RelativeSpeeds,
) -> _Traders:
    """`reported`: jobs with all that they measured on whatever type; `settled`: those that may not move now."""
    relative = np.zeros((len(outlooks), len(types)))
    present_type = np.full(len(outlooks), -1)
    number = {gpu_type: place for place, gpu_type in enumerate(types)}
    for j, one in enumerate(outlooks):
        of, accepted = speeds.of(reported[one.id]), choices[one.id]
        has = one.present.gpu_type
        if has in accepted and has in number:
            present_type[j] = number[has]
            accepted = (has,) if one.id in settled else accepted
        for gpu_type in accepted:
            if gpu_type in number:
                relative[j, number[gpu_type]] = of(gpu_type) / of(one.gpu_type or gpu_type)
    return _Traders(outlooks, relative, present_type)


def _offers(traders: _Traders, gpus: FloatArray, reported: Snapshot, settings: Settings) -> Offers:
    """All sizes that the jobs may have in this round, on all types that they may go to."""
    jobs = JobColumns(traders.outlooks)
    frontiers = Frontiers(jobs, reported.capacity)
    table = candidates(jobs, frontiers, sizes_of(jobs, settings), settings, reported.now)
    rows = np.flatnonzero(table.workers > 0)
    job = table.job[rows]
    each = np.array([gpus_of_a_worker(one.job) for one in jobs], dtype=np.float64)
    asked = table.workers[rows] * each[job]
    speed = table.speed[rows]
    best_per_gpu = np.zeros(len(jobs))
    np.maximum.at(best_per_gpu, job, speed / asked)
    best_type = np.maximum(traders.speeds.max(axis=1), 1e-12)
    best_per_gpu *= best_type
    per_share = best_per_gpu * max(gpus.mean(), 1.0)  # as if all GPUs were of its best type
    weight = goal_weights(jobs, Round(frontiers, per_share, reported.now, best_type), settings)
    # A job without a forecast must not push others off their type: it ranks in the middle.
    weight = np.where(jobs.is_unknown, np.median(weight), weight)
    worth = (weight / best_per_gpu)[job] * speed
    kept = 1.0 - _charges(jobs, traders, table, rows, settings)
    row, gpu_type = np.nonzero(traders.speeds[job] > 0)
    return Offers(job[row], gpu_type, asked[row], (worth[:, None] * traders.speeds[job] * kept)[row, gpu_type])


def _charges(jobs: JobColumns, traders: _Traders, table: Candidates, rows: IntArray, settings: Settings) -> FloatArray:
    """(k, m) the part of its worth that changing to the sizes `rows` (k,) on each type costs."""
    job, present = table.job[rows], jobs.pairs("")
    has_tasks = (traders.present_type >= 0)[job]
    same: BoolArray = (table.workers[rows] == present[job, 0]) & (table.servers[rows] == present[job, 1])
    change = np.where(has_tasks, table.charge[job], 0.0)
    move = np.where(has_tasks, np.maximum(change, 1.0 - 1.0 / (1.0 + settings.least_type_gain)), 0.0)
    stays = traders.present_type[job][:, None] == np.arange(traders.speeds.shape[1])
    return np.where(stays, np.where(same, 0.0, change)[:, None], move[:, None])


# --- the types taken ------------------------------------------------------------------------------------------------


def prices(offers: Offers, gpus: FloatArray) -> FloatArray:
    """(m,) worth of a GPU of each type; `gpus` (m,) of each. Of the prices on the way those with the least dual.

    The dual is what all jobs gain at these prices and all GPUs earn: no sharing out is worth more.
    """
    first, number = _by_job(offers.job)
    logs = np.full(len(gpus), np.log(max(float((offers.worth / offers.gpus).max()), 1e-300)))
    best, least, step = np.exp(logs), np.inf, _FIRST_STEP
    for _ in range(_ROUNDS):
        at = np.exp(logs)
        left = offers.worth - at[offers.gpu_type] * offers.gpus
        most = np.maximum(np.maximum.reduceat(left, first), 0.0)
        dual = float(most.sum() + at @ gpus)
        if dual < least:
            best, least = at, dual
        wanted = np.flatnonzero(left == most[number])
        equal = np.bincount(number[wanted], minlength=len(first))  # offers that are all the same to a job
        asked = np.bincount(offers.gpu_type[wanted], offers.gpus[wanted] / equal[number[wanted]], len(gpus))
        logs = logs + step * np.clip((asked - gpus) / np.maximum(gpus, 1.0), -1.0, 1.0)
        step *= _SMALLER
    return np.asarray(best)


def taken(offers: Offers, at: FloatArray, gpus: FloatArray, present_type: IntArray) -> IntArray:
    """(n,) the type that each of n jobs takes at the prices `at` (m,); -1 of jobs without an offer.

    `present_type` (n,) is the type that each has, or -1. The job that would lose most elsewhere is served first, and
    jobs that take nothing at these prices last, from what is left. A job that runs and would take nothing stays on its
    type; a waiting one for which nothing is left has the type of its best offer, and competes there.
    """
    left = offers.worth - at[offers.gpu_type] * offers.gpus
    by_type = np.full((len(present_type), len(gpus)), -np.inf)
    np.maximum.at(by_type, (offers.job, offers.gpu_type), left)
    most = by_type.max(axis=1)
    result = np.where(present_type >= 0, present_type, by_type.argmax(axis=1))
    result[np.isneginf(most)] = -1
    second = np.maximum(np.sort(by_type, axis=1)[:, -2], 0.0) if len(gpus) > 1 else np.zeros(len(present_type))
    served = np.flatnonzero(~np.isneginf(most) & ((present_type < 0) | (most > 0)))
    served = served[np.lexsort((served, (second - most)[served], (most <= 0)[served]))]
    order = np.lexsort((-left, offers.job))
    bounds = np.searchsorted(offers.job[order], np.arange(len(present_type) + 1)).tolist()
    gpu_type, asked, available = offers.gpu_type[order].tolist(), offers.gpus[order].tolist(), gpus.tolist()
    for j in served.tolist():
        fits = (row for row in range(bounds[j], bounds[j + 1]) if asked[row] <= available[gpu_type[row]])
        row = next(fits, None)
        if row is not None:
            available[gpu_type[row]] -= asked[row]
            result[j] = gpu_type[row]
    return np.asarray(result)


def _by_job(job: IntArray) -> tuple[IntArray, IntArray]:
    """The first row of each job that has rows, and (k,) which of these jobs each row is of."""
    is_first = np.concatenate([[True], job[1:] != job[:-1]])
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1
