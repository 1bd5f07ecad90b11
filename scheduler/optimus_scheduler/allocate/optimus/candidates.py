"""All sizes that all jobs could have in a round, as arrays: what they cost and what they are worth.

The worth of a size is `weight · speed / best speed per share`: the share of the cluster that it makes full use of,
times the job's weight (see `goals`). The first row of each job is having nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray, rounded
from optimus_scheduler.allocate.optimus.frontier import POINT_BYTES, Frontiers
from optimus_scheduler.allocate.optimus.goals import Round, goal_weights
from optimus_scheduler.allocate.optimus.horizons import horizons, turnover
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.optimus.weights import remaining_work
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation
from optimus_scheduler.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """k rows, sorted by job, then by cost; n jobs."""

    job: IntArray
    """(k,)"""
    workers: IntArray
    servers: IntArray
    cost: FloatArray
    """(k,) shares of the cluster."""
    speed: FloatArray
    """(k,) steps per second."""
    plain: FloatArray
    """(k,) worth by itself."""
    worth: FloatArray
    """(k,) worth less what changing to it costs."""
    first: IntArray
    """(n + 1,) rows of job j are first[j] ... first[j + 1] - 1."""
    least_speed: FloatArray
    """(n,) steps per second of each job at its minimum."""
    work: FloatArray
    """(n,) see `weights.remaining_work`."""
    charge: FloatArray
    """(n,) see `charges`."""
    seconds_left: FloatArray
    """(n,) of each job with the size that it has; without one, with a speed of 1."""

    def __len__(self) -> int:
        return len(self.job)

    def gain(self, low: IntArray, high: IntArray) -> FloatArray:
        """Worth per share of going from the rows `low` to the rows `high`."""
        shares = np.maximum(self.cost[high] - self.cost[low], 1e-15)
        return np.asarray((self.worth[high] - self.worth[low]) / shares)

    def is_worthwhile(self, low: IntArray, high: IntArray, least_task_gain: float) -> BoolArray:
        """Whether going from the rows `low` to the rows `high` makes each job faster by so much per task at least."""
        tasks = self.workers[low] + self.servers[low]
        wanted = self.plain[low] * (1.0 + least_task_gain * (self.workers[high] + self.servers[high] - tasks))
        return np.asarray((tasks == 0) | (self.plain[high] >= wanted))


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What each job has, and how far it may be changed in this round; arrays (n,) or (n, 2) of workers and servers."""

    present: IntArray
    has_tasks: BoolArray
    least: IntArray
    most: IntArray
    most_tasks: IntArray
    keeps: BoolArray
    """It may only keep what it has or a part of that: its present size is not measured yet."""

    def of(self, jobs: IntArray) -> Sizes:
        """Of these jobs only."""
        return Sizes(
            self.present[jobs],
            self.has_tasks[jobs],
            self.least[jobs],
            self.most[jobs],
            self.most_tasks[jobs],
            self.keeps[jobs],
        )


def sizes_of(outlooks: Sequence[Outlook], settings: Settings) -> Sizes:
    """How far each job may grow now.

    A job without tasks of which no speed is sure starts with its minimum, a size that is not measured yet does not
    grow, and while speeds are being learned a job grows by `growth_factor` at most: else these would be jumps into the
    unknown. Downwards all sizes of its frontier are open: who has to give room gives no more than others take.
    """
    jobs = JobColumns.of(outlooks)
    present, least, most = jobs.pairs(""), jobs.pairs("least_"), jobs.pairs("most_")
    has_tasks, learning = jobs.has_tasks, jobs.column("learning") > 0
    tasks = np.where(has_tasks, settings.growth_factor * present.sum(axis=1), least.sum(axis=1)).astype(np.int64)
    most_tasks = np.where(learning | (jobs.is_unknown & ~has_tasks), tasks, most.sum(axis=1))
    return Sizes(present, has_tasks, least, most, most_tasks, has_tasks & (jobs.column("measured") == 0))


def candidates(
    outlooks: Sequence[Outlook], frontiers: Frontiers, sizes: Sizes, settings: Settings, now: float
) -> Candidates:
    """The rows of all jobs. `now`: POSIX seconds."""
    first, (workers, servers, cost, speeds, kind) = _rows(outlooks, frontiers, sizes, settings)
    job = np.arange(len(outlooks)).repeat(np.diff(first))
    is_present = kind == _PRESENT
    best = frontiers.best_speed_per_share
    # Of equal jobs the older starts first, whatever speed is believed of each: not the one that rounding favours.
    plain = rounded((goal_weights(outlooks, Round(frontiers, best, now), settings) / best)[job] * speeds)
    present_speed = np.zeros(len(outlooks))
    present_speed[job[is_present]] = speeds[is_present]
    seconds_left = _seconds_left(outlooks, present_speed)
    jobs = JobColumns.of(outlooks)
    lasting = lasts(jobs, frontiers, seconds_left)
    charge = charges(jobs, lasting, settings)
    paid = np.where(sizes.has_tasks, charge, 0.0)
    # New tasks bring nothing before they take part, and those that are not wanted any more leave at once.
    joins = kind >= _MORE
    part = np.minimum(jobs.column("joining_seconds") / lasting, 1.0)
    until = np.where(joins, part[job], 0.0)
    meanwhile = present_speed[job]
    mixed = ((until > 0) & (kind == _MIXED)).nonzero()[0]
    for j in sorted(set(job[mixed].tolist())):
        rows = mixed[job[mixed] == j]
        stay = (np.minimum(each[rows], has) for each, has in zip((workers, servers), sizes.present[j], strict=True))
        meanwhile[rows] = outlooks[j].speeds.many(*stay)
    before = plain * meanwhile / np.where(speeds > 0, speeds, np.inf)
    worth = np.where(is_present, plain, plain * (1.0 - until - paid[job]) + until * before)
    # A paused job pays when it resumes; one that keeps no checkpoint trains again what it has trained, too.
    again = paid + jobs.column("unsaved_seconds") / lasting
    lost = np.zeros(len(outlooks))
    lost[job[is_present]] = (again[job] * plain)[is_present]
    worth[first[:-1]] -= lost
    least_speed = speeds[first[:-1] + 1]
    work = remaining_work(jobs, best, frontiers.least_shares)
    return Candidates(job, workers, servers, cost, speeds, plain, worth, first, least_speed, work, charge, seconds_left)


def _seconds_left(outlooks: Sequence[Outlook], present_speed: FloatArray) -> FloatArray:
    """`present_speed` (n,): 0 where it is to be looked up."""
    jobs = JobColumns.of(outlooks)
    speed = np.where(jobs.has_tasks, present_speed, 1.0)
    for j in (speed <= 0.0).nonzero()[0].tolist():
        speed[j] = jobs[j].speeds.at(jobs[j].present)
    return np.where(jobs.is_unknown, jobs.column("typical_seconds"), jobs.remaining / speed)


def charges(jobs: JobColumns, lasting: FloatArray, settings: Settings) -> FloatArray:
    """(n,) the part of its work that a change costs each job while the new size lasts, up to 1; the error of a good
    speed model at least, as otherwise jobs are resized for noise.

    That is the stop, with a margin, by how long the new size will last: `lasting` (n,) seconds, see `lasts`.
    """
    margin = settings.rescale_margin + settings.doubt_margin * (1.0 - jobs.column("sure_of_speed"))
    part = np.maximum(margin * jobs.column("stop_seconds") / lasting, settings.least_speedup)
    return np.asarray(np.minimum(part, 1.0))


def lasts(jobs: JobColumns, frontiers: Frontiers, seconds_left: FloatArray) -> FloatArray:
    """(n,) seconds for which the size of each job will last, see `horizons`; above 0, infinite without tasks."""
    present = jobs.pairs("")
    in_use = present[:, 0] * frontiers.worker_shares + present[:, 1] * frontiers.server_shares
    change_seconds = jobs.column("stop_seconds") + jobs.column("joining_seconds")
    age, learning = jobs.column("allocated_seconds"), jobs.column("learning") > 0
    found = horizons(age, change_seconds, seconds_left, learning, turnover(in_use, seconds_left))
    return np.asarray(np.where(jobs.has_tasks, found, np.inf))


_LESS, _PRESENT, _MORE, _MIXED = range(4)
"""Kinds of sizes: no more of either role than the job has, what it has, more of one role or both, and more of one but
less of the other."""
_ROW_BYTES = 5 * 8
_RowColumns = tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray]
"""Workers, servers, cost, speed and kind of every row."""
_Columns = tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]
"""Job, workers, servers, cost and speed of every row."""


def _rows(
    outlooks: Sequence[Outlook], frontiers: Frontiers, sizes: Sizes, settings: Settings
) -> tuple[IntArray, _RowColumns]:
    """The sizes that each job may have now, of those that have told nothing new as in the round before: (n + 1,) where
    those of each job begin, and the columns (k,)."""
    steady, keeps = [one.steady for one in outlooks], sizes.keeps.tolist()
    known = [each.rows for each in steady]
    # All else that they are made of is that of the `Steady`.
    new = [
        j
        for j, (before, frontier, has_to_keep) in enumerate(zip(known, frontiers.each, keeps, strict=True))
        if before is None
        or before[0] is not frontier
        or before[1] is not has_to_keep
        or before[2] != settings.growth_factor
    ]
    if new:
        is_all = len(new) == len(outlooks)
        numbers = np.array(new)
        if is_all:
            first, columns = _rows_anew(outlooks, frontiers, sizes)
        else:
            first, columns = _rows_anew([outlooks[j] for j in new], frontiers.of(new), sizes.of(numbers))
        lasts_on = sizes.has_tasks[numbers]  # a job without tasks has some in the next round, mostly, and other sizes
        if lasts_on.any() or not is_all:
            packed = _packed(first, columns)
            for j, is_kept, rows in zip(new, lasts_on.tolist(), packed, strict=True):
                known[j] = frontiers.each[j], keeps[j], settings.growth_factor, rows
                steady[j].rows = known[j] if is_kept else None
        if is_all:
            return first, columns
    return _unpacked([each[3] for each in known if each is not None])


def _rows_anew(outlooks: Sequence[Outlook], frontiers: Frontiers, sizes: Sizes) -> tuple[IntArray, _RowColumns]:
    """The same of jobs of which nothing is known."""
    (job, workers, servers, cost, speeds), is_present = _sizes_now(outlooks, frontiers, sizes)
    has_workers, has_servers = (each[job] for each in sizes.present.T)
    is_more = sizes.has_tasks[job] & ((workers > has_workers) | (servers > has_servers))
    is_less = (workers < has_workers) | (servers < has_servers)
    kind = np.where(is_present, _PRESENT, np.where(is_more, np.where(is_less, _MIXED, _MORE), _LESS))
    return job.searchsorted(np.arange(len(outlooks) + 1)), (workers, servers, cost, speeds, kind)


def _packed(first: IntArray, columns: _RowColumns) -> list[bytes]:
    """The rows of each job as 64-bit floats, one row after the other: a round joins those of thousands of jobs."""
    rows = np.stack(columns, axis=1).astype(np.float64)
    return [rows[begin:end].tobytes() for begin, end in pairwise(first.tolist())]


def _unpacked(packed: Sequence[bytes]) -> tuple[IntArray, _RowColumns]:
    """Where the rows of each job begin, and their columns."""
    counts = np.fromiter(map(len, packed), np.int64, len(packed)) // _ROW_BYTES
    first = np.zeros(len(counts) + 1, dtype=np.int64)
    counts.cumsum(out=first[1:])
    columns = np.ascontiguousarray(np.frombuffer(b"".join(packed)).reshape(-1, 5).T)
    workers, servers, kind = (columns[place].astype(np.int64) for place in (0, 1, 4))
    return first, (workers, servers, columns[2], columns[3], kind)


def _sizes_now(outlooks: Sequence[Outlook], frontiers: Frontiers, sizes: Sizes) -> tuple[_Columns, BoolArray]:
    """The sizes that each job may have now and its present size; (k,) which of them is that."""
    # No size has as few tasks as the one below it: those with too many tasks need not be looked at.
    most_tasks = np.maximum(np.where(sizes.keeps, 0, sizes.most_tasks), sizes.present.sum(axis=1))
    most = np.maximum(most_tasks - sizes.least.sum(axis=1), 0) + 2
    columns = _columns_of(
        [frontier.points[:end] for frontier, end in zip(frontiers.each, (POINT_BYTES * most).tolist(), strict=True)]
    )
    job, workers, servers = columns[:3]
    is_present = _is_present(job, workers, servers, sizes)
    beside = sizes.has_tasks.copy()
    beside[job[is_present]] = False
    if sizes.keeps.any() or (sizes.most_tasks < sizes.most.sum(axis=1)).any():
        allowed = (is_present | _allowed(job, workers, servers, sizes)).nonzero()[0]
        job, workers, servers = job[allowed], workers[allowed], servers[allowed]
        is_present = is_present[allowed]
        columns = job, workers, servers, columns[3][allowed], columns[4][allowed]
    further = _above_present(columns, is_present)
    if not beside.any() and not further:
        return columns, is_present
    asked = [(j, outlooks[j].present) for j in beside.nonzero()[0].tolist()]
    asked = [
        (j, size)
        for j, has in asked
        if (size := _as_allowed(outlooks[j], has)) is has or not _has_row(columns, j, size)
    ]
    for j in further:  # one more of either alone, for room that does not hold one of each
        workers_now, servers_now = _pair(outlooks[j].present)
        asked += [
            (j, outlooks[j].size(workers_now + 1, servers_now)),
            (j, outlooks[j].size(workers_now, servers_now + 1)),
        ]
    columns = _with_sizes(columns, asked, outlooks, frontiers)
    return columns, _is_present(*columns[:3], sizes)


def _columns_of(points: Sequence[bytes]) -> _Columns:
    """These sizes of each job, packed, in their order."""
    counts = np.fromiter(map(len, points), np.int64, len(points)) // POINT_BYTES
    job = np.arange(len(points)).repeat(counts)
    workers, servers, costs, speeds = np.ascontiguousarray(np.frombuffer(b"".join(points)).reshape(-1, 4).T)
    return job, workers.astype(np.int64), servers.astype(np.int64), costs, speeds


def _is_present(job: IntArray, workers: IntArray, servers: IntArray, sizes: Sizes) -> BoolArray:
    # Jobs without tasks have no present row.
    present_workers = np.where(sizes.has_tasks, sizes.present[:, 0], -1)
    return np.asarray((workers == present_workers[job]) & (servers == sizes.present[:, 1][job]))


def _allowed(job: IntArray, workers: IntArray, servers: IntArray, sizes: Sizes) -> BoolArray:
    """Rows within the limits of this round, the minimum and nothing always."""
    tasks = workers + servers
    is_least = (workers == sizes.least[:, 0][job]) & (servers == sizes.least[:, 1][job])
    is_part = (workers <= sizes.present[:, 0][job]) & (servers <= sizes.present[:, 1][job])
    return np.asarray(is_least | np.where(sizes.keeps[job], is_part, tasks <= sizes.most_tasks[job]))


def _above_present(columns: _Columns, is_present: BoolArray) -> list[int]:
    """Jobs whose next size above the present one has one worker and one server more."""
    job, workers, servers = columns[:3]
    here = is_present[:-1].nonzero()[0]
    above = here + 1
    both = (workers[above] == workers[here] + 1) & (servers[above] == servers[here] + 1)
    found: list[int] = job[here[both & (job[above] == job[here])]].tolist()
    return found


def _with_sizes(
    columns: _Columns, asked: Sequence[tuple[int, Allocation]], outlooks: Sequence[Outlook], frontiers: Frontiers
) -> _Columns:
    """Further rows with these sizes of some jobs, where they lie within what the job may have."""
    first = columns[0].searchsorted(np.arange(len(frontiers.each) + 1)).tolist()
    added: list[tuple[int, int, int, int, float, float]] = []
    for j, size in asked:
        outlook = outlooks[j]
        workers, servers = _pair(size)
        if _between(outlook.minimum, size, outlook.maximum):
            cost = workers * float(frontiers.worker_shares[j]) + servers * float(frontiers.server_shares[j])
            cheaper = columns[3][first[j] : first[j + 1]].searchsorted(cost * (1 - 1e-12))
            added.append((first[j] + int(cheaper), j, workers, servers, cost, outlook.speeds.at(size)))
    if not added:
        return columns
    # By place, then by cost: the rows of a job stay sorted.
    at, job, workers_, servers_, costs, speeds = zip(*sorted(added, key=lambda row: (row[0], row[4])), strict=True)
    return (
        np.insert(columns[0], at, job),
        np.insert(columns[1], at, workers_),
        np.insert(columns[2], at, servers_),
        np.insert(columns[3], at, costs),
        np.insert(columns[4], at, speeds),
    )


def _as_allowed(outlook: Outlook, size: Allocation) -> Allocation:
    """What a job may keep of this size: its owner may have lowered its maximum since it was granted that."""
    most = outlook.maximum
    if size.workers <= most.workers and size.servers <= most.servers:
        return size
    return outlook.size(min(size.workers, most.workers), min(size.servers, most.servers))


def _has_row(columns: _Columns, j: int, size: Allocation) -> bool:
    """Whether this size is among the rows of a job already."""
    job, workers, servers = columns[:3]
    return bool(((job == j) & (workers == size.workers) & (servers == size.servers)).any())


def _pair(size: Allocation) -> tuple[int, int]:
    return size.workers, size.servers


def _between(least: Allocation, size: Allocation, most: Allocation) -> bool:
    return least.workers <= size.workers <= most.workers and least.servers <= size.servers <= most.servers
