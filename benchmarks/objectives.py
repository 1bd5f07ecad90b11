"""What each objective of the policy `optimus` reaches, and mixes of them. One JSON object per run.

    python -m benchmarks.objectives world:plain pollux:PATH/workload-2.csv elasticflow:PATH/195job.csv.gz
        [--objectives jct makespan jct:0.7,makespan:0.3] [--seeds 1] [--oracle]
    python -m benchmarks.objectives --draw RUNS.jsonl --out docs/images

A trace is one of `optimus simulate`, or `world:NAME` of `benchmarks.scenarios`, drawn with each seed; of the world
`due` seven jobs of ten have a deadline, after 2 minutes and 0.4 to 1.5 times what they take at the size that they ask
for, and jobs come 50 seconds apart. Counted are the mean completion time and the makespan (seconds), the largest
finish-time fairness ρ and its 90th percentile, deadlines met where there are any, and changes of size per job.

`--draw` draws the runs in a file: the makespan, and the largest ρ, over the mean completion time, each by that of `jct`
on the same trace.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.scenarios.worlds import WORLDS, trace_lines

from optimus_simulator.options import Options
from optimus_simulator.scenario import Scenario, simulate

OBJECTIVES = (
    "jct",
    "makespan",
    "deadlines",
    "fairness",
    "jct:0.85,makespan:0.15",
    "jct:0.7,makespan:0.3",
    "jct:0.5,fairness:0.5",
)
_KEPT = (
    "mean_jct_seconds",
    "makespan_seconds",
    "fairness_worst",
    "fairness_p90",
    "deadlines_met",
    "restarts_per_job",
)
_JOBS = 60
_DUE, _ARRIVAL_SECONDS = 0.7, 50.0
_ROUNDS_OF_DEADLINES = 3600.0
"""Rounds also come with each arrival and end: on these traces of weeks, more cost time and change little."""


def with_deadlines(lines: Iterator[str], seed: int) -> Iterator[str]:
    """The trace of a world, some of whose jobs have deadlines."""
    drawn = random.Random(seed)
    yield next(lines)
    for line in lines:
        job = json.loads(line)
        size, speed = job["workers"]["requested"], job["truth"]["speed"]
        step = speed["compute_seconds"] / size + speed["exchange_seconds"] * (size - 1) / size
        if drawn.random() < _DUE:
            job["deadline_seconds"] = 120.0 + job["truth"]["total_steps"] * step * drawn.uniform(0.4, 1.5)
        yield json.dumps(job)


def drawn_trace(folder: Path, name: str, seed: int) -> str:
    """The file of a world."""
    path = folder / f"{name}-{seed}.jsonl"
    if name == "due":
        knobs = replace(WORLDS["plain"].knobs, arrival_seconds=_ARRIVAL_SECONDS)
        lines = with_deadlines(trace_lines(knobs, seed, _JOBS), seed)
    else:
        lines = trace_lines(WORLDS[name].knobs, seed, _JOBS)
    path.write_text("\n".join(lines))
    return str(path)


def run(folder: Path, trace: str, objective: str, seed: int, *, oracle: bool) -> dict[str, Any]:
    """Figures of one run."""
    begin = time.process_time()
    kind, _, name = trace.partition(":")
    options = WORLDS[name].options if kind == "world" and name in WORLDS else Options()
    options = replace(options, objective=objective, oracle=oracle)
    if kind == "elasticflow":
        options = replace(options, round_seconds=_ROUNDS_OF_DEADLINES)
    file = drawn_trace(folder, name, seed) if kind == "world" else trace
    figures = simulate(Scenario(file, "optimus", seed, options)).figures()
    found = {"trace": name.rpartition("/")[2], "objective": objective, "seed": seed, "oracle": oracle}
    kept = {each: figures[each] for each in _KEPT if each in figures}
    return found | kept | {"cpu_seconds": time.process_time() - begin}


def draw(runs: Sequence[dict[str, Any]], out: Path) -> None:
    """objectives.png: what the makespan and the largest ρ cost of the mean, each by that of `jct`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    by_run = {(one["trace"], one["seed"], one["oracle"], one["objective"]): one for one in runs}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    panels = (
        ("makespan_seconds", "makespan", ("jct", "jct:0.85,makespan:0.15", "jct:0.7,makespan:0.3", "makespan")),
        ("fairness_worst", "largest ρ", ("jct", "jct:0.5,fairness:0.5", "fairness")),
    )
    for axis, (measure, title, objectives) in zip(axes, panels, strict=True):
        curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for trace, seed, oracle in dict.fromkeys(key[:3] for key in by_run):
            points = [by_run.get((trace, seed, oracle, each)) for each in objectives]
            base = points[0]
            if base is not None:
                name = f"{trace.removesuffix('.csv')}, seed {seed}{', told' if oracle else ''}"
                curves[name] = [
                    (one["mean_jct_seconds"] / base["mean_jct_seconds"], one[measure] / base[measure])
                    for one in points
                    if one is not None
                ]
        for name, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), "o-", label=name, markersize=4)
        axis.set(
            title=" → ".join(objectives), xlabel="mean completion time by that of jct", ylabel=f"{title} by that of jct"
        )
        axis.title.set_size("x-small")
        axis.axhline(1.0, color="tab:gray", linewidth=0.6)
        axis.legend(frameon=False, fontsize="x-small")
    figure.savefig(out / "objectives.png", dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    if options.draw is not None:
        draw([json.loads(line) for line in options.draw.read_text().splitlines()], options.out)
        return
    with TemporaryDirectory() as folder:
        for trace in options.traces:
            for seed in range(options.seeds):
                for objective in options.objectives:
                    print(json.dumps(run(Path(folder), trace, objective, seed, oracle=options.oracle)), flush=True)


if __name__ == "__main__":
    main()
