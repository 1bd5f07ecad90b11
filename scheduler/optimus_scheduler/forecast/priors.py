"""Which ended jobs say something about which active one, and what: finished runs for its loss curve.

A shell tells `EndedJobs` of every job that ends well and asks it for those of the same task, and for what all of them
tell of rings that leave a node; `LossPriors` makes those of a task into the `Prior` that loss curves are fitted with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from optimus_models.loss.finished_runs import FinishedRun, Prior
from optimus_models.loss.rate_schedule import RateSchedule
from optimus_models.speed.boundary import Boundary, Jumps
from optimus_models.speed.scaling import observed_jump
from optimus_scheduler.forecast.precedents import End, ends_by_loss_under
from optimus_scheduler.model import ConvergenceRule, EndedJob, Job, JobSpec, Nodes

MAX_PER_TASK = 16
"""Ended jobs remembered of one task, the newest: more add little, and each takes time in every fit."""
MAX_TASKS = 512
"""Tasks remembered, those that ended last: with 16 jobs of at most 128 losses each, some 20 MB."""
MAX_PRIORS = 128
"""Priors remembered, those last asked for: of 16 runs each, some 8 MB."""
LEAST_LOSSES = 5
"""A run with fewer losses is no evidence for the losses of others."""

_MOST_JUMPS = 4 * MAX_TASKS
"""Of tasks on nodes of so many workers each, the newest."""
MAX_RUNS = 1024
"""Runs of ended jobs remembered, those last asked for: one more ended job changes the prior by one of 16 runs."""

_PriorKey = tuple[tuple[str, ...], float, str, ConvergenceRule, tuple[str, ...]]
"""Ids of the ended jobs; steps per epoch, project, rule and arguments of the active one."""
_RunKey = tuple[str, float, bool, End | None]
"""Id of the ended job; steps per epoch of the active one, whether it is of the same project, and where its rule would
have ended the ended one."""


class EndedJobs:
    """Ended jobs by task, in bounded memory. Belongs to one shell; not to be shared between threads."""

    def __init__(self, jobs: Iterable[EndedJob] = ()) -> None:
        """`jobs`: the one that ended first comes first."""
        self._by_task: OrderedDict[str, tuple[EndedJob, ...]] = OrderedDict()
        self._jumps: dict[tuple[str, int], tuple[tuple[EndedJob, ...], float | None]] = {}
        """By task and workers of a node: that of these jobs; None: of none of them it is known ..."""
        self._believed: dict[int, Jumps] = {}
        """... and what follows from those of all tasks; empty when they have changed."""
        for job in jobs:
            self.add(job)

    def add(self, job: EndedJob) -> None:
        """Remember one more, the newest; a job without a task's name, or that teaches nothing, is skipped."""
        if not job.task or (len(job.losses) < LEAST_LOSSES and not job.speed_samples and job.silent is None):
            return
        self._believed.clear()
        known = self._by_task.pop(job.task, ())
        others = tuple(other for other in known if other.id != job.id)
        self._by_task[job.task] = (*others, job)[-MAX_PER_TASK:]
        if len(self._by_task) > MAX_TASKS:
            self._by_task.popitem(last=False)

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all others."""
        self._believed.clear()
        for task, known in list(self._by_task.items()):
            kept = tuple(job for job in known if job.id in job_ids)
            if not kept:
                del self._by_task[task]
            elif len(kept) < len(known):
                self._by_task[task] = kept

    def forget(self, job_ids: Collection[str]) -> None:
        """Forget these."""
        if job_ids:
            self.keep({job.id for jobs in self._by_task.values() for job in jobs} - set(job_ids))

    def of(self, task: str) -> tuple[EndedJob, ...]:
        """Those of one task, oldest first; the same tuple as long as there is no new one."""
        return self._by_task.get(task, ())

    def boundary_of(self, spec: JobSpec, nodes: Nodes) -> Boundary | None:
        """Where such a job leaves a node of these, and what ended jobs of all tasks tell of that; None: it never does,
        or its intervals do not go by it."""
        if spec.architecture.has_servers or spec.elastic_batch is not None or spec.tracked:
            return None
        workers = nodes.most_on_one(spec.worker.resources)
        if not 0 < workers < spec.worker.maximum:
            return None
        if workers not in self._believed:
            of_tasks = [self._jump_of(task, workers) for task in self._by_task]
            self._believed[workers] = Jumps.after(sorted(jump for jump in of_tasks if jump is not None))
        return Boundary(workers, self._believed[workers])

    def _jump_of(self, task: str, workers: int) -> float | None:
        """The mean of those of its jobs, to a tenth: models are not fitted anew with each job that ends."""
        jobs, known = self._by_task[task], self._jumps.get((task, workers))
        if known is None or known[0] is not jobs:
            found = [jump for job in jobs if (jump := _jump_of(job, workers)) is not None]
            known = self._jumps[task, workers] = jobs, round(sum(found) / len(found), 1) if found else None
            if len(self._jumps) > _MOST_JUMPS:
                self._jumps.pop(next(iter(self._jumps)))
        return known[1]


def _jump_of(job: EndedJob, node: int) -> float | None:
    """None: of such a job it is not known, or its batch or GPU type changed, and its speed with it."""
    samples = job.speed_samples
    if job.architecture.has_servers or len({(sample.batch, sample.gpu_type) for sample in samples}) > 1:
        return None
    return observed_jump([one.workers for one in samples], [one.steps_per_second for one in samples], node)


def counted_alike(
    runs: tuple[EndedJob, ...], arguments: tuple[str, ...], counts_epochs: bool | None
) -> tuple[EndedJob, ...]:
    """Those of a script's ended runs whose steps are what those of its job with these arguments are.

    One script may report its steps in one run and only its epochs in another, where each counts as a step.
    `counts_epochs`: whether the job does so; None: it has told nothing. Then it counts as most runs do that have its
    arguments, or as most of all where none has; as the newest where both are as many.
    """
    told = [each for each in runs if each.silent is None]
    if counts_epochs is None:
        if len({each.counts_epochs for each in told}) < 2:
            return runs
        same = [each.counts_epochs for each in told if each.arguments == arguments]
        votes = same or [each.counts_epochs for each in told]
        counts_epochs = votes[-1] if 2 * sum(votes) == len(votes) else 2 * sum(votes) > len(votes)
    alike = tuple(each for each in runs if each.silent is not None or each.counts_epochs is counts_epochs)
    return runs if len(alike) == len(runs) else alike


class LossPriors:
    """Makes priors and keeps those last asked for. A prior is a function of its jobs: remembering changes nothing, nor
    does it when threads share it."""

    def __init__(self) -> None:
        self._priors: OrderedDict[_PriorKey, Prior] = OrderedDict()
        self._runs: OrderedDict[_RunKey, FinishedRun | None] = OrderedDict()

    def of(self, job: Job) -> Prior | None:
        """What the ended jobs `job.similar` say of its losses; None when that is nothing (see `has_prior`)."""
        if not job.steps_per_epoch or not has_prior(job):
            return None
        spec, ids = job.spec, tuple(ended.id for ended in job.similar)
        key = ids, job.steps_per_epoch, spec.project, spec.convergence, spec.arguments
        prior = self._priors.pop(key, None)
        if prior is None:
            ends = ends_by_loss_under(spec.convergence, job.similar, spec.arguments)
            project, epoch = spec.project, job.steps_per_epoch
            prior = Prior.of(self._run(ended, epoch, project, ends.get(ended.id)) for ended in job.similar)
        self._priors[key] = prior
        if len(self._priors) > MAX_PRIORS:
            self._priors.popitem(last=False)
        return prior

    def _run(self, ended: EndedJob, epoch: float, project: str, end: End | None) -> FinishedRun | None:
        """The very same run as before: what was worked out of it is not worked out again (`convergence`)."""
        key = ended.id, epoch, ended.project == project, end
        run = self._runs.pop(key, None) or _finished_run(ended, epoch, project, end)
        self._runs[key] = run
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run


def has_prior(job: Job) -> bool:
    """Whether ended jobs say something of its losses: it knows its epochs and has some, and one of them did, too."""
    if not job.similar or not job.steps_per_epoch or not job.losses:
        return False
    return any(ended.steps_per_epoch and len(ended.losses) >= LEAST_LOSSES for ended in job.similar)


def _finished_run(ended: EndedJob, epoch: float, project: str, end: End | None) -> FinishedRun | None:
    """The run in steps of a job that has `epoch` of them in one; None if it reported too few losses, or no epochs.

    `end`: where the job's rule would have ended it; None if that is not known.
    """
    if len(ended.losses) < LEAST_LOSSES or not ended.steps_per_epoch:
        return None
    stretch = epoch / ended.steps_per_epoch
    steps = [step * stretch for step in ended.loss_steps]
    schedule = RateSchedule.of([step * stretch for step in ended.rate_steps], ended.learning_rates)
    return FinishedRun.of(
        steps,
        ended.losses,
        same_project=ended.project == project,
        end_step=None if end is None else end.epochs * epoch,
        end_spread=0.0 if end is None else end.spread,
        schedule=schedule,
    )
