"""How long it takes to fit the loss curves of all active jobs again after one new point each.

    python -m benchmarks.refit [--json] [--jobs 4000]

Made-up jobs that have made one to three times as many steps as their bounded records hold points; such records are half
full to full. Measured in seconds of one core (CPU time of all threads, so that neither more cores nor a crowded machine
count), the best of a few rounds: adding the point, fitting all curves in one go, fitting them one by one, and fitting
them in one go with finished runs of the same task to go by (50 tasks, 16 runs each).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from optimus_models import FinishedRun, LossCurve, Prior
from optimus_models.history import MAX_LOSS_POINTS, LossBuckets, LossHistory

JOBS, ROUNDS = 4000, 3
FAMILIES, FINISHED = 50, 16
ONE_BY_ONE = 200
"""So many jobs are fitted one by one; the time is scaled to all."""


def made_up_jobs(n: int) -> list[LossBuckets]:
    """Falling, noisy losses of runs of many lengths, all longer than a record."""
    random = np.random.default_rng(0)
    jobs = []
    for length in random.integers(MAX_LOSS_POINTS, 3 * MAX_LOSS_POINTS, n):
        steps = np.arange(1, length + 1)
        losses = 1.0 / (random.uniform(0.01, 0.1) * steps + 1.0) + 0.2 + random.normal(0.0, 0.01, length)
        job = LossBuckets()
        for step, loss in zip(steps.tolist(), losses.tolist(), strict=True):
            job.add(step, loss)
        jobs.append(job)
    return jobs


def add_one_point(jobs: list[LossBuckets]) -> list[LossHistory]:
    """What a round does first: the new point of each job, and its history as the fit wants it."""
    for job in jobs:
        job.add(3 * MAX_LOSS_POINTS + len(job), 0.3)
    return [LossHistory.of(*job.arrays()) for job in jobs]


def made_up_priors(n: int) -> list[Prior]:
    """What each of `n` jobs knows of earlier ones; jobs of one task know the same."""
    runs = [FinishedRun.of(*job.arrays(), same_project=True) for job in made_up_jobs(FAMILIES * FINISHED)]
    families = [Prior.of(runs[family::FAMILIES]) for family in range(FAMILIES)]
    return [families[number % FAMILIES] for number in range(n)]


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(n_jobs: int) -> dict[str, float]:
    """Seconds for all jobs."""
    jobs = made_up_jobs(n_jobs)
    histories = add_one_point(jobs)
    few = histories[:ONE_BY_ONE]
    one_by_one = min(cpu_seconds(lambda: [LossCurve.fit(h.steps, h.losses) for h in few]) for _ in range(ROUNDS))
    add = min(cpu_seconds(lambda: add_one_point(jobs)) for _ in range(ROUNDS))
    batched = min(cpu_seconds(lambda: LossCurve.fit_many(histories)) for _ in range(ROUNDS))
    priors = made_up_priors(n_jobs)
    informed = min(cpu_seconds(lambda: LossCurve.fit_many(histories, priors=priors)) for _ in range(ROUNDS))
    return {
        "jobs": n_jobs,
        "points_per_job": float(np.mean([len(history) for history in histories])),
        "add_point_seconds": add,
        "fit_batched_seconds": batched,
        "fit_one_by_one_seconds": one_by_one * n_jobs / len(few),
        "total_seconds": add + batched,
        "fit_with_finished_runs_seconds": informed,
        "total_with_finished_runs_seconds": add + informed,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args(arguments)
    figures = measure(options.jobs)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:34}{value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
