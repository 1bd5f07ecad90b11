"""How true predicted times left are: simulations of traces, with every prediction judged when its job has ended.

    python -m benchmarks.promises --data FOLDER [--runs pollux,paper] [--workloads 1,2] [--seeds 0] [--runs-known 1,0]
    python -m benchmarks.promises --data FOLDER --runs paper --oracle
    python -m benchmarks.promises --data FOLDER --runs paper --runs-known 1 --attribute
    python -m benchmarks.promises --data FOLDER --runs pollux --workloads 1,2 --runs-known 1 --load 3
    python -m benchmarks.promises --data FOLDER --runs pcs [--traces 2869ce] [--policies optimus,srtf] [--jobs 600]
    python -m benchmarks.promises --data FOLDER --runs elasticflow [--clusters 195job,cluster04] [--jobs 400] [--oracle]

`--data` is the folder with `pollux/`, `traces/philly.csv.gz` and `pcs/`. One JSON object a run on stdout. Each run is
that of `optimus simulate --set promises=true`: the queue is simulated forward after rounds (`optimus_scheduler.ahead`),
and each prediction is corrected by how those of ended jobs turned out. The runs of `pollux`, `paper` and `philly` are
made twice, with the reports of ended jobs known to later ones (`runs_known`) and without.

Of `time_left`, `held` is the part of the intervals of 80 % that held and `median_error` that of the time left, by the
part of the job's life from submission that was over. Bars: held 0.75 to 0.85 everywhere, median error at most 0.20 at a
quarter and 0.12 at half. `start` are predictions of when a waiting job begins, by the part of its wait. With `--oracle`
lengths and speeds are told: what is left is the error that later arrivals and changes of size make, which nobody knows.
`score` is the mean interval score of the time left in logarithms (width plus ten times the miss; less is better), of
predictions as they were shown and, `score_uncorrected`, before they were corrected by how earlier ones turned out.

`--attribute` adds what the errors come from, a quarter and half of a life over (`benchmarks.attribution`): the median
error before the correction, and the mean |ln|, if parts of the truth are told; of jobs with and without an ended one of
their task.

`pcs` is the comparison with PCS (OSDI 2024): the mean of |predicted - true| / true completion time of predictions at
submission, with lengths and speeds told (`--blind`: not), beside the mean completion time under several policies. As in
the published simulations changes of size cost nothing.

`elasticflow` counts what came of the answers to deadlines (`deadline_answers`): how many that were promised at
their submission, or later, were met, and how many that were declined were missed. The queue is simulated forward at
each submission and each first start. Bars: 95 % of the promised ones are met, 90 % of the declined ones missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.attribution import WatchedReplay

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Interval
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import Outcome, deadline_answers, time_left
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import load
from optimus_simulator.shown_predictions import AT_SUBMISSION, IN_LIFE, START

_ROUND_SECONDS, _PCS_ROUND_SECONDS = 600.0, 3600.0
"""Of the long traces, beside the rounds on events: a round each minute for three months takes hours."""


_MISS = 10.0
"""2 by the part of the truths, 0.2, that lies outside."""


@dataclass(frozen=True)
class Run:
    """One simulation."""

    kind: str
    trace: str
    policy: str
    seed: int
    options: Options
    jobs: int | None = None
    """Only the first so many."""
    attribute: bool = False


def measure(run: Run) -> dict[str, Any]:
    """The figures of one run."""
    begin = time.process_time()
    trace = load(run.trace, run.options, run.seed, run.policy)
    trace = replace(trace, jobs=trace.jobs[: run.jobs])
    replay = (WatchedReplay if run.attribute else Replay)(trace, policy_named(run.policy), run.options, seed=run.seed)
    outcome = replay.run()
    return {
        "kind": run.kind,
        "trace": outcome.trace,
        "policy": run.policy,
        "seed": run.seed,
        "jobs": len(outcome.jobs),
        "runs_known": run.options.learn_from_finished_jobs,
        "oracle": run.options.oracle,
        "mean_jct_seconds": outcome.figures()["mean_jct_seconds"],
        "cpu_seconds": time.process_time() - begin,
        **(_at_submission(outcome) if run.kind == "pcs" else {}),
        **(_of_deadlines(outcome) if run.kind == "elasticflow" else {}),
        **_scores(outcome),
        "time_left": [row for row in time_left([outcome]) if row["kind"] in (AT_SUBMISSION, IN_LIFE, START)],
        **({"attribution": replay.attribution()} if isinstance(replay, WatchedReplay) else {}),
    }


def _of_deadlines(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures()
    met = {name: figures[name] for name in ("deadlines_met", "restarts_per_job")}
    return {"deadline_answers": deadline_answers([outcome]), **met}


def _scores(outcome: Outcome) -> dict[str, float]:
    """Mean interval score of the time left, at submission and by the part of the life since then."""
    kinds = (AT_SUBMISSION, IN_LIFE)
    judged = [each for job in outcome.jobs for each in job.predictions if each.kind in kinds]
    said = [(each.prediction.left, each.prediction.uncorrected, each.true_left) for each in judged]
    shown = [_score(left, true) for left, before, true in said if left is not None and before is not None]
    uncorrected = [_score(before, true) for left, before, true in said if left is not None and before is not None]
    return {"score": sum(shown) / len(shown), "score_uncorrected": sum(uncorrected) / len(shown)} if shown else {}


def _score(said: Interval, true: float) -> float:
    """Of an 80 % interval, in logarithms of seconds (Gneiting and Raftery, JASA 2007, section 6.2)."""
    low, high, came = (math.log(max(each, 1.0)) for each in (said.low, said.high, true))
    return high - low + _MISS * (max(low - came, 0.0) + max(came - high, 0.0))


def _at_submission(outcome: Outcome) -> dict[str, float]:
    """How wrong the completion times that were predicted at submission are, by the true ones."""
    errors = []
    for job in outcome.jobs:
        for judged in job.predictions:
            if judged.kind == AT_SUBMISSION and judged.prediction.left is not None:
                predicted = judged.prediction.at + judged.prediction.left.mean - job.submitted_at
                errors.append(abs(predicted - job.jct_seconds) / max(job.jct_seconds, 1.0))
    errors.sort()
    if not errors:
        return {"promised": 0}
    return {
        "promised": len(errors),
        "mean_error": sum(errors) / len(errors),
        "p99_error": errors[int(0.99 * (len(errors) - 1))],
    }


def runs_of(options: argparse.Namespace) -> Iterator[Run]:
    """What the command line asks for."""
    data: Path = options.data
    kinds = options.runs.split(",")
    base = Options(promises=True, oracle=options.oracle, load=options.load)
    for known in (bool(number) for number in _numbers(options.runs_known)):
        each = replace(base, learn_from_finished_jobs=known)
        for seed in _numbers(options.seeds):
            if "pollux" in kinds:
                for number in _numbers(options.workloads):
                    path = data / "pollux" / "workloads" / f"workload-{number}.csv"
                    yield Run("pollux", f"pollux:{path}", "optimus", seed, each, attribute=options.attribute)
            if "paper" in kinds:
                yield Run("paper", "paper", "optimus", seed, each, attribute=options.attribute)
            if "philly" in kinds:
                sparse = replace(
                    each, promise_spacing=1.3, round_seconds=_ROUND_SECONDS, cluster=options.philly_cluster
                )
                yield Run(
                    "philly", f"philly:{data / 'traces' / 'philly.csv.gz'}", "optimus", seed, sparse, options.jobs
                )
    if "pcs" in kinds:
        yield from _pcs(options)
    if "elasticflow" in kinds:
        for name in options.clusters.split(","):
            path = data / "elasticflow" / "traces" / f"{name}.csv.gz"
            rare = replace(base, promise_spacing=1e9)
            yield Run("elasticflow", f"elasticflow:{path}", "optimus", 0, rare, options.jobs)


def _pcs(options: argparse.Namespace) -> Iterator[Run]:
    each = Options(promises=True, oracle=not options.blind, blind=options.blind)
    each = replace(each, round_seconds=_PCS_ROUND_SECONDS, restart_seconds=0.0, promise_spacing=1e9)
    for name in options.traces.split(","):
        for policy in options.policies.split(","):
            path = options.data / "pcs" / f"trace_{name}.csv.gz"
            yield Run("pcs", f"pcs:{path}", policy, 0, each, options.jobs)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with pollux/, traces/ and pcs/")
    parser.add_argument("--runs", default="pollux,paper,philly", help="of pollux, paper, philly, pcs, elasticflow")
    parser.add_argument("--workloads", default="1,2,3,4,5,6,7,8", help="of Pollux")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--runs-known", default="1,0", help="1: ended jobs teach later ones; 0: they do not")
    parser.add_argument("--oracle", action="store_true", help="lengths and speeds are told: what arrivals alone cost")
    parser.add_argument("--attribute", action="store_true", help="of pollux and paper: what errors come from")
    parser.add_argument("--load", type=float, default=1.0, help="3: jobs come three times as fast, so that many wait")
    parser.add_argument("--jobs", type=int, default=1500, help="of philly, pcs and elasticflow only the first so many")
    parser.add_argument("--philly-cluster", type=float, default=0.02, help="part of the 2,500 GPUs that these get")
    parser.add_argument("--traces", default="0e4a51,103959,2869ce,51b7ef", help="of PCS")
    parser.add_argument("--clusters", default="195job,cluster04,cluster10", help="of ElasticFlow")
    parser.add_argument("--policies", default="optimus,predictable,srtf,tiresias,fifo", help="for PCS")
    parser.add_argument("--blind", action="store_true", help="PCS: jobs do not tell their lengths")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    if not options.data.is_dir():
        parser.error(f"--data: there is no folder {options.data}; it holds pollux/, traces/ and pcs/")
    runs = list(runs_of(options))
    if options.processes <= 1:
        for run in runs:
            print(json.dumps(measure(run)), flush=True)
        return 0
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for figures in pool.map(measure, runs):
            print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
