"""Policies where a change of size costs minutes: large all-reduce jobs on 256 GPUs. One JSON object per run.

    python -m benchmarks.long_stops [--seeds 3] [--jobs 60] [--stops 30,300,600] [--policies optimus,drf,tiresias,srtf]

The jobs are made up from the seed. Each has 8 to 128 workers of one GPU and asks for 8 to 64; at that size it takes
3.3 hours (median of a log-normal). They arrive 25 minutes apart (Poisson) and belong to six families. Counted are the
mean completion time and the makespan in seconds, the changes of size per job, and how far above what is possible for
any scheduler they are. The jobs are replayed as `optimus simulate --bound --trace FILE --set restart_seconds=...`
replays them. The policy `bound` is none: what no scheduler is below, alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from optimus_simulator.options import Options
from optimus_simulator.scenario import Scenario, bound_of, simulate

_SIZES = (8, 16, 16, 32, 64)
_FAMILIES = 6
_KEPT = ("mean_jct_seconds", "makespan_seconds", "restarts_per_job", "above_bound", "makespan_above_bound")


def trace_lines(seed: int, n_jobs: int) -> Iterator[str]:
    """The trace in our own format: the cluster, then a line for each job."""
    random = np.random.default_rng(seed)
    yield json.dumps({"nodes": [{"count": 32, "cpu": 64, "gpus": {"a100": 8}}]})
    submitted_at = 0.0
    for number in range(n_jobs):
        submitted_at += random.exponential(1500.0)
        yield json.dumps({"id": f"job-{number:03d}", "submitted_at": submitted_at, **_job(random, number)})


def _job(random: np.random.Generator, number: int) -> dict[str, Any]:
    size = int(random.choice(_SIZES))
    compute_seconds, exchange_seconds = random.uniform(1.0, 4.0) * size, random.uniform(0.05, 0.4)
    seconds = 3600.0 * random.lognormal(1.2, 0.9)
    steps = max(int(seconds / (compute_seconds / size + exchange_seconds)), 1)
    return {
        "architecture": "allreduce",
        "family": f"family-{number % _FAMILIES}",
        "global_batch_size": 512,
        "workers": {"cpu": 4, "gpus": {"a100": 1}, "minimum": 8, "maximum": 128, "requested": size},
        "convergence": {"max_steps": steps},
        "truth": {
            "total_steps": steps,
            "steps_per_epoch": max(steps // 10, 1),
            "loss": [0.5, 1.0, 0.1],
            "speed": {"compute_seconds": compute_seconds, "exchange_seconds": exchange_seconds, "pass_seconds": 0.02},
        },
    }


def run(trace: Path, policy: str, seed: int, stop_seconds: float) -> dict[str, float | str]:
    """Figures of one policy, or the bound."""
    options = Options(restart_seconds=stop_seconds, bound=True)
    found: dict[str, float | str] = {"policy": policy, "seed": seed, "stop_seconds": stop_seconds}
    if policy == "bound":
        least = bound_of(str(trace), options, seed)
        return found | {"mean_jct_seconds": least.mean_jct_seconds, "makespan_seconds": least.makespan_seconds}
    figures = simulate(Scenario(str(trace), policy, seed, options)).figures()
    return found | {name: figures[name] for name in _KEPT}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--stops", default="30,300,600", help="seconds, separated by commas")
    parser.add_argument("--policies", default="optimus,drf,tiresias,srtf")
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            trace = Path(folder) / f"seed-{seed}.jsonl"
            trace.write_text("\n".join(trace_lines(seed, options.jobs)))
            for stop in options.stops.split(","):
                for policy in options.policies.split(","):
                    print(json.dumps(run(trace, policy, seed, float(stop))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
