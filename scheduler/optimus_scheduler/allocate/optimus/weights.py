"""How much a share of the cluster is worth to each job: the shorter its remaining work, the more.

With m jobs of speed k^p on k units, the mean completion time is least when the job with the r-th largest remaining work
gets the part (r/m)^q - ((r-1)/m)^q of the cluster, q = 1/(1 - p) (heSRPT). The same parts come out when the sum of
weight · speed is maximised with the weights

    weight = (r^q - (r - 1)^q)^(1/q),    r = 1 for the largest, m for the smallest,

and that sum can be maximised for jobs whose speeds are not powers, and differ, as well.

References: Berg, Vesilo, Harchol-Balter: "heSRPT: parallel scheduling to minimize mean slowdown", Performance
Evaluation 144, 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import FloatArray
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.settings import Settings

_LEAST_WORK = 1e-12
_TELLS_APART = 0.05
"""ln of remaining work beyond which one of two jobs that wait, next to each other by it, is the shorter one ..."""
_HAIR = 1e-7
"""... and the part of its weight by which that one is ahead: less than any other difference."""
_DOUBTED = 0.75
"""Confidence in speeds below which they are in full doubt."""


def weights(
    outlooks: Sequence[Outlook], best_speed_per_share: FloatArray, least_shares: FloatArray, settings: Settings
) -> FloatArray:
    """(n,) weights, each times the job's priority. `best_speed_per_share` and `least_shares` (n,): see `Frontiers`.

    Jobs with about the same remaining work share the weights of their ranks: which of them is ahead is noise, and would
    resize both whenever it turns. More of them are about the same where speeds are in doubt.
    """
    jobs = JobColumns.of(outlooks)
    work = np.log(remaining_work(jobs, best_speed_per_share, least_shares) / jobs.column("priority"))
    largest_first = np.lexsort((jobs.id_rank, -jobs.column("submitted_at"), -work))
    descending = -work[largest_first]
    sums = np.concatenate([[0.0], rank_weights(len(jobs), settings.speed_exponent).cumsum()])
    doubt = np.minimum((1.0 - jobs.column("sure_of_speed")[largest_first]) / (1.0 - _DOUBTED), 1.0)
    about = settings.similar_work + settings.doubtful_work * doubt
    first = descending.searchsorted(descending - about, side="left")
    last = descending.searchsorted(descending + about, side="right")
    result = np.empty(len(jobs))
    result[largest_first] = (sums[last] - sums[first]) / (last - first)
    # Nobody is resized when one starts before another that waits, too: of these the shorter one does.
    waiting = largest_first.compress(~jobs.has_tasks[largest_first])
    rank = (-np.diff(work[waiting], prepend=np.inf) > _TELLS_APART).cumsum()  # the higher, the shorter
    result[waiting] *= 1.0 + _HAIR * rank / (len(jobs) + 1)
    return np.asarray(result * jobs.column("priority"))


def rank_weights(count: int, exponent: float) -> FloatArray:
    """(m,) weights of the ranks 1 (largest remaining work) to m, for speeds k^exponent."""
    q = 1.0 / (1.0 - exponent)
    ranks = np.arange(1, count + 1, dtype=np.float64)
    # r^q - (r - 1)^q = r^q · (1 - (1 - 1/r)^q), without overflow for many jobs
    weights: FloatArray = ranks * (1.0 - (1.0 - 1.0 / ranks) ** q) ** (1.0 / q)
    return weights


def remaining_work(jobs: JobColumns, best_speed_per_share: FloatArray, least_shares: FloatArray) -> FloatArray:
    """(n,) share-seconds that each job still needs at its most efficient size.

    As far as the forecast is unsure, the work that the job has had stands in: of jobs of unknown length, one that
    has had much is likely to need much more (the idea of least attained service: Gu et al., "Tiresias", NSDI 2019).
    Where ended jobs like it tell how long it takes, and nothing else does, it is as long.
    """
    attained = np.maximum(jobs.column("attained"), _LEAST_WORK)
    steps = np.where(jobs.is_unknown, 1.0, jobs.remaining)
    predicted = np.maximum(steps / best_speed_per_share, _LEAST_WORK)
    trust = jobs.column("confidence")
    alone = np.where(jobs.is_unknown, attained, predicted**trust * attained ** (1.0 - trust))
    told = np.maximum(jobs.column("typical_seconds") * least_shares, _LEAST_WORK)
    return np.where(jobs.column("is_told") > 0, told, alone)
