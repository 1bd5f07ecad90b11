"""What it is worth that running jobs move so that waiting ones have room. One JSON object per run.

    python -m benchmarks.moves [--seeds 2] [--jobs 200] [--apart 420]

The jobs are made up from the seed: one task each of 1, 2, 4 or 8 GPUs, about an hour long, on 8 nodes of 8 GPUs. No
size of theirs can change, so without moves (a margin that no stop is worth) every job stays where it starts.
`least_jct_seconds` is what no scheduler is below (docs/bounds.md, without the linear programme).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.settings import Settings
from optimus_simulator.bounds.bound import bound
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import load

_FIGURES = ("mean_wait_seconds", "longest_wait_seconds", "mean_jct_seconds", "restarts_per_job")


def trace_lines(seed: int, n_jobs: int, apart: float) -> Iterator[str]:
    """The trace in our own format: the cluster, then a line for each job."""
    random = np.random.default_rng(seed)
    yield json.dumps({"nodes": [{"count": 8, "cpu": 64, "gpus": {"a100": 8}}]})
    submitted_at = 0.0
    for number in range(n_jobs):
        submitted_at += random.exponential(apart)
        gpus = int(random.choice([1, 2, 4, 8], p=[0.5, 0.2, 0.15, 0.15]))
        steps = int(np.clip(3600.0 * random.lognormal(0.0, 1.0), 120.0, 40_000.0))
        job = {
            "id": f"job-{number:03d}",
            "submitted_at": submitted_at,
            "architecture": "allreduce",
            "family": f"family-{number % 6}",
            "global_batch_size": 64,
            "workers": {"cpu": 1, "gpus": {"a100": gpus}, "minimum": 1, "maximum": 1, "requested": 1},
            "convergence": {"max_steps": steps},
            "truth": {
                "total_steps": steps,
                "steps_per_epoch": max(steps // 10, 1),
                "loss": [0.5, 1.0, 0.1],
                "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.0, "pass_seconds": 0.0},
            },
        }
        yield json.dumps(job)


def main() -> None:
    """Two lines per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--apart", type=float, default=420.0, help="seconds between arrivals, on average")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            path = Path(folder) / f"seed-{seed}.jsonl"
            path.write_text("\n".join(trace_lines(seed, options.jobs, options.apart)))
            trace = load(str(path), Options(), seed)
            least = bound(trace, Options(), programme=False).mean_jct_seconds
            for moves, settings in ((False, Settings(rescale_margin=1e12)), (True, Settings())):
                figures = Replay(trace, policy_named("optimus"), seed=seed, settings=settings).run().figures()
                row = {"seed": seed, "moves": moves, "jobs": options.jobs, "apart_seconds": options.apart}
                row["least_jct_seconds"] = least
                print(json.dumps({**row, **{name: figures[name] for name in _FIGURES}}), flush=True)


if __name__ == "__main__":
    main()
