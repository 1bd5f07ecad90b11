"""How long the decisions of a round take, by the size of the cluster.

    python -m benchmarks.decide [--jobs 4000] [--nodes 16000] [--curve] [--json]

Rounds of the default policy on a made-up cluster (`made_up_cluster`), in seconds of one core (CPU time of the
process; as in every shell, the garbage collector waits until a round is over):

* cold: every job is known (speeds fitted, ends predicted), nobody has a task, nothing is remembered;
* incremental: all of that runs; one job in 200 has told a new speed and one in 200 has ended and been followed by a
  new one, while the shell has kept its `RoundMemory` and its models. As in the service, jobs are new objects,
  equal or not; what a job has is what was made of its rows and reports before, where these are the same
  (`store/database/kept.py`), and so are tasks (`observe/snapshot.py`) and nodes (`clusters/kubernetes/capacity.py`).
* steady: the median of each part over the rounds that follow, with as many changes each. Jobs may move by then, and
  what an incremental round words for the first time is known.

`decide` is what the paper counts: allocate (who gets how many tasks) and place (on which nodes), from the snapshot to
the node of every task. Reported beside it and not part of it: forecast (refitting is measured by `refit`), reconcile
(what has to be started and stopped) and explain. `plan` is the whole. `peak_mib` is the largest resident memory of the
whole process, with the jobs, nodes and tasks themselves. `--curve` adds a quarter, half, and twice the size.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from operator import attrgetter
from statistics import median

from benchmarks.made_up_cluster import NOW, OwnSpeeds, made_up_jobs, made_up_nodes

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import RememberingForecaster
from optimus_scheduler.model import (
    Action,
    Decision,
    Job,
    JobState,
    Plan,
    SetWanted,
    Snapshot,
    StartTask,
    Task,
    TaskPhase,
)
from optimus_scheduler.round import RoundMemory, plan
from optimus_service.process.gc_pause import collector_paused

PHASES = ("forecast", "allocate", "place", "reconcile")
_CHANGED = 100
"""One job in so many has changed in an incremental round."""
_STEADY = 8
"""Rounds after that."""


class Shell:
    """Runs rounds and takes the time of their phases."""

    def __init__(self, policy: str) -> None:
        self._policy, self._forecaster, self._memory = (
            policy_named(policy),
            RememberingForecaster(OwnSpeeds()),
            RoundMemory(),
        )
        self.seconds: dict[str, float] = {}

    def round(self, snapshot: Snapshot) -> Plan:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        begin = time.process_time()
        with collector_paused():  # as every shell does, until the round is over
            decided = plan(snapshot, self._policy, None, self._timer, self._forecaster, self._memory)
            whole = time.process_time() - begin
        self.seconds["explain"] = whole - sum(self.seconds.values())
        self.seconds["decide"] = self.seconds["allocate"] + self.seconds["place"]
        self.seconds["plan"] = whole
        return decided

    def _timer(self, phase: str) -> AbstractContextManager[object]:
        @contextmanager
        def timed() -> Iterator[None]:
            begin = time.process_time()
            yield
            self.seconds[phase] += time.process_time() - begin

        return timed()


def measure(n_jobs: int, n_nodes: int, policy: str) -> dict[str, float]:
    """The phases of a cold, of an incremental and of a steady round, in seconds."""
    shell = Shell(policy)
    snapshot = Snapshot(NOW, made_up_nodes(n_nodes), made_up_jobs(n_jobs))
    cold = shell.round(snapshot)
    figures: dict[str, float] = {"jobs": n_jobs, "nodes": n_nodes, "tasks": sum(map(_size, cold.decisions))}
    figures |= {f"cold_{phase}": seconds for phase, seconds in shell.seconds.items()}
    snapshot = _applied(snapshot, cold.actions)
    seconds: list[dict[str, float]] = []
    for _ in range(2 + _STEADY):
        snapshot = as_the_service_reads(_with_changes(snapshot, n_jobs))
        decided = shell.round(snapshot)
        snapshot = _applied(snapshot, decided.actions)
        seconds.append(shell.seconds)
    _, second, *later = seconds  # the first one still finds everything new
    figures |= {f"incremental_{phase}": value for phase, value in second.items()}
    figures |= {f"steady_{phase}": median(each[phase] for each in later) for phase in second}
    return {**figures, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def as_the_service_reads(snapshot: Snapshot) -> Snapshot:
    """An equal snapshot with the objects that the service would have made anew."""
    jobs = tuple([replace(job, speed_samples=(*job.speed_samples,)) for job in snapshot.jobs])
    tasks = tuple(sorted(snapshot.tasks, key=attrgetter("key")))
    return replace(snapshot, nodes=(*snapshot.nodes,), jobs=jobs, tasks=tasks)


def _size(decision: Decision) -> int:
    return decision.allocation.workers + decision.allocation.servers


def _applied(snapshot: Snapshot, actions: Sequence[Action]) -> Snapshot:
    """Everything that was wanted runs, everything else has gone."""
    jobs = {job.id: job for job in snapshot.jobs}
    tasks = {task.key: task for task in snapshot.tasks}
    for action in actions:
        if isinstance(action, SetWanted):
            before = jobs[action.job_id]
            jobs[action.job_id] = _given(before, action, snapshot.now)
            for gone in {task.key for task in before.wanted_tasks} - {task.key for task in action.tasks}:
                tasks.pop(gone, None)
        elif isinstance(action, StartTask):
            tasks[action.task.key] = Task(action.task.key, action.task.node, TaskPhase.RUNNING)
    return replace(snapshot, jobs=tuple(jobs.values()), tasks=tuple(tasks.values()))


def _given(job: Job, action: SetWanted, now: float) -> Job:
    state = JobState.RUNNING if action.tasks else JobState.PAUSED
    started_at = job.started_at if job.started_at is not None else now
    return replace(
        job,
        state=state,
        started_at=started_at,
        allocation=action.allocation,
        allocated_at=now,
        directive=action.directive,
        wanted_tasks=action.tasks,
    )


def _with_changes(snapshot: Snapshot, first_new: int) -> Snapshot:
    """A minute later: one job in 200 has told a speed, the next one has ended, and another one has come."""
    jobs, gone = list(snapshot.jobs), set()
    for place in range(0, len(jobs) - 1, 2 * _CHANGED):
        reported = jobs[place]
        newest = replace(
            reported.speed_samples[-1], steps_per_second=reported.speed_samples[-1].steps_per_second * 1.02
        )
        jobs[place] = replace(reported, speed_samples=(*reported.speed_samples[:-1], newest))
        gone.add(jobs[place + 1].id)
    left = [job for job in jobs if job.id not in gone]
    newcomers = made_up_jobs(len(gone), int(snapshot.now) - int(NOW) + first_new)
    tasks = tuple(task for task in snapshot.tasks if task.key.job_id not in gone)
    return replace(snapshot, now=snapshot.now + 60.0, jobs=(*left, *newcomers), tasks=tasks)


# --- output ----------------------------------------------------------------------------------------------------------


def curve(n_jobs: int, n_nodes: int, policy: str) -> list[dict[str, float]]:
    """A quarter, half, once and twice the size, each in a process of its own: memory counts by process."""
    sizes = [(max(int(n_jobs * part), 1), max(int(n_nodes * part), 1)) for part in (0.25, 0.5, 1.0, 2.0)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return [pool.submit(measure, *size, policy).result() for size in sizes]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--nodes", type=int, default=16000)
    parser.add_argument("--policy", default="optimus")
    parser.add_argument("--curve", action="store_true", help="also a quarter, half and twice the size")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    size = options.jobs, options.nodes, options.policy
    rows = curve(*size) if options.curve else [measure(*size)]
    if options.json:
        print(json.dumps({"policy": options.policy, "curve": rows} if options.curve else rows[0]))
        return 0
    for name in rows[0]:
        digits = 0 if name in ("jobs", "nodes", "tasks", "peak_mib") else 3
        print(f"{name:24}" + "".join(f"{row[name]:12,.{digits}f}" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
