"""How well speeds are predicted for sizes that were never tried, measured on a real parameter-server testbed.

    python -m benchmarks.speed_models --data speed_ps_sync.csv [--json] [--draws 200]

The file has columns model, global_batch, ps, workers, steps_per_second (synchronous training). Of each model, a few
measurements are taken and all others are predicted; the error is the mean of |predicted - measured| / measured over
those, averaged over the draws and then over the models. The few are taken

* random: any of the file's sizes;
* chosen: the first at random, each following one as `next_measurement` says.

Every model is fitted to the same measurements. The baseline is the speed of the nearest measured size.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optimus_models import PaperSpeedModel, SpeedModel
from optimus_models.speed.form import MEASUREMENT_NOISE, SpeedResidual, shared_deviation

FloatArray = NDArray[np.float64]
Rows = NDArray[np.intp]

SAMPLES = (1, 3, 5, 10, 15)
"""Numbers of measurements that a model is fitted to."""
MODELS: Mapping[str, type[SpeedModel]] = {"paper": PaperSpeedModel, "ours": SpeedModel}
DESIGNS = ("random", "chosen")
SEED = 20180423
"""Draws are the same in every run."""


@dataclass(frozen=True)
class Measurements:
    """All measured speeds of one training job; arrays (n,)."""

    name: str
    batch: float
    workers: FloatArray
    servers: FloatArray
    speeds: FloatArray

    def fit(self, rows: Rows, kind: type[SpeedModel] = SpeedModel) -> SpeedModel:
        return kind.fit(self.workers[rows], self.servers[rows], self.speeds[rows], global_batch_size=self.batch)

    def nearest(self, rows: Rows) -> FloatArray:
        """The measured speed among `rows` that is nearest to each size, on logarithmic axes."""
        position = np.log(np.column_stack([self.workers, self.servers]))
        distance = ((position[:, None] - position[rows]) ** 2).sum(axis=2)  # (n, n_rows)
        return np.asarray(self.speeds[rows][np.argmin(distance, axis=1)])


@dataclass
class Tally:
    """Errors and interval hits, as fractions, per training job."""

    errors: dict[str, list[float]] = field(default_factory=dict)
    covered: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, error: float, covered: float | None = None) -> None:
        self.errors.setdefault(name, []).append(error)
        if covered is not None:
            self.covered.setdefault(name, []).append(covered)

    def summary(self) -> dict[str, object]:
        """Per cent."""
        by_model = {name: 100.0 * float(np.mean(errors)) for name, errors in self.errors.items()}
        hits = [float(np.mean(hits)) for hits in self.covered.values()]
        return {
            "mean_error": float(np.mean(list(by_model.values()))),
            "coverage_80": 100.0 * float(np.mean(hits)) if hits else None,
            "by_model": by_model,
        }


def load_measurements(path: Path) -> list[Measurements]:
    rows: dict[str, list[tuple[float, ...]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            values = (row["global_batch"], row["workers"], row["ps"], row["steps_per_second"])
            rows.setdefault(row["model"], []).append(tuple(float(value) for value in values))
    tables = {name: np.array(group) for name, group in rows.items()}
    return [Measurements(name, float(t[0, 0]), t[:, 1], t[:, 2], t[:, 3]) for name, t in tables.items()]


def draw_random(job: Measurements, n: int, random: np.random.Generator) -> Rows:
    return random.choice(len(job.speeds), n, replace=False)


def next_measurement(model: SpeedModel, candidates: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Which of the (workers, servers) `candidates` would teach most about them all; the first of equals.

    Measuring candidate j takes C_ij²/(C_jj + σ²) off the variance at candidate i (C their covariance, σ the noise): the
    one with the largest sum is chosen (I-optimal; D-optimal designs run to the corners, where every formula is worst:
    measured in docs/studies/speeds.md).
    """
    assert model.residual is not None
    w, p = np.array(candidates, dtype=np.float64).T
    covariance = model.form.seconds_with_covariance(w, p)[1] + _covariance(model.residual, w, p)
    taught = (covariance**2).sum(axis=0) / (np.maximum(np.diag(covariance), 0.0) + MEASUREMENT_NOISE**2)
    return candidates[int(np.argmax(taught))]


def _covariance(residual: SpeedResidual, w: FloatArray, p: FloatArray) -> FloatArray:
    """(n, n) of the deviations from the form at these sizes, after what was measured."""
    own, measured = (np.log(w), np.log(p)), (np.log(residual.workers), np.log(residual.servers))
    prior, cross = (
        shared_deviation(*(here[:, None] - there for here, there in zip(own, others, strict=True)))
        for others in (own, measured)
    )
    return prior - cross @ residual.inverse @ cross.T


def draw_chosen(job: Measurements, n: int, random: np.random.Generator) -> Rows:
    sizes = [(int(w), int(p)) for w, p in zip(job.workers, job.servers, strict=True)]
    chosen = [int(random.integers(len(sizes)))]
    while len(chosen) < n:
        left = [size for row, size in enumerate(sizes) if row not in chosen]
        following = next_measurement(job.fit(np.array(chosen)), left)
        chosen.append(next(row for row, size in enumerate(sizes) if size == following and row not in chosen))
    return np.array(chosen)


DRAWS: Mapping[str, Callable[[Measurements, int, np.random.Generator], Rows]] = {
    "random": draw_random,
    "chosen": draw_chosen,
}


def evaluate(jobs: list[Measurements], n_draws: int) -> dict[tuple[str, str, int], Tally]:
    """Tallies by (design, model, number of measurements)."""
    tallies = {(d, m, n): Tally() for d in DESIGNS for m in (*MODELS, "nearest") for n in SAMPLES}
    for job in jobs:
        for design in DESIGNS:
            random = np.random.default_rng(SEED)
            for _ in range(n_draws):
                drawn = DRAWS[design](job, max(SAMPLES), random)
                for n in SAMPLES:
                    _score(job, drawn[:n], {m: tallies[design, m, n] for m in (*MODELS, "nearest")})
    return tallies


def _score(job: Measurements, measured: Rows, tallies: Mapping[str, Tally]) -> None:
    rest = np.setdiff1d(np.arange(len(job.speeds)), measured)
    w, p, true = job.workers[rest], job.servers[rest], job.speeds[rest]
    for name, kind in MODELS.items():
        model = job.fit(measured, kind)
        low, high = model.predict_interval(w, p)
        tallies[name].add(job.name, _error(model.predict(w, p), true), float(np.mean((low <= true) & (true <= high))))
    tallies["nearest"].add(job.name, _error(job.nearest(measured)[rest], true))


def _error(predicted: FloatArray, true: FloatArray) -> float:
    return float(np.mean(np.abs(predicted - true) / true))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="a CSV file of speeds, or a folder with speed_ps_sync.csv"
    )
    parser.add_argument("--draws", type=int, default=200, help="random draws per job (default 200)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    path = options.data / "speed_ps_sync.csv" if options.data.is_dir() else options.data
    tallies = evaluate(load_measurements(path), options.draws)
    summaries = {key: tally.summary() for key, tally in tallies.items()}
    if options.json:
        rows = [{"design": d, "model": m, "samples": n, **summary} for (d, m, n), summary in summaries.items()]
        print(json.dumps({"draws": options.draws, "percent": rows}, indent=2))
    else:
        _print_table(summaries)
    return 0


def _print_table(summaries: Mapping[tuple[str, str, int], Mapping[str, object]]) -> None:
    print(f"{'design':10}{'model':10}{'samples':>8}{'error %':>10}{'coverage %':>12}")
    for (design, model, n), summary in summaries.items():
        coverage = summary["coverage_80"]
        covered = f"{coverage:12.1f}" if isinstance(coverage, float) else f"{'-':>12}"
        print(f"{design:10}{model:10}{n:8}{summary['mean_error']:10.2f}{covered}")


if __name__ == "__main__":
    sys.exit(main())
