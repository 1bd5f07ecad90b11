"""How well speeds are predicted on systems that the prior of the speed model was not fitted to.

    python -m benchmarks.speed_elsewhere --data FOLDER [--json] [--draws 100]

The folder holds paper/optimus_figures.json (the Optimus paper's figures 4, 9 and 20 as numbers, 1 GbE) and
speed_tf_ps.csv (columns system, num_ps, num_gpus, real_data, images_per_s: TensorFlow on up to 128 GPUs, the batch
grows with the workers, so that its workers are taken for asynchronous ones). Of each job, one, two, three and five
sizes drawn at random are measured and all others predicted; errors are counted as in `speed_models`, and so is how
often our 80 % intervals hold.

What bounds that: `width_for_80` is the one factor of all widths with which they would hold 80 %, known afterwards, and
`held_beside_others` how often they would if the errors of the other jobs on the same system were known, beside the
belief, worth two jobs, that widths are right (the paper's figures are five jobs of one cluster).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.speed_models import MODELS
from numpy.typing import NDArray

from optimus_models.speed.form import Mode
from optimus_scheduler.model import REACH

FloatArray = NDArray[np.float64]
Size = tuple[float, float, float]
"""Workers, servers, measured speed."""

SAMPLES = (1, 2, 3, 5)
HELD, BESIDE_OTHERS = "held", "held_beside_others"
_BELIEF = 2.0
"""Jobs that the belief in the widths counts as, where the errors of others are known."""
_FARTHEST = 3.0
"""Of an error in widths, as one job may not decide for all."""
LEAST_LEFT = 3
"""A job takes part where so many sizes are left to predict."""
SEED = 20180423


class Job(NamedTuple):
    """Measured sizes of one training job."""

    name: str
    mode: Mode
    sizes: FloatArray
    """(n, 3)"""

    @property
    def system(self) -> str:
        """Jobs of one cluster have the same."""
        return "the paper's cluster" if self.name.startswith("figure") else self.name


def load_jobs(folder: Path) -> list[Job]:
    figures = json.loads((folder / "paper" / "optimus_figures.json").read_text())
    return [*_of_figures(figures), *_of_table(folder / "speed_tf_ps.csv")]


def _of_figures(figures: Mapping[str, Mapping[str, object]]) -> Iterable[Job]:
    speeds = figures["fig9_resnet50_speed_steps_per_s"]
    yield _job("figure 9, asynchronous", "async", _series(speeds["a_async_vs_workers"], speeds["b_async_vs_ps"]))
    yield _job("figure 9, synchronous", "sync", _series(speeds["c_sync_vs_workers"], speeds["d_sync_vs_ps"]))
    line, diagonal = figures["fig4a_resnet50_sync_w_plus_p_20"], figures["fig4b_resnet50_sync_p_eq_w"]
    yield _job(
        "figure 4", "sync", [(w, 20 - w, f) for w, f in _points(line)] + [(w, w, f) for w, f in _points(diagonal)]
    )
    for placement in ("PAA", "MXNet"):
        curve = figures["fig20_resnet50_sync_10workers_steps_per_s_vs_ps"][placement]
        yield _job(f"figure 20, {placement}", "sync", [(10.0, p, f) for p, f in _pairs(curve)])


def _series(by_workers: object, by_servers: object) -> list[Size]:
    """Sizes of curves such as `ps=6`: speed against workers, and `worker=6`: speed against servers."""
    sizes = [(w, fixed, f) for fixed, w, f in _labelled(by_workers)]
    return sizes + [(fixed, p, f) for fixed, p, f in _labelled(by_servers)]


def _labelled(curves: object) -> Iterable[Size]:
    assert isinstance(curves, dict)
    for label, curve in curves.items():
        if "=" in label:
            for at, speed in _pairs(curve["measured"]):
                yield float(label.split("=")[1]), at, speed


def _points(figure: Mapping[str, object]) -> list[tuple[float, float]]:
    return _pairs(figure["pts"])


def _pairs(points: object) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(points, dtype=np.float64)]


def _of_table(path: Path) -> Iterable[Job]:
    systems: dict[str, list[Size]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["real_data"] == "FALSE":
                size = (float(row["num_gpus"]), float(row["num_ps"]), float(row["images_per_s"]))
                systems.setdefault(row["system"], []).append(size)
    for system, sizes in systems.items():
        yield _job(f"TensorFlow, {system}", "async", sizes)


def _job(name: str, mode: Mode, sizes: list[Size]) -> Job:
    return Job(name, mode, np.array(sizes))


class Tally(NamedTuple):
    """What came of predicting one job."""

    percent: dict[str, float]
    """Mean error of both forms and, `held`, how often our intervals hold."""
    off: FloatArray
    """(m,) our errors in half-widths of the interval, both in logarithms: it held where they are at most 1."""


def tally_of(job: Job, n: int, n_draws: int) -> Tally:
    random = np.random.default_rng(SEED)
    found: dict[str, list[float]] = {name: [] for name in (*MODELS, HELD)}
    off = list[FloatArray]()
    for _ in range(n_draws):
        order = random.permutation(len(job.sizes))
        (w, p, f), (w_left, p_left, true) = job.sizes[order[:n]].T, job.sizes[order[n:]].T
        for name, kind in MODELS.items():
            model = kind.fit(w, p, f, mode=job.mode)
            found[name].append(float(np.mean(np.abs(model.predict(w_left, p_left) - true) / true)))
            if name == "ours":
                mean, low, high = model.predict_with_interval(w_left, p_left)
                found[HELD].append(float(np.mean((low <= true) & (true <= high))))
                off.append(np.abs(np.log(true / mean)) / np.log(high / mean))
    percent = {name: 100.0 * float(np.mean(each)) for name, each in found.items()}
    return Tally(percent, np.concatenate(off))


def held_beside_others(jobs: Mapping[str, Job], off: Mapping[str, FloatArray]) -> dict[str, float]:
    """Per cent by job; see the top of this file."""
    held = dict[str, float]()
    for name, job in jobs.items():
        others = [off[each] for each in jobs if each != name and jobs[each].system == job.system]
        squares = [float(np.mean(np.minimum(REACH * each, _FARTHEST) ** 2)) for each in others]
        wider = np.sqrt((_BELIEF + sum(squares)) / (_BELIEF + len(squares)))
        held[name] = 100.0 * float(np.mean(off[name] <= wider))
    return held


def width_for_80(off: Mapping[str, FloatArray]) -> float:
    """The factor of all half-widths with which, on the mean of the jobs, 80 % of the intervals hold."""
    factors = np.geomspace(0.1, 10.0, 400)
    held = [np.mean([np.mean(each <= factor) for each in off.values()]) for factor in factors]
    return float(factors[int(np.argmin(np.abs(np.array(held) - 0.8)))])


def measure(jobs: list[Job], n_draws: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for n in SAMPLES:
        judged = {job.name: job for job in jobs if len(job.sizes) >= n + LEAST_LEFT}
        tallies = {name: tally_of(job, n, n_draws) for name, job in judged.items()}
        off = {name: each.off for name, each in tallies.items()}
        beside = held_beside_others(judged, off)
        by_job = {name: each.percent | {BESIDE_OTHERS: beside[name]} for name, each in tallies.items()}
        mean = {name: float(np.mean([e[name] for e in by_job.values()])) for name in (*MODELS, HELD, BESIDE_OTHERS)}
        rows.append({"samples": n, "mean": mean, "width_for_80": width_for_80(off), "by_job": by_job})
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of both files")
    parser.add_argument("--draws", type=int, default=100, help="random draws per job (default 100)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    rows = measure(load_jobs(options.data), options.draws)
    if options.json:
        print(json.dumps({"draws": options.draws, "percent": rows}, indent=2))
        return 0
    for row in rows:
        assert isinstance(row["by_job"], dict)
        print(f"{row['samples']} sizes measured: {row['mean']}, 80 % with {row['width_for_80']:.2f} of the width")
        for name, each in row["by_job"].items():
            print(f"  {name:28}{each['paper']:8.1f}{each['ours']:8.1f}{each[HELD]:8.0f}{each[BESIDE_OTHERS]:8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
