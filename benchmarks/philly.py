"""How long it takes to replay the whole Philly trace: 82,247 jobs on 2,500 GPUs over a hundred days and more.

    python -m benchmarks.philly --data FILE [--policy tiresias] [--round-seconds 600] [--on-events] [--jobs N] [--json]

Rounds come every ten minutes, the paper's interval, and only then; `--on-events` has one after each of 160,000 events,
too, as the service does, which takes several times as long. Counted are seconds of one core (CPU time) from opening the
file to the last job's end, and the largest resident memory of the process. Without `--json` a line with what has been
reached goes to stderr every minute.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.options import Options
from optimus_simulator.replay import Progress, Replay, unwatched
from optimus_simulator.traces.philly import read_philly


def measure(path: Path, policy: str, options: Options, n_jobs: int | None, progress: Progress) -> dict[str, float]:
    """Figures of the replay and of what it took."""
    begin = time.process_time()
    trace = read_philly(path)
    trace = replace(trace, jobs=trace.jobs[:n_jobs])
    outcome = Replay(trace, policy_named(policy), options, progress=progress).run()
    return {
        "jobs": len(outcome.jobs),
        "rounds": outcome.rounds,
        "cpu_seconds": time.process_time() - begin,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **outcome.figures(),
    }


class _Reporter:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, ended: int, now: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 60.0
            cpu = time.process_time()
            print(f"day {now / 86_400:6.1f}: {ended:6} jobs ended, {cpu:6.0f} CPU s", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="philly.csv.gz")
    parser.add_argument("--policy", default="tiresias")
    parser.add_argument("--round-seconds", type=float, default=600.0)
    parser.add_argument("--on-events", action="store_true", help="a round after each event, too")
    parser.add_argument("--jobs", type=int, help="only the first so many")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    asked = parser.parse_args(arguments)
    if not asked.data.is_file():
        parser.error(f"--data: there is no file {asked.data}; give the path of philly.csv.gz")
    progress = unwatched if asked.json else _Reporter()
    options = Options(round_seconds=asked.round_seconds, rounds_on_events=asked.on_events)
    figures = measure(asked.data, asked.policy, options, asked.jobs, progress)
    if asked.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24}{value:14.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
