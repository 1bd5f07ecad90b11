"""Every policy on clusters as they are. One JSON object per run, then the table, in Markdown, on stderr.

    python -m benchmarks.scenarios [--worlds gangs,week] [--policies optimus,srtf] [--seeds 2] [--first-seed 0]
        [--jobs 60]

`worlds.py` says what the worlds are; each is replayed as `optimus simulate --trace FILE` replays it, with the options
that are printed. Counted are the mean completion time, the makespan and the longest wait before the first tasks
(seconds), the changes of size per job, what no scheduler can do better than (`optimus simulate --bound`) and how far
above it each run is. The table has each policy's mean completion time over the best one's, and how far the first policy
and the best are above the bound, means over the seeds. The policies `elasticflow` and `edf`, which go by deadlines, are
left out, as no job has one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.scenarios.worlds import WORLDS, World, trace_lines

from optimus_scheduler.allocate.policies import POLICIES
from optimus_simulator.scenario import Scenario, simulate

_WITHOUT = ("edf", "elasticflow")
_KEPT = ("mean_jct_seconds", "makespan_seconds", "restarts_per_job", "above_bound", "makespan_above_bound")


def run(folder: Path, name: str, world: World, policy: str, seed: int, n_jobs: int) -> dict[str, float | str]:
    """Figures of one policy on one world."""
    trace = folder / f"{name}-{seed}.jsonl"
    if not trace.exists():
        trace.write_text("\n".join(trace_lines(world.knobs, seed, n_jobs)))
    outcome = simulate(Scenario(str(trace), policy, seed, replace(world.options, bound=True)))
    figures = outcome.figures()
    if outcome.bound is None:
        raise AssertionError(outcome.no_bound)
    waits = [each.started_at - each.submitted_at for each in outcome.jobs]
    found: dict[str, float | str] = {"world": name, "policy": policy, "seed": seed, "jobs": n_jobs}
    found |= {each: figures[each] for each in _KEPT} | {"longest_wait_seconds": max(waits, default=0.0)}
    found |= {
        "least_jct_seconds": outcome.bound.mean_jct_seconds,
        "least_makespan_seconds": outcome.bound.makespan_seconds,
    }
    return found | {"options": " ".join(world.options.flags())}


def table(runs: Sequence[dict[str, float | str]], policies: Sequence[str]) -> str:
    """Mean completion times over the best policy's, by world, and the first and the best policy's over the bound."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    least: dict[str, list[float]] = defaultdict(list)
    for one in runs:
        world, policy = str(one["world"]), str(one["policy"])
        times[world, policy].append(float(one["mean_jct_seconds"]))
        if policy == policies[0]:
            least[world].append(float(one["least_jct_seconds"]))
    names = (
        "world",
        "best, seconds",
        *policies,
        "no scheduler below, seconds",
        f"{policies[0]} above it",
        "best above it",
    )
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for world, bounds in least.items():
        means = [statistics.fmean(times[world, policy]) for policy in policies]
        ratios = " | ".join(f"{each / min(means):.2f}" for each in means)
        bound = statistics.fmean(bounds)
        above = " | ".join(f"{each / bound - 1.0:.0%}" for each in (means[0], min(means)))
        lines.append(f"| {world} | {min(means):,.0f} | {ratios} | {bound:,.0f} | {above} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--policies", default=",".join(each for each in POLICIES if each not in _WITHOUT))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=60)
    options = parser.parse_args(arguments)
    runs, policies = [], options.policies.split(",")
    with TemporaryDirectory() as folder:
        for name in options.worlds.split(","):
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                for policy in policies:
                    n_jobs = WORLDS[name].jobs or options.jobs
                    runs.append(run(Path(folder), name, WORLDS[name], policy, seed, n_jobs))
                    print(json.dumps(runs[-1]), flush=True)
    print(table(runs, policies), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
