"""What choosing GPU types is worth: jobs measured on three types, replayed with different ways to choose.

    python -m benchmarks.gpu_types [--jobs 60] [--seeds 3] [--load 1.0] [--policies optimus,srtf] [--scaling even]
        [--gpus-asked 2] [--set oracle=true --set restart_seconds=2]

Speeds are the measured ones of `$OPTIMUS_DATA/gavel_throughputs.json` (Narayanan et al., "Gavel", OSDI 2020): each job
is one of its networks and batch sizes, alone on one GPU of each type. With more workers, each computes a smaller part
of the batch, which takes as long as such batches of this network took on a V100 (a line through those that were
measured), or as if computing could be divided evenly (`--scaling even`). An exchange of a tenth of a step, Poisson
arrivals, and lengths log-uniform from 5 minutes to 2 hours on one V100 are made up. The cluster has as many GPUs of
each type, four a node. With `--policies` these are compared instead, all with the types that the scheduler chooses;
those that do not choose sizes give each job the GPUs that its user asked for, two if nothing is said. `--set` changes
an option of the simulation. `bound` is what no scheduler is below (docs/bounds.md); `--policies bound`: that alone.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from optimus_models.cost import GPU_HOUR_PRICES
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Node, Resources, TaskDemand
from optimus_scheduler.settings import Settings
from optimus_simulator.bounds.bound import bound
from optimus_simulator.options import Options, option_value
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace, TraceJob, in_order
from optimus_simulator.truth.truth import AllReduceLaw, ParametricTruth

TYPES = ("k80", "p100", "v100")
PRICES = {kind: GPU_HOUR_PRICES[kind.upper()] for kind in TYPES}
GPUS_OF_A_TYPE, GPUS_OF_A_NODE, MOST_WORKERS = 12, 4, 4
WAYS = ("speed", "price", "strangers", "v100", "in turn", "oracle")
"""The two of the scheduler; the first with jobs of unknown families; every job on the newest type; types in turn; every
job on the type that it is really fastest on, which nobody knows beforehand."""


_BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Measured:
    """One network and batch size: steps per second on one GPU of each type."""

    name: str
    batch: int
    speeds: dict[str, float]
    fixed: float = 0.0
    """The part of a step that takes as long with fewer examples."""


def measured(path: Path, scaling: str = "measured") -> list[Measured]:
    """Those that were measured alone on one GPU of every type; `scaling`: "measured" or "even"."""
    table = json.loads(path.read_text(encoding="utf-8"))
    found = []
    for key in table["v100"]:
        name, workers = ast.literal_eval(key)
        if workers != 1 or "batch size" not in name:
            continue
        speeds = {kind: table[kind].get(key, {}).get("null", 0.0) for kind in TYPES}
        if all(isinstance(speed, float) and speed > 0 for speed in speeds.values()):
            network, _, batch = name.partition(" (batch size ")
            found.append(Measured(network, int(batch.rstrip(")")), speeds))
    return [replace(kind, fixed=_fixed_part(kind, found)) for kind in found] if scaling == "measured" else found


def _fixed_part(kind: Measured, kinds: Sequence[Measured]) -> float:
    """a/(a + c·batch) of the line of seconds by batch on a V100 through the batches of the network, errors relative."""
    of_network = [each for each in kinds if each.name == kind.name]
    batches = np.array([float(each.batch) for each in of_network])
    speeds = np.array([each.speeds["v100"] for each in of_network])
    line = np.stack([speeds, batches * speeds], axis=1)
    fixed, per_example = np.linalg.lstsq(line, np.ones(len(speeds)), rcond=None)[0]
    return max(float(fixed / (fixed + per_example * kind.batch)), 0.0)


def workload(kinds: Sequence[Measured], n_jobs: int, load: float, seed: int) -> Trace:
    """Jobs that accept every type."""
    random = np.random.default_rng(seed)
    capacity = Resources(16.0, 64 * 2**30)
    nodes = tuple(
        Node(f"{kind}-{number}", replace(capacity, gpus={kind: GPUS_OF_A_NODE}))
        for kind in TYPES
        for number in range(GPUS_OF_A_TYPE // GPUS_OF_A_NODE)
    )
    arrivals = np.cumsum(random.exponential(90.0 / load, n_jobs))
    jobs = [_job(number, kinds, float(at), random) for number, at in enumerate(arrivals)]
    return Trace("gavel", nodes, in_order(jobs))


def _job(number: int, kinds: Sequence[Measured], at: float, random: np.random.Generator) -> TraceJob:
    kind = kinds[int(random.integers(len(kinds)))]
    speed = kind.speeds["v100"]
    steps = float(np.exp(random.uniform(np.log(300.0), np.log(7200.0)))) * speed
    spec = JobSpec(
        worker=TaskDemand(Resources(1.0, 2**30, {"gpu": 1}), 1, MOST_WORKERS),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(max_steps=int(steps)),
        architecture=Architecture.ALLREDUCE,
        global_batch_size=kind.batch,
        requested_workers=2,
        gpu_types=TYPES,
        family=kind.name,
    )
    law = AllReduceLaw((1.0 - kind.fixed) / speed, 0.1 / speed, pass_seconds=kind.fixed / speed)
    truth = ParametricTruth(steps, law)
    relative = {gpu_type: kind.speeds[gpu_type] / speed for gpu_type in TYPES}
    return TraceJob(f"job-{number:03d}", at, spec, truth, relative)


def chosen(trace: Trace, way: str) -> Trace:
    """The same jobs with the types that are chosen beforehand, if they are."""
    match way:
        case "v100":
            return _pinned(trace, lambda _number, _job: "v100")
        case "oracle":
            return _pinned(trace, lambda _number, job: max(TYPES, key=job.speed_factor))
        case "in turn":
            return _pinned(trace, lambda number, _job: TYPES[number % len(TYPES)])
        case "strangers":
            jobs = tuple(replace(job, spec=replace(job.spec, family="")) for job in trace.jobs)
            return replace(trace, jobs=jobs)
        case _:
            return trace


def _pinned(trace: Trace, type_of: Callable[[int, TraceJob], str]) -> Trace:
    jobs = tuple(
        replace(job, spec=replace(job.spec, gpu_types=(type_of(number, job),))) for number, job in enumerate(trace.jobs)
    )
    return replace(trace, jobs=jobs)


def asking_for(trace: Trace, n_gpus: int) -> Trace:
    """The same jobs, of users who all ask for so many GPUs."""
    jobs = tuple(replace(job, spec=replace(job.spec, requested_workers=n_gpus)) for job in trace.jobs)
    return replace(trace, jobs=jobs)


def run(trace: Trace, way: str, seed: int, policy: str, options: Options) -> dict[str, float]:
    """Figures of one replay."""
    settings = Settings(price_per_gpu_hour=PRICES, gpu_type_by="price" if way == "price" else "speed")
    replay = Replay(chosen(trace, way), policy_named(policy), options, seed=seed, settings=settings)
    outcome = replay.run()
    times = [job.finished_at - job.submitted_at for job in outcome.jobs]
    return {
        "jct_seconds": fmean(times),
        "p50_seconds": float(np.percentile(times, 50)),
        "p90_seconds": float(np.percentile(times, 90)),
        "makespan_seconds": max(job.finished_at for job in outcome.jobs),
        "cost": replay.spent,
        "restarts_per_job": fmean(job.restarts for job in outcome.jobs),
        "fairness_worst": max(job.fairness for job in outcome.jobs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=1.0, help="jobs arrive so many times as fast")
    folder = os.environ.get("OPTIMUS_DATA", ".")
    parser.add_argument("--data", type=Path, default=Path(folder), help="gavel_throughputs.json or its folder")
    parser.add_argument("--policies", help="compare these, separated by commas")
    parser.add_argument("--scaling", choices=("measured", "even"), default="measured", help="with more workers")
    parser.add_argument("--gpus-asked", type=int, choices=range(1, MOST_WORKERS + 1), default=2, help="by each user")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the simulation")
    options = parser.parse_args()
    try:
        pairs = [text.partition("=") for text in options.set]
        simulated = Options(**{name: option_value(name, value) for name, _, value in pairs})  # type: ignore[arg-type]
    except ValueError as error:
        parser.error(f"--set: {error}")
    path = options.data if options.data.is_file() else options.data / "gavel_throughputs.json"
    if not path.is_file():
        parser.error(f"--data: there is no {path}; give gavel_throughputs.json, or set OPTIMUS_DATA")
    kinds = measured(path, options.scaling)
    began = time.process_time()
    figures = {}
    policies = options.policies.split(",") if options.policies else []
    asked_for = [] if policies == [_BOUND] else policies or WAYS
    for each in asked_for:
        name, way, policy = (each, "speed", each) if policies else (each, each, "optimus")
        traces = [workload(kinds, options.jobs, options.load, seed) for seed in range(options.seeds)]
        asked = [asking_for(trace, options.gpus_asked) for trace in traces]
        runs = [run(trace, way, seed, policy, simulated) for seed, trace in enumerate(asked)]
        figures[name] = {figure: round(fmean(one[figure] for one in runs), 2) for figure in runs[0]}
    told = {"jobs": options.jobs, "seeds": options.seeds, "load": options.load, "kinds": len(kinds)}
    told |= {"scaling": options.scaling, "gpus_asked": options.gpus_asked, "set": options.set}
    least = [bound(workload(kinds, options.jobs, options.load, seed), simulated) for seed in range(options.seeds)]
    told["bound"] = {
        "jct_seconds": round(fmean(each.mean_jct_seconds for each in least), 2),
        "makespan_seconds": round(fmean(each.makespan_seconds for each in least), 2),
    }
    told["policies" if policies else "ways"] = figures
    print(json.dumps({**told, "cpu_seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
