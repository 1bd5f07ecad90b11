"""How well speeds on a GPU type that a job never ran on are predicted, by its speeds on other types.

    python -m benchmarks.gpu_type_speeds --data gavel_throughputs.json [--json]

The file has steps per second by GPU type, job and number of workers. Each job is left out, put back on one of the types
or on all but one, and predicted on a missing one; with `same family` the other batch sizes of its network stay in the
table, with `new family` they go as well. The baseline is the mean ratio of the two types over all other jobs.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from optimus_models.gpu_types import GpuTypeModel, JobFeatures, TypeSpeed

GPU_TYPES = ("k80", "p100", "v100")


def load_speeds(path: Path) -> list[TypeSpeed]:
    """Speeds of jobs that ran alone, on the three types."""
    table = json.loads(path.read_text())
    speeds = []
    for gpu_type in GPU_TYPES:
        for key, by_neighbour in table[gpu_type].items():
            name, workers = ast.literal_eval(key)
            if by_neighbour["null"] > 0:
                family, _, batch = name.partition(" (batch size ")
                kind = JobFeatures(name, family, float(batch.rstrip(")") or 1), float(workers))
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="a JSON file of speeds, or a folder with gavel_throughputs.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    path = options.data / "gavel_throughputs.json" if options.data.is_dir() else options.data
    rows = list(gpu_types(load_speeds(path)))
    if options.json:
        print(json.dumps({"gpu_types": rows}, indent=2))
    else:
        _print_table(rows, ("workers", "table", "known_types", "mean_error", "mean_ratio_error", "coverage_80"))
    return 0


def _print_table(rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    print("".join(f"{column:>18}" for column in columns))
    for row in rows:
        cells = (row[column] for column in columns)
        print("".join(f"{cell:18.1f}" if isinstance(cell, float) else f"{cell or '-':>18}" for cell in cells))
    print()


if __name__ == "__main__":
    sys.exit(main())
