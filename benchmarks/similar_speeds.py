"""What an ended job of the same task is worth when the speed of the next one is predicted.

    python -m benchmarks.similar_speeds --data speed_ps_sync.csv [--json]

The file has columns model, global_batch, ps, workers, steps_per_second. For each model and draw, an ended job measured
six random sizes, and the next one has measured none to five random sizes of its own; the next one's true speeds are
those of the file times a factor (another machine, other neighbours): 1, or log-normal, spread 30 %. The error is
the mean absolute percentage error over all sizes that neither measured, mean over models and draws. Both go through the
scheduler's own forecast, so the figures are what a policy sees.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import (
    Allocation,
    ConvergenceRule,
    EndedJob,
    Job,
    JobSpec,
    JobState,
    Resources,
    SpeedSample,
    TaskDemand,
)
from optimus_scheduler.settings import Settings

Table = Mapping[tuple[int, int], float]
"""Steps per second by (workers, servers)."""

THEIRS = 6
OWN = (0, 1, 2, 3, 5)
SPREADS = (0.0, 0.3)
DRAWS = 20


def read(path: Path) -> dict[str, tuple[int, Table]]:
    """Global batch size and speeds of each model."""
    found: dict[str, tuple[int, dict[tuple[int, int], float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            size = int(row["workers"]), int(row["ps"])
            _, speeds = found.setdefault(row["model"], (int(row["global_batch"]), {}))
            speeds[size] = float(row["steps_per_second"])
    return dict(found)


def error(batch: int, table: Table, n_own: int, spread: float, seed: int, *, informed: bool) -> float:
    """Of one draw, in per cent."""
    random = np.random.default_rng(seed)
    sizes = list(table)
    order = [sizes[i] for i in random.permutation(len(sizes))]
    theirs, mine, rest = order[:THEIRS], order[THEIRS : THEIRS + n_own], order[THEIRS + max(OWN) :]
    factor = float(np.exp(spread * random.standard_normal()))
    ended = EndedJob("old", "m:f", "p", 100.0, speed_samples=_samples(theirs, table, 1.0), global_batch_size=batch)
    job = Job(
        id="new",
        spec=_spec(batch),
        state=JobState.QUEUED,
        submitted_at=0.0,
        speed_samples=_samples(mine, table, factor),
        similar=(ended,) if informed else (),
    )
    speeds = forecast(job, 100.0, Settings()).speeds
    errors = [abs(speeds.at(Allocation(w, p)) / (factor * table[w, p]) - 1.0) for w, p in rest]
    return 100.0 * float(np.mean(errors))


def _samples(sizes: list[tuple[int, int]], table: Table, factor: float) -> tuple[SpeedSample, ...]:
    return tuple(SpeedSample(w, p, factor * table[w, p], n_steps=50) for w, p in sizes)


def _spec(batch: int) -> JobSpec:
    demand = TaskDemand(Resources(1.0))
    return JobSpec(demand, demand, ConvergenceRule(), global_batch_size=batch, family="m:f", project="p")


def measure(path: Path, draws: int) -> dict[str, dict[str, dict[str, float | None]]]:
    """Errors in per cent by spread, kind and number of own sizes; None where nothing is known at all."""
    models = read(path)

    def mean(n_own: int, spread: float, *, informed: bool) -> float | None:
        if not n_own and not informed:
            return None
        found = [
            error(batch, table, n_own, spread, seed, informed=informed)
            for batch, table in models.values()
            for seed in range(draws)
        ]
        return float(np.mean(found))

    return {
        f"factor spread {spread:g}": {
            name: {str(n): mean(n, spread, informed=informed) for n in OWN}
            for name, informed in (("alone", False), ("with an ended job", True))
        }
        for spread in SPREADS
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args(arguments)
    figures = measure(options.data, options.draws)
    if options.json:
        print(json.dumps(figures))
        return 0
    for spread, kinds in figures.items():
        for name, errors in kinds.items():
            cells = "".join(f"{'-' if value is None else f'{value:.1f}':>8}" for value in errors.values())
            print(f"{spread:20}{name:20}{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
