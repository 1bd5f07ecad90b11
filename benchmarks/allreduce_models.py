"""How well all-reduce step times, and speeds on other types of GPU, are predicted where they were not measured.

    python -m benchmarks.allreduce_models --data FOLDER [--json] [--draws 20]

The folder has `pollux/profiles/<application>/{placements,scalability}.csv` (measured step and exchange times by nodes,
workers and batch per worker) and `gavel_throughputs.json` (steps per second by GPU type, job and number of workers).

* Step times: a few measurements of one application are drawn, all others are predicted; the error is the mean of
  |predicted - measured| / measured over those, averaged over draws and then over applications. `growing`
  draws from sizes of up to four nodes and predicts everything on more (up to 16).
* GPU types: each job is left out, put back on one of the types or on all but one, and predicted on a missing one; with
  `same family` the other batch sizes of its network stay in the table, with `new family` they go as well.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.gpu_types import GpuTypeModel, KindOfJob, TypeSpeed
from optimus_models.speed.allreduce_model import AllReduceModel

FloatArray = NDArray[np.float64]
Rows = NDArray[np.intp]

SAMPLES = (3, 5, 10, 20, 40)
"""Numbers of measurements that a model is fitted to."""
FEW_NODES = 4
SEED = 20210714
"""Draws are the same in every run."""
GPU_TYPES = ("k80", "p100", "v100")


class Score(NamedTuple):
    """Fractions."""

    error: float
    covered: float


class Profile(NamedTuple):
    """All measured steps of one application; arrays (n,)."""

    name: str
    nodes: FloatArray
    workers: FloatArray
    batches: FloatArray
    seconds: FloatArray
    sync_seconds: FloatArray

    def fit(self, rows: Rows, *, pollux: bool) -> AllReduceModel:
        columns = (column[rows] for column in self[1:])
        return AllReduceModel.fit(*columns, form="pollux" if pollux else "auto")

    def nearest_seconds(self, rows: Rows) -> FloatArray:
        """(n,) the measured step time among `rows` that is nearest to each size, on logarithmic axes."""
        position = np.log(np.column_stack([self.nodes, self.workers, self.batches]))
        distance = ((position[:, None] - position[rows]) ** 2).sum(axis=2)
        return np.asarray(self.seconds[rows][np.argmin(distance, axis=1)])


def load_profiles(folder: Path) -> list[Profile]:
    return [_load_profile(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def _load_profile(folder: Path) -> Profile:
    rows = []
    with (folder / "placements.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            gpus = [int(digit) for digit in row["placement"]]
            rows.append((len(gpus), sum(gpus), row["local_bsz"], row["step_time"], row["sync_time"]))
    with (folder / "scalability.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            counts = int(row["num_nodes"]), int(row["num_replicas"])
            rows.append((*counts, row["local_bsz"], row["step_time"], row["sync_time"]))
    table = np.array(rows, dtype=np.float64)
    return Profile(folder.name, *table.T)


# --- step times ------------------------------------------------------------------------------------------------------


def score_steps(profile: Profile, measured: Rows, rest: Rows) -> dict[str, Score]:
    """By model, on `rest`."""
    speeds = 1.0 / profile.seconds[rest]
    sizes = profile.nodes[rest], profile.workers[rest], profile.batches[rest]
    scores = {}
    for name in ("pollux", "ours"):
        model = profile.fit(measured, pollux=name == "pollux")
        low, high = model.predict_interval(*sizes)
        covered = float(np.mean((low <= speeds) & (speeds <= high)))
        scores[name] = Score(_error(model.predict(*sizes), speeds), covered)
    nearest = 1.0 / profile.nearest_seconds(measured)[rest]
    return {**scores, "nearest": Score(_error(nearest, speeds), float("nan"))}


def _error(predicted: FloatArray, true: FloatArray) -> float:
    return float(np.mean(np.abs(predicted - true) / true))


def draw_random(profile: Profile, n: int, random: np.random.Generator) -> tuple[Rows, Rows]:
    drawn = random.choice(len(profile.seconds), n, replace=False)
    return drawn, np.setdiff1d(np.arange(len(profile.seconds)), drawn)


def draw_small(profile: Profile, n: int, random: np.random.Generator) -> tuple[Rows, Rows]:
    """From sizes of up to `FEW_NODES` nodes; the rest is what has more."""
    few = profile.nodes <= FEW_NODES
    return random.choice(np.flatnonzero(few), n, replace=False), np.flatnonzero(~few)


DESIGNS: Mapping[str, tuple[Callable[[Profile, int, np.random.Generator], tuple[Rows, Rows]], tuple[int, ...]]] = {
    "random": (draw_random, SAMPLES),
    "growing": (draw_small, (5, 10, 20)),
}


def step_times(profiles: list[Profile], n_draws: int) -> Iterator[dict[str, object]]:
    """A row of the table per design, number of samples and model; per cent."""
    for design, (draw, samples) in DESIGNS.items():
        for n in samples:
            scores: dict[str, dict[str, list[Score]]] = {}
            for profile in profiles:
                random = np.random.default_rng(SEED)
                for _ in range(n_draws):
                    for model, score in score_steps(profile, *draw(profile, n, random)).items():
                        scores.setdefault(model, {}).setdefault(profile.name, []).append(score)
            for model, by_profile in scores.items():
                yield {"design": design, "samples": n, "model": model, **_summary(by_profile)}


def _summary(by_profile: Mapping[str, list[Score]]) -> dict[str, object]:
    errors = {name: 100.0 * float(np.mean([s.error for s in scores])) for name, scores in by_profile.items()}
    covered = [100.0 * float(np.mean([s.covered for s in scores])) for scores in by_profile.values()]
    coverage = None if np.isnan(covered).any() else float(np.mean(covered))
    return {"mean_error": float(np.mean(list(errors.values()))), "coverage_80": coverage, "by_application": errors}


# --- GPU types -------------------------------------------------------------------------------------------------------


def load_speeds(path: Path) -> list[TypeSpeed]:
    """Speeds of jobs that ran alone, on the three types."""
    table = json.loads(path.read_text())
    speeds = []
    for gpu_type in GPU_TYPES:
        for key, by_neighbour in table[gpu_type].items():
            name, workers = ast.literal_eval(key)
            if by_neighbour["null"] > 0:
                family, _, batch = name.partition(" (batch size ")
                kind = KindOfJob(name, family, float(batch.rstrip(")") or 1), float(workers))
                speeds.append(TypeSpeed(kind, gpu_type, by_neighbour["null"]))
    return speeds


def leave_one_out(speeds: list[TypeSpeed], *, n_known: int, same_family: bool) -> Iterator[tuple[float, float, bool]]:
    """Relative error of the model, of the mean ratio of the two types over all other jobs, and whether the interval
    held, for each job and type."""
    for job in sorted({row.job for row in speeds}):
        mine = [row for row in speeds if row.job == job]
        others = [row for row in speeds if row.job != job and (same_family or row.job.family != job.family)]
        for target in mine:
            elsewhere = [row for row in mine if row is not target]
            for known in combinations(elsewhere, n_known) if len(elsewhere) == len(GPU_TYPES) - 1 else ():
                model = GpuTypeModel.fit([*others, *known])
                ((predicted,), (low,), (high,)) = (
                    model.predict(job, [target.gpu_type]),
                    *model.predict_interval(job, [target.gpu_type]),
                )
                true = target.steps_per_second
                plain = _by_mean_ratio(others, known, target.gpu_type)
                yield abs(predicted - true) / true, abs(plain - true) / true, bool(low <= true <= high)


def _by_mean_ratio(others: list[TypeSpeed], known: tuple[TypeSpeed, ...], gpu_type: str) -> float:
    """The baseline: known speed times the geometric mean of the ratio of the two types over all other jobs."""
    logs = {(row.job, row.gpu_type): np.log(row.steps_per_second) for row in others}
    jobs = [job for job, other_type in logs if other_type == gpu_type]
    guesses = []
    for row in known:
        ratios = [logs[job, gpu_type] - logs[job, row.gpu_type] for job in jobs if (job, row.gpu_type) in logs]
        guesses.append(np.log(row.steps_per_second) + np.mean(ratios))
    return float(np.exp(np.mean(guesses)))


def gpu_types(speeds: list[TypeSpeed]) -> Iterator[dict[str, object]]:
    """A row of the table per number of workers, table and number of known types; per cent."""
    for workers in sorted({row.job.workers for row in speeds}):
        rows = [row for row in speeds if row.job.workers == workers]
        for same_family in (True, False):
            for n_known in (1, 2):
                results = np.array(list(leave_one_out(rows, n_known=n_known, same_family=same_family)))
                yield {
                    "workers": int(workers),
                    "table": "same family" if same_family else "new family",
                    "known_types": n_known,
                    "predictions": len(results),
                    "mean_error": 100.0 * float(results[:, 0].mean()),
                    "median_error": 100.0 * float(np.median(results[:, 0])),
                    "mean_ratio_error": 100.0 * float(results[:, 1].mean()),
                    "coverage_80": 100.0 * float(results[:, 2].mean()),
                }


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with pollux/ and gavel_throughputs.json")
    parser.add_argument("--draws", type=int, default=20, help="random draws per application (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    steps = list(step_times(load_profiles(options.data / "pollux" / "profiles"), options.draws))
    types = list(gpu_types(load_speeds(options.data / "gavel_throughputs.json")))
    if options.json:
        print(json.dumps({"draws": options.draws, "step_times": steps, "gpu_types": types}, indent=2))
    else:
        _print_table(steps, ("design", "samples", "model", "mean_error", "coverage_80"))
        _print_table(types, ("workers", "table", "known_types", "mean_error", "mean_ratio_error", "coverage_80"))
    return 0


def _print_table(rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    print("".join(f"{column:>18}" for column in columns))
    for row in rows:
        cells = (row[column] for column in columns)
        print("".join(f"{cell:18.1f}" if isinstance(cell, float) else f"{cell or '-':>18}" for cell in cells))
    print()


if __name__ == "__main__":
    sys.exit(main())
