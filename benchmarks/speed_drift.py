"""How well speeds are predicted after a card has to be shared, and how to treat what was measured before.

    python -m benchmarks.speed_drift --data speed_ps_sync.csv [--json] [--draws 50]

The file is that of `benchmarks.speed_models`. A made-up story over its measured speeds: a job was measured four times
at each of six sizes, a minute apart, with 3 % noise; then everything becomes `factor` times slower (1: nothing
happens), and the job is measured a few more times at the last of its sizes. The error is the mean over all sizes of
|predicted - present speed| / present speed, averaged over draws and then over models. Old measurements are

* kept: weigh as much as new ones;
* faded: lose half of their weight every half-life (300 s or 1800 s);
* corrected: brought up to date by `present_speeds`, as in a round, alone or with the long half-life.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.speed_models import SEED, Measurements, load_measurements

from optimus_models import SpeedModel
from optimus_models.speed.measurements import present_speeds

FACTORS = (1.0, 2.0, 3.0)
SINCE = (1, 2, 4, 8)
"""Measurements after the change."""
N_SIZES, REPEATS, SPACING, NOISE = 6, 4, 60.0, 0.03
TREATMENTS: dict[str, tuple[float | None, bool]] = {
    "kept": (None, False),
    "faded 300 s": (300.0, False),
    "faded 1800 s": (1800.0, False),
    "corrected": (None, True),
    "corrected, 1800 s": (1800.0, True),
}
"""Name → half-life in seconds, and whether speeds are corrected."""


def story(job: Measurements, n_since: int, factor: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `job` that are measured, in order, and the speed measured each time."""
    sizes = random.choice(len(job.speeds), N_SIZES, replace=False)
    rows = np.concatenate([np.repeat(sizes, REPEATS), np.repeat(sizes[-1:], n_since)])
    slower = np.where(np.arange(len(rows)) >= N_SIZES * REPEATS, factor, 1.0)
    return rows, job.speeds[rows] / slower * np.exp(random.normal(0.0, NOISE, len(rows)))


def error(job: Measurements, rows: np.ndarray, measured: np.ndarray, factor: float, treatment: str) -> float:
    half_life, corrected = TREATMENTS[treatment]
    at = SPACING * np.arange(len(rows), dtype=np.float64)
    workers, servers = job.workers[rows], job.servers[rows]
    weights = np.ones(len(at)) if half_life is None else np.exp2(-(at[-1] - at) / half_life)
    if corrected:
        measured, trust = present_speeds(workers, servers, measured, at)
        weights = weights * trust
    model = SpeedModel.fit(workers, servers, measured, weights=weights, global_batch_size=job.batch)
    present = job.speeds / factor
    return float(np.mean(np.abs(model.predict(job.workers, job.servers) - present) / present))


def evaluate(jobs: list[Measurements], n_draws: int) -> list[dict[str, float]]:
    """One row for each factor and number of measurements since: the error of each treatment in per cent."""
    rows = []
    for factor in FACTORS:
        for n_since in SINCE:
            errors: dict[str, list[float]] = {name: [] for name in TREATMENTS}
            for job in jobs:
                random = np.random.default_rng(SEED)
                for _ in range(n_draws):
                    measured = story(job, n_since, factor, random)
                    for name in TREATMENTS:
                        errors[name].append(error(job, *measured, factor, name))
            means = {name: 100.0 * float(np.mean(values)) for name, values in errors.items()}
            rows.append({"factor": factor, "since": n_since, **means})
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a CSV file, or a folder with speed_ps_sync.csv")
    parser.add_argument("--draws", type=int, default=50, help="stories per job")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    path = options.data / "speed_ps_sync.csv" if options.data.is_dir() else options.data
    rows = evaluate(load_measurements(path), options.draws)
    if options.json:
        print(json.dumps({"draws": options.draws, "percent": rows}))
        return 0
    print("".join(f"{name:>19}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:19.1f}" for value in row.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
