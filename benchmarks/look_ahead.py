"""How long the queue simulated forward takes, by the number of jobs: seconds of one core (CPU time of the process).

    python -m benchmarks.look_ahead [--jobs 200] [--nodes 100] [--runs 5] [--policy optimus]

The jobs are those of `made_up_cluster`, half of which run when it begins; 24 more are expected. One JSON object on
stdout. `first` is the first look, before any size of any job was asked for; `median` is that of later ones. The bar is
0.2 s for 200 jobs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from benchmarks.made_up_cluster import NOW, OwnSpeeds, made_up_jobs, made_up_nodes

from optimus_scheduler.ahead.arrivals import RecentJobs
from optimus_scheduler.ahead.corrected_times import corrected_times
from optimus_scheduler.ahead.queue import Queue
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import RememberingForecaster
from optimus_scheduler.model import Snapshot
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings


def measure(n_jobs: int, n_nodes: int, runs: int, policy_name: str) -> dict[str, object]:
    """The figures."""
    policy, settings, jobs, nodes = policy_named(policy_name), Settings(), made_up_jobs(n_jobs), made_up_nodes(n_nodes)
    forecaster = RememberingForecaster(OwnSpeeds())
    snapshot = Snapshot(NOW, nodes, jobs)
    decided = plan(snapshot, policy, settings, forecaster=forecaster)
    outlooks = forecaster(jobs, NOW, settings)
    recent = RecentJobs()
    recent.note(outlooks, NOW)
    queue = Queue.after_round(snapshot, decided, outlooks, recent.arrivals(NOW))
    seconds = []
    for _ in range(runs + 1):
        begin = time.process_time()
        found = corrected_times(queue, policy, settings)
        seconds.append(time.process_time() - begin)
    return {
        "jobs": n_jobs,
        "nodes": n_nodes,
        "policy": policy_name,
        "with_an_end": sum(each.shown.end is not None for each in found.values()),
        "first_seconds": seconds[0],
        "median_seconds": statistics.median(seconds[1:]),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--policy", default="optimus")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.jobs, options.nodes, options.runs, options.policy)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
