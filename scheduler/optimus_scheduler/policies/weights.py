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

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.ladders import FloatArray, Ladder
from optimus_scheduler.settings import Settings

_LEAST_WORK = 1e-12


def weights(outlooks: Sequence[Outlook], ladders: Sequence[Ladder], settings: Settings) -> FloatArray:
    """(n,) weights, each times the job's priority; jobs of the same remaining work in order of arrival."""
    n = len(outlooks)
    work = [remaining_work(one, ladder) / one.job.spec.priority for one, ladder in zip(outlooks, ladders, strict=True)]
    largest_first = sorted(range(n), key=lambda j: (-work[j], -outlooks[j].job.submitted_at, outlooks[j].id))
    by_rank = rank_weights(n, settings.speed_exponent)
    result = np.empty(n)
    result[largest_first] = by_rank
    return np.asarray(result * np.array([one.job.spec.priority for one in outlooks]))


def rank_weights(count: int, exponent: float) -> FloatArray:
    """(m,) weights of the ranks 1 (largest remaining work) to m, for speeds k^exponent."""
    q = 1.0 / (1.0 - exponent)
    ranks = np.arange(1, count + 1, dtype=np.float64)
    # r^q - (r - 1)^q = r^q · (1 - (1 - 1/r)^q), without overflow for many jobs
    weights: FloatArray = ranks * (1.0 - (1.0 - 1.0 / ranks) ** q) ** (1.0 / q)
    return weights


def remaining_work(outlook: Outlook, ladder: Ladder) -> float:
    """Share-seconds that the job still needs at its most efficient size.

    As far as the forecast is unsure, the work that the job has had stands in: of jobs of unknown length, who has
    had much is likely to need much more (the idea of least attained service: Gu et al., "Tiresias", NSDI 2019).
    """
    attained = max(outlook.job.attained_share_seconds, _LEAST_WORK)
    remaining = outlook.forecast.remaining_steps
    if remaining is None or outlook.speeds.source is None:
        return attained
    predicted = max(remaining.mean / ladder.best_speed_per_share, _LEAST_WORK)
    trust = outlook.forecast.confidence
    return float(predicted**trust * attained ** (1.0 - trust))
