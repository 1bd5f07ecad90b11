"""Deadlines met on ElasticFlow's clusters (ASPLOS 2023), beside its published figures. One JSON object per run.

    python -m benchmarks.deadlines --data FOLDER [--clusters cluster10,195job] [--runs optimus] [--jobs N] [--promises]

The runs of a cluster are `optimus`, blind (jobs tell their steps and not their speeds); `told`, the same told the true
speeds; `elasticflow` and `edf` as in the published simulations (`optimus simulate --like-elasticflow`); and `bound`,
what no scheduler can do better than (`optimus bound`). `published` is what ElasticFlow met in its authors' simulations,
`ceiling` the part that jobs would meet that each had an empty cluster for themselves, at their best measured size and
without a stop: no scheduler meets more. With `--jobs` the first so many of each trace; then nothing published compares.

With `--promises` (`optimus` and `told`) deadlines are answered at each submission and first start, as in the live
service; `deadline_answers` says what came of that.

Rounds come on events and every `--interval` seconds. Large clusters take long: `--interval 3600` costs little there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.bounds.bound import bound
from optimus_simulator.bounds.needs import needs_of
from optimus_simulator.elasticflow import PublishedElasticFlow
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import deadline_answers
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import load
from optimus_simulator.trace import Trace

PUBLISHED = {
    "cluster01": {"elasticflow": 0.788, "edf": 0.182},
    "cluster02": {"elasticflow": 0.822, "edf": 0.228},
    "cluster04": {"elasticflow": 0.631, "edf": 0.007},
    "cluster05": {"elasticflow": 0.832, "edf": 0.375},
    "cluster10": {"elasticflow": 0.981, "edf": 0.769},
    "195job": {"elasticflow": 0.877},
}
"""Parts of deadlines met in the simulations of its authors (figure 8; the artifact has the figures as numbers)."""
RUNS = ("optimus", "told", "elasticflow", "edf")
BOUND = "bound"
_RARE = 1e9
"""Answers are given at submissions and first starts, and no later ones are judged."""


def ceiling(trace: Trace) -> float:
    """The part of deadlines that jobs alone on the empty cluster meet, without stops."""
    due = [need for need in needs_of(trace, 0.0) if need.deadline_at is not None]
    return sum(need.trains_from + need.work.shortest <= (need.deadline_at or 0.0) for need in due) / len(due)


def measure(path: Path, run: str, jobs: int | None, interval: float, promises: bool) -> dict[str, Any]:
    """The figures of one run."""
    begin = time.process_time()
    options = Options(round_seconds=interval, oracle=run == "told", promises=promises, promise_spacing=_RARE)
    policy = policy_named("optimus" if run in ("optimus", "told") else run)
    if run in ("elasticflow", "edf"):
        options = replace(options, promises=False).like_elasticflow()
        policy = PublishedElasticFlow() if run == "elasticflow" else policy
    trace = load(f"elasticflow:{path}", options, 0, policy.name)
    n_jobs = len(trace.jobs)
    trace = replace(trace, jobs=trace.jobs[:jobs])
    outcome = Replay(trace, policy, options).run()
    figures = outcome.figures()
    return {
        "cluster": trace.name,
        "run": run,
        "jobs": len(trace.jobs),
        "jobs_of_trace": n_jobs,
        "gpus": sum(trace.capacity.gpus.values()),
        "interval_seconds": interval,
        **{name: figures[name] for name in ("deadlines_met", "restarts_per_job", "mean_jct_seconds")},
        **({"deadline_answers": deadline_answers([outcome])} if options.promises else {}),
        "published": PUBLISHED[trace.name] if len(trace.jobs) == n_jobs else None,
        "ceiling": ceiling(trace),
        "cpu_seconds": time.process_time() - begin,
    }


def least(path: Path, jobs: int | None) -> dict[str, Any]:
    """What no scheduler can do better than, with starts of 30 s."""
    begin = time.process_time()
    trace = load(f"elasticflow:{path}", Options(), 0)
    found = bound(replace(trace, jobs=trace.jobs[:jobs]), Options()).as_json()
    return {"cluster": trace.name, "run": BOUND, **found, "cpu_seconds": time.process_time() - begin}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with elasticflow/")
    parser.add_argument("--clusters", default="cluster10,195job,cluster01,cluster05,cluster02,cluster04")
    parser.add_argument("--runs", default=",".join(RUNS), help=f"of {', '.join((*RUNS, BOUND))}")
    parser.add_argument("--jobs", type=int, help="of each trace only the first so many")
    parser.add_argument("--promises", action="store_true", help="answer deadlines at the submission, as live")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between rounds, beside those on events")
    options = parser.parse_args(arguments)
    clusters, runs = options.clusters.split(","), options.runs.split(",")
    if unknown := [name for name in clusters if name not in PUBLISHED]:
        parser.error(f"--clusters: {', '.join(unknown)}; there are {', '.join(PUBLISHED)}")
    if unknown := [name for name in runs if name not in (*RUNS, BOUND)]:
        parser.error(f"--runs: {', '.join(unknown)}; there are {', '.join((*RUNS, BOUND))}")
    folder = options.data / "elasticflow" / "traces"
    if not folder.is_dir():
        parser.error(f"--data: there is no folder {folder}; it holds ElasticFlow's traces")
    for name in clusters:
        for run in runs:
            path = folder / f"{name}.csv.gz"
            figures = (
                least(path, options.jobs)
                if run == BOUND
                else measure(path, run, options.jobs, options.interval, options.promises)
            )
            print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
