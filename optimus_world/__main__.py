"""`python -m optimus_world --seed 1 --hours 4`: one world, or many, one after the other."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from optimus_world.shrink import shrunk
from optimus_world.world import Outcome, Script, run

_SHRINK_SECONDS = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: an invariant was broken; the history is printed."""
    given = _parser().parse_args(arguments)
    gc.freeze()  # what was imported stays: the collector need not walk it again and again
    begun = time.process_time()
    hours = n_worlds = 0.0
    for seed in _seeds(given):
        drawn = Script.drawn(seed, given.hours, given.upgraded_from, is_crowded=given.crowded)
        script = replace(drawn, calm_after=given.calm_after)
        outcome = run(_kept(script, given.only))
        print(json.dumps(_numbers(outcome)), flush=True)
        hours, n_worlds = hours + outcome.seconds / 3600.0, n_worlds + 1
        if outcome.violation is not None:
            _tell(outcome, given.shrink_seconds if given.only is None else 0.0)
            return 1
        if given.total_hours is not None and hours >= given.total_hours:
            break
    cpu = time.process_time() - begun
    numbers = {"worlds": int(n_worlds), "hours": round(hours, 1), "cpu_seconds": round(cpu, 1)}
    print(json.dumps({**numbers, "hours_per_cpu_hour": round(3600.0 * hours / cpu)}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m optimus_world", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--hours", type=float, default=4.0, help="of one world (default: 4)")
    parser.add_argument("--worlds", type=int, default=1, help="one after the other, with the seeds that follow")
    parser.add_argument("--total-hours", type=float, help="as many worlds as it takes to simulate so many hours")
    parser.add_argument("--upgraded-from", help="a revision of the repository: the service is upgraded from there")
    parser.add_argument("--crowded", action="store_true", help="many users ask for more than there is")
    parser.add_argument("--only", help="numbers of faults and acts to keep, such as f3,f7,a0; of a shrunk history")
    parser.add_argument("--calm-after", type=float, help="hours after which nothing goes wrong; of a shrunk history")
    parser.add_argument("--shrink-seconds", type=float, default=_SHRINK_SECONDS, help="for a shorter history")
    return parser


def _seeds(given: argparse.Namespace) -> Iterator[int]:
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(10**9)
    return itertools.count(first) if given.total_hours is not None else iter(range(first, first + given.worlds))


def _kept(script: Script, only: str | None) -> Script:
    if only is None:
        return script
    names = set(only.split(","))
    return replace(
        script,
        faults=tuple(fault for fault in script.faults if f"f{fault.number}" in names),
        acts=tuple(act for act in script.acts if f"a{act.number}" in names),
    )


def _numbers(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.script.seed,
        "cluster": "kubernetes" if outcome.script.on_kubernetes else "machines",
        "hours": round(outcome.seconds / 3600.0, 2),
        "faults": len(outcome.script.faults),
        "events": outcome.n_events,
        "commits": outcome.n_commits,
        "calls": outcome.n_calls,
        "jobs": outcome.n_jobs,
        "samples": outcome.n_samples,
        "broken": None if outcome.violation is None else outcome.violation.invariant,
        "digest": outcome.digest,
    }


def _tell(outcome: Outcome, seconds: float) -> None:
    found = shrunk(outcome, seconds) if seconds > 0 else outcome
    print("\n".join(found.story))
    print(f"\nAgain: {reproduction(found)}")


def reproduction(outcome: Outcome) -> str:
    """The command that shows the same history."""
    script = outcome.script
    names = [*(f"f{fault.number}" for fault in script.faults), *(f"a{act.number}" for act in script.acts)]
    calm = "" if script.calm_after is None else f" --calm-after {script.calm_after:g}"
    calm += "" if script.upgrade is None else f" --upgraded-from {script.upgrade.revision}"
    calm += " --crowded" if script.is_crowded else ""
    return f"python -m optimus_world --seed {script.seed} --hours {script.hours:g}{calm} --only {','.join(names)}"


def _with_fixed_hashes() -> None:
    """Sets of strings have an order that differs from process to process, unless this is set before it begins."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(  # noqa: S606 - this program again
            sys.executable,
            [sys.executable, "-m", "optimus_world", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )


if __name__ == "__main__":
    _with_fixed_hashes()
    sys.exit(main())
