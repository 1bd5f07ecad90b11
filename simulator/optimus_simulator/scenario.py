"""One experiment as a value (trace, policy, seed, options), and many of them at once in several processes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.allocate.policy import RigidPolicy
from optimus_simulator.bounds.bound import Bound, bound
from optimus_simulator.bounds.needs import TooManySizes
from optimus_simulator.elasticflow import PublishedElasticFlow
from optimus_simulator.errors import BadTrace, Stuck
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.possible import check_ends, check_jobs, check_room
from optimus_simulator.replay import Progress, Replay, unwatched
from optimus_simulator.trace import Recorded, Trace
from optimus_simulator.traces.elasticflow import read_elasticflow
from optimus_simulator.traces.lines import MAX_NODES
from optimus_simulator.traces.own import read_own
from optimus_simulator.traces.paper import paper_workload
from optimus_simulator.traces.pcs import read_pcs
from optimus_simulator.traces.philly import read_philly
from optimus_simulator.traces.pollux import read_pollux


@dataclass(frozen=True, slots=True)
class Scenario:
    """An experiment; `command` repeats it."""

    trace: str
    """pollux:FILE, philly:FILE, pcs:FILE, elasticflow:FILE, paper[:ARRIVALS] or a file in our own format."""
    policy: str
    seed: int = 0
    options: Options = field(default_factory=Options)
    label: str = ""
    """What it is called beside others of the same policy; the policy's name if empty."""

    @property
    def command(self) -> str:
        """The command line that repeats it."""
        words = ["optimus", "simulate", "--trace", self.trace, "--policy", self.policy, "--seed", str(self.seed)]
        return shlex.join([*words, *self.options.flags()])


_IN_A_FILE = ("pollux", "philly", "pcs", "elasticflow")
_BASELINES_OF_THE_PAPER = ("drf", "tetris")


def load(trace: str, options: Options, seed: int, policy: str = "") -> Trace:
    """The trace that is meant, under the load of the options; `policy` matters for `uneven_parameters` only.

    Raises:
        BadTrace: it cannot be read.
    """
    kind, _, rest = trace.partition(":")
    if kind in _IN_A_FILE and not rest:
        raise BadTrace(f"{trace}: say which file, such as {kind}:FILE")
    match kind:
        case "pollux":
            found = read_pollux(Path(rest), faithful=options.pollux, elastic=options.elastic_batch)
        case "philly":
            found = read_philly(Path(rest))
        case "pcs":
            found = read_pcs(Path(rest), steps_stated=not options.blind)
        case "elasticflow":
            found = read_elasticflow(Path(rest), steps_stated=not options.blind)
        case "paper":
            uneven = options.uneven_parameters and policy in _BASELINES_OF_THE_PAPER
            found = paper_workload(seed, arrivals=rest or "uniform", uneven=uneven)
        case _ if not rest or Path(trace).exists():
            found = read_own(Path(trace))
        case _:
            raise BadTrace(
                f"{trace}: give pollux:FILE, philly:FILE, pcs:FILE, elasticflow:FILE, paper, paper:poisson, "
                "paper:google or FILE"
            )
    check_jobs(trace, found)
    if options.elastic_batch and not any(job.spec.elastic_batch for job in found.jobs):
        raise BadTrace(f"{trace}: its jobs have no batches to choose from, but elastic batches are asked for")
    if not 0.0 < options.cluster * len(found.nodes) <= MAX_NODES:
        raise BadTrace(
            f"cluster is {options.cluster:g}, a part or a multiple of the trace's {len(found.nodes)} nodes, but there "
            f"may be {MAX_NODES:,} at most"
        )
    found = found.with_cluster(options.cluster) if options.cluster != 1.0 else found
    return found.with_load(options.load) if options.load != 1.0 else found


def recorded(trace: str) -> Recorded | None:
    """What the trace tells of the service that wrote it; None of one that none did.

    Raises:
        BadTrace: it cannot be read.
    """
    kind, colon, _ = trace.partition(":")
    is_own = (not colon and kind != "paper") or Path(trace).exists()
    return load(trace, Options(), 0).recorded if is_own else None


def simulate(scenario: Scenario, progress: Progress = unwatched) -> Outcome:
    """Run it.

    Raises:
        BadTrace: the trace cannot be read.
        Stuck: jobs do not end; the message has the command that repeats it.
        UnknownPolicy: there is none of that name.
    """
    options, seed = scenario.options, scenario.seed
    trace, policy = load(scenario.trace, options, seed, scenario.policy), policy_named(scenario.policy)
    if options.elasticflow and policy.name == PublishedElasticFlow.name:
        policy = PublishedElasticFlow()
    check_ends(scenario.trace, trace, options, policy)
    try:
        outcome = Replay(trace, policy, options, seed=seed, progress=progress).run()
    except (Stuck, AssertionError) as error:
        raise Stuck(f"{error}\nseed {seed}; again with: {scenario.command}") from error
    outcome = replace(outcome, policy=scenario.label) if scenario.label else outcome
    try:
        return replace(outcome, bound=bound_of(scenario.trace, options, seed, programme=options.bound))
    except BadTrace as error:
        return replace(outcome, no_bound=str(error).removeprefix(f"{scenario.trace}: "))


def bound_of(trace: str, options: Options, seed: int, *, programme: bool = True) -> Bound:
    """What no scheduler can do better than on that trace, drawn with that seed if it is drawn; without the linear
    `programme` in a moment.

    Raises:
        BadTrace: the trace cannot be read, or there is no bound for its jobs.
    """
    matters = replace(Options(), **{name: getattr(options, name) for name in _OF_BOUNDS})
    return _bound_of(trace, matters, seed if trace.partition(":")[0] == "paper" else 0, programme)


_OF_BOUNDS = ("restart_seconds", "restart_spread", "elastic_batch", "blind", "load", "cluster", "pollux")
"""Options that bounds depend on: with others they are the same, and not worked out again."""


@lru_cache(maxsize=64)
def _bound_of(trace: str, options: Options, seed: int, programme: bool) -> Bound:
    found = load(trace, options, seed)
    try:
        return bound(found, options, programme=programme)
    except TooManySizes as error:
        raise TooManySizes(f"{trace}: {error}; --bound takes the time") from error
    except BadTrace as error:
        raise BadTrace(f"{trace}: {error}") from error


Done = Callable[[int, Outcome], None]
"""Called with the index and outcome of each scenario as it ends."""


def run_all(scenarios: Sequence[Scenario], processes: int, done: Done) -> list[Outcome]:
    """The outcomes in the order of the scenarios; the number of processes does not change them.

    Raises whatever `simulate` raises for the first scenario that fails; those that have not begun are dropped.
    """
    _check_only_sizes(scenarios)
    outcomes: dict[int, Outcome] = {}
    for index, outcome in _as_completed(scenarios, processes):
        outcomes[index] = outcome
        done(index, outcome)
    return [outcomes[index] for index in range(len(scenarios))]


def _check_only_sizes(scenarios: Sequence[Scenario]) -> None:
    """Before anything is simulated: what policies that choose sizes make of the trace would be lost later."""
    found: dict[tuple[str, float], Trace] = {}
    for name, cluster, policy in dict.fromkeys((each.trace, each.options.cluster, each.policy) for each in scenarios):
        rigid = policy_named(policy)
        if len(scenarios) > 1 and isinstance(rigid, RigidPolicy):
            first = next(each for each in scenarios if (each.trace, each.options.cluster) == (name, cluster))
            if (name, cluster) not in found:
                found[name, cluster] = load(name, first.options, first.seed, policy)
            check_room(name, found[name, cluster], rigid)


def _as_completed(scenarios: Sequence[Scenario], processes: int) -> Iterator[tuple[int, Outcome]]:
    if processes <= 1 or len(scenarios) <= 1:
        yield from ((index, simulate(scenario)) for index, scenario in enumerate(scenarios))
        return
    # Spawned, not forked: a fork of a process with threads (a progress bar has one) may hang.
    with ProcessPoolExecutor(min(processes, len(scenarios)), mp_context=get_context("spawn")) as pool:
        indices: dict[Future[Outcome], int] = {pool.submit(simulate, s): i for i, s in enumerate(scenarios)}
        try:
            waiting = set(indices)
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in sorted(ended, key=indices.__getitem__):
                    yield indices[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
