"""What jobs that ended taught about their kind, kept in the database and in the memory of whoever forecasts.

::

    a job succeeds ─▶ its sample history, condensed ─▶ finished_runs (database) ─▶ EndedJobs (memory, by task)
                      at most 128 losses, 8 speeds a size                          └─▶ `Job.similar` of active jobs
    predictions of jobs that ended (`shown_predictions`) ─▶ how intervals are to be corrected ─▶ `Job.experience`
    a job's layers, before it has measured anything ─▶ speeds by arithmetic, at the percent of peak that others reached
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from itertools import islice
from statistics import median
from typing import NamedTuple

import structlog

from optimus_contract.codec import read, write
from optimus_contract.command import work_of
from optimus_contract.job import Convergence
from optimus_models.analytic.cost import NetworkCost
from optimus_models.analytic.description import cost_of_description
from optimus_models.calibration import Experience
from optimus_models.speed.boundary import Boundary
from optimus_scheduler.forecast.cold_start import Platform, calculated_speeds, device_name, measured_percent_of_peak
from optimus_scheduler.forecast.forecast import STOPS_PER_JOB
from optimus_scheduler.forecast.priors import MAX_PER_TASK, MAX_TASKS, EndedJobs
from optimus_scheduler.model import (
    COMMAND_ENDS,
    Architecture,
    Directive,
    EndedJob,
    JobSpec,
    JobState,
    Mode,
    Nodes,
    SilentRun,
    SpeedSample,
)
from optimus_scheduler.settings import CONVERGENCE_POINTS
from optimus_service.observe.shown_predictions import MAX_PREDICTIONS, Scores
from optimus_service.observe.spec import readable_spec, rule_of, silent_since
from optimus_service.observe.standstills import rescale_seconds
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import Document, FinishedRunRecord, JobRecord, MembershipRecord
from optimus_service.store.repository import LeaderRepository, Repository

_log = structlog.get_logger(__name__)

MAX_LOADED = MAX_PER_TASK * MAX_TASKS // 4
"""Finished runs read at first, the newest: 2048 of some 4 kB. Those of tasks that are asked for are read beside."""
_MAX_ASKED = 8 * MAX_TASKS
"""Tasks of which it is remembered that their runs were read: for one that has none, too, they are not read again."""
_LEARNED_AT_ONCE = 4
"""Ended jobs that one round condenses: reading the samples of a long one takes a while."""
_MAX_PERCENTS = 32
"""Ended jobs whose percent of peak the median is taken of."""
_MAX_CALCULATED = 256
"""Jobs that have not measured anything yet and whose calculated speeds are remembered."""
_OVERLAP_SECONDS = 600.0
"""Jobs that ended so long before the newest known one are asked for again: replicas' clocks differ."""


class _Calculated(NamedTuple):
    """Speeds by arithmetic, and what they were made of."""

    cost: NetworkCost
    spec: JobSpec
    platform: Platform
    speeds: tuple[SpeedSample, ...]

    @classmethod
    def of(cls, cost: NetworkCost, spec: JobSpec, platform: Platform) -> _Calculated:
        return cls(cost, spec, platform, calculated_speeds(cost, spec, platform))


class FinishedRunHistory:
    """The finished runs that this process knows. Thread-safe."""

    def __init__(
        self, repository: Repository, keep_seconds: float, convergence_points: int = CONVERGENCE_POINTS
    ) -> None:
        """`keep_seconds`: what jobs that ended longer ago taught is deleted with their samples; `convergence_points`:
        from so many losses on the rules of jobs are judged."""
        self._repository = repository.reading()
        self._keep_seconds = keep_seconds
        self._convergence_points = convergence_points
        self._lock = threading.Lock()
        self._known = EndedJobs()
        self._first_id = self._last_id = self._n_rows = 0
        """Of the rows that were read, and how many of them there were."""
        self._asked: OrderedDict[str, bool] = OrderedDict()
        """Tasks whose newest runs were read, and whether there were any."""
        self._earlier: dict[str, str] = {}
        """Task by job id of runs that were read for it, from before the first of those rows."""
        self._percents: dict[str, deque[float]] = {}
        """Percent of peak that the newest ended jobs reached, by device."""
        self._calculated: OrderedDict[str, _Calculated] = OrderedDict()
        self._networks: dict[str, Document] = {}
        """Layers that were read ahead, by job id."""
        self._since: float | None = None
        self._ahead: dict[str, EndedJob] = {}
        """What jobs taught that have ended and of which nothing is stored yet, by id; it is known already."""
        self._ahead_since: float | None = None
        self._scores = Scores()

    def experience_of(self, task: str) -> Experience:
        """What corrects the intervals of a job of this task, as of the last `refresh`."""
        with self._lock:
            return self._scores.experience_of(task)

    def similar_to(self, family: str) -> tuple[EndedJob, ...]:
        """Ended jobs of this task, oldest first, as of the last `refresh`; without `read_tasks` only those among the
        newest of all tasks."""
        with self._lock:
            return self._known.of(family)

    def read_tasks(self, families: Iterable[str]) -> None:
        """Read the newest runs of these tasks together, for `similar_to`, where they are not known yet: of the first
        512 tasks, as no more are remembered."""
        with self._lock:
            unread = [each for each in islice(dict.fromkeys(families), MAX_TASKS) if not self._is_read(each)]
            if not unread or not self._last_id:
                return
            runs = self._repository.finished_runs.of_tasks(unread, self._last_id, MAX_PER_TASK)
            for run in runs:
                ended = _readable_run(run)
                if ended is not None:
                    self._known.add(ended)
                    if run.id < self._first_id:
                        self._earlier[run.job_id] = ended.task
            for ended in self._ahead.values():
                self._known.add(ended)  # they are newer
            self._asked |= {each: bool(self._known.of(each)) for each in unread}
            while len(self._asked) > _MAX_ASKED:
                self._asked.popitem(last=False)
            kept = {job.id for task in set(self._earlier.values()) for job in self._known.of(task)}
            self._earlier = {job_id: task for job_id, task in self._earlier.items() if job_id in kept}

    def _is_read(self, family: str) -> bool:
        """Whether its runs were read, if it has any, and are remembered: others may have taken their place."""
        had_runs = self._asked.get(family)
        return had_runs is not None and (not had_runs or bool(self._known.of(family)))

    def boundary_of(self, spec: JobSpec, nodes: Nodes) -> Boundary | None:
        """Where such a job leaves a node, and what ended jobs tell of that (`EndedJobs.boundary_of`)."""
        with self._lock:
            return self._known.boundary_of(spec, nodes)

    def refresh(self) -> None:
        """Read what was learned since, by whichever replica."""
        with self._lock:
            self._forget_deleted()
            runs = self._repository.finished_runs.after(self._last_id, MAX_LOADED)
            if runs and not self._first_id:
                self._first_id = runs[0].id
            if len(runs) == MAX_LOADED:  # there may be others between them and those that were read before
                self._asked.clear()
            self._n_rows += len(runs)
            for run in runs:
                self._last_id = run.id
                self._ahead.pop(run.job_id, None)
                ended = _readable_run(run)
                if ended is not None:
                    if self._is_read(ended.task):
                        self._asked[ended.task] = True
                    else:
                        self._asked.pop(ended.task, None)
                    self._known.add(ended)
                    self._note_percent(ended)
            if runs:  # a job that succeeded teaches and judges at the same time
                self._scores.add(self._repository.shown_predictions.ended(self._scores.since, MAX_PREDICTIONS))

    def _forget_deleted(self) -> None:
        """A job that was deleted teaches no more; which ones were is looked up only when there are fewer."""
        runs, first, last = self._repository.finished_runs, self._first_id, self._last_id
        if not last:
            return
        n_rows = runs.n_between(first, last)
        n_earlier = runs.n_of(self._earlier) if self._earlier else 0
        if n_rows < self._n_rows or n_earlier < len(self._earlier):
            earlier = runs.jobs_of(self._earlier)
            self._known.keep(runs.jobs_between(first, last) | earlier | self._ahead.keys())
            self._earlier = {job_id: task for job_id, task in self._earlier.items() if job_id in earlier}
        self._n_rows = n_rows

    def read_networks(self, job_ids: Collection[str]) -> None:
        """Read the layers of these jobs together, for `calculated_speeds`, where they are not known yet."""
        with self._lock:
            unknown = [job_id for job_id in job_ids if job_id not in self._calculated]
            self._networks = self._repository.jobs.networks_of(unknown) if unknown else {}

    def calculated_speeds(self, job: JobRecord, spec: JobSpec) -> tuple[SpeedSample, ...]:
        """Speeds by arithmetic, for a job that has measured none; empty until its tasks have told its layers."""
        if spec.global_batch_size is None:
            return ()
        with self._lock:
            known, platform = self._calculated.get(job.id), self._platform(spec)
            if known is None:
                network = self._networks.pop(job.id, None) or self._repository.jobs.network_of(job.id)
                if network is None:
                    return ()
                self._calculated[job.id] = known = _Calculated.of(cost_of_description(network), spec, platform)
                if len(self._calculated) > _MAX_CALCULATED:
                    self._calculated.popitem(last=False)
            elif (known.spec, known.platform) != (spec, platform):
                # As of now, as a service would say it that was just started.
                self._calculated[job.id] = known = _Calculated.of(known.cost, spec, platform)
            return known.speeds

    def _platform(self, spec: JobSpec) -> Platform:
        percents = self._percents.get(device_name(spec))
        return Platform(median(percents)) if percents else Platform()

    def _note_percent(self, ended: EndedJob) -> None:
        if ended.device is not None and ended.percent_of_peak is not None:
            self._percents.setdefault(ended.device, deque(maxlen=_MAX_PERCENTS)).append(ended.percent_of_peak)

    def learn(self, history_of: Callable[[JobRecord], JobHistory], now: float, leader: LeaderRepository) -> None:
        """Keep what jobs taught that ended since (some at a time).

        `history_of` gives the sample history of an ended job, or as much of it as can be read now: where it is not the
        whole, the turn of the job comes again.

        Raises:
            StaleLeader: another process leads by now.
        """
        since = now - self._keep_seconds if self._since is None else self._since
        unlearned = self._repository.finished_runs.jobs_without(since, _LEARNED_AT_ONCE)
        is_done = len(unlearned) < _LEARNED_AT_ONCE
        for job in unlearned:
            history = history_of(job)
            if not history.is_current:
                is_done = False
                continue
            leader.finished_runs.add(job.id, self._condensed(job, history))
        if is_done:
            self._since = now - _OVERLAP_SECONDS

    def look_ahead(self, history_of: Callable[[JobRecord], JobHistory], now: float) -> None:
        """Know what the next round learns before it decides, and store nothing: for whoever says what it will decide.
        After `refresh`; `history_of` as of `learn`."""
        since = now - self._keep_seconds if self._ahead_since is None else self._ahead_since
        unlearned = self._repository.finished_runs.jobs_without(since, _LEARNED_AT_ONCE)
        if len(unlearned) < _LEARNED_AT_ONCE:
            self._ahead_since = now - _OVERLAP_SECONDS
        found = {job.id: self._ahead.get(job.id) or self._taught_by(job, history_of) for job in unlearned}
        with self._lock:
            if gone := self._ahead.keys() - found.keys():  # they were stored since, or deleted
                self._known.forget(gone - self._repository.finished_runs.jobs_of(gone))
            new = {job_id: ended for job_id, ended in found.items() if ended is not None}
            for job_id in new.keys() - self._ahead.keys():
                self._known.add(new[job_id])
            self._ahead = new

    def _taught_by(self, job: JobRecord, history_of: Callable[[JobRecord], JobHistory]) -> EndedJob | None:
        """None: nothing, or its history is not read to its end yet."""
        history = history_of(job)
        return ended_job(job.id, self._condensed(job, history)) if history.is_current else None

    def _condensed(self, job: JobRecord, history: JobHistory) -> Document:
        memberships, network = self._repository.memberships.of_job(job.id), self._repository.jobs.network_of(job.id)
        with history.turn:
            return finished_run_of(job, history, network, memberships, self._convergence_points)

    @property
    def ahead(self) -> frozenset[str]:
        """Jobs that have ended and whose histories are to be kept until what they taught is stored."""
        with self._lock:
            return frozenset(self._ahead)


def finished_run_of(
    job: JobRecord,
    history: JobHistory,
    network: Document | None = None,
    memberships: Sequence[MembershipRecord] = (),
    judged_from: int = CONVERGENCE_POINTS,
) -> Document:
    """What an ended job taught, as a document; empty when it taught nothing, or nobody can tell which code it ran.
    `network`: its layers, if known; `memberships`: oldest first; `judged_from`: as of `EndedJob`."""
    steps_per_epoch = (job.profile or {}).get("steps_per_epoch")
    loss_steps, losses = history.losses.points()
    speeds = [list(astuple(each)) for each in history.speeds.samples()]
    spec = readable_spec(job)
    silent = None if speeds else _silent_run(job, memberships)
    if spec is None or job.state is not JobState.SUCCEEDED or not (speeds or (steps_per_epoch and losses) or silent):
        return {}
    command = job.asked.command
    if command and work_of(command).reads_code:
        return {}
    return {
        "task": spec.family,
        "arguments": list(spec.arguments),
        "project": job.project,
        "steps_per_epoch": steps_per_epoch,
        "loss_steps": loss_steps,
        "losses": losses,
        "learning_rates": history.learning_rates(),
        "speeds": speeds,
        "mode": spec.mode.value,
        "architecture": spec.architecture.value,
        "global_batch_size": spec.counted_batch,
        "noise": history.noise_curve(),
        "rescale_seconds": list(rescale_seconds(memberships)[-STOPS_PER_JOB:]),
        "total_steps": job.step,
        "convergence": write(job.asked.convergence, without_none=True),
        "ended_by": _ended_by(job),
        "announced_steps": _announced(job, spec),
        "device": device_name(spec),
        "percent_of_peak": _percent_of_peak(spec, history, network),
        "silent": silent,
        "seconds_after_steps": _seconds_after_steps(job, _announced(job, spec)),
        "report_seconds": history.report_seconds,
        "busy_seconds": history.pauses.busy_seconds,
        "reported_seconds": history.pauses.seconds,
        "judged_from": judged_from,
        "course": _course(history),
    }


def _course(history: JobHistory) -> list[list[float]]:
    """Steps, and the mean seconds of a step about each: the more exact they are told, the larger is the document."""
    steps, seconds = history.speeds.course()
    return [list(steps), [float(f"{each:.4g}") for each in seconds]]


def _silent_run(job: JobRecord, memberships: Sequence[MembershipRecord]) -> SilentRun | None:
    """How long a job took of which no speed was measured; None for one whose tasks began more than once."""
    if job.finished_at is None or len(memberships) != 1:
        return None
    (only,) = memberships
    return SilentRun(len(only.workers), len(only.servers), job.finished_at - only.at)


def _ended_by(job: JobRecord) -> str | None:
    """The part of its rule that ended a job, or `COMMAND_ENDS`; None: one of several, or nobody knows."""
    rule, finishes, is_script = job.asked.convergence, job.directive is Directive.FINISH, job.asked.command is not None
    made_all = is_script and not finishes and (job.profile or {}).get("total_steps") == job.step
    if job.is_tracked or made_all:
        return COMMAND_ENDS  # whether it is at a limit or not
    if rule.max_steps is not None and job.step >= rule.max_steps:
        return "max_steps"
    if rule.max_epochs is not None and (job.epoch or 0.0) >= rule.max_epochs:
        return "max_epochs"
    if not finishes:
        return COMMAND_ENDS if is_script else None
    took = (job.finished_at or 0.0) - (job.started_at or math.inf)
    if rule.max_seconds is not None and took >= rule.max_seconds:
        return "max_seconds"
    others = ("loss_decrease", "target_loss", "target_metric", "max_cost")
    asked = [name for name in others if getattr(rule, name) is not None]
    return asked[0] if len(asked) == 1 else None


def _announced(job: JobRecord, spec: JobSpec) -> int | None:
    """What its command had announced when it ended by itself, after these steps or before them."""
    ended_itself = spec.convergence.ends_itself and _ended_by(job) == COMMAND_ENDS
    return spec.convergence.max_steps if ended_itself else spec.announced_steps


def _seconds_after_steps(job: JobRecord, announced: int | None) -> float | None:
    since, ended_itself = silent_since(job), _ended_by(job) == COMMAND_ENDS
    if not job.step or job.step < (announced or 0) or since is None or job.finished_at is None or not ended_itself:
        return None
    return job.finished_at - since if since <= job.finished_at else None  # steps that came late


def _percent_of_peak(spec: JobSpec, history: JobHistory, network: Document | None) -> float | None:
    if network is None or history.computed_steps == 0:
        return None
    seconds = history.compute_seconds / history.computed_steps
    examples = history.computed_examples / history.computed_steps
    return measured_percent_of_peak(cost_of_description(network), spec, seconds, examples)


def _readable_run(run: FinishedRunRecord) -> EndedJob | None:
    """None for one that another release wrote in a way that is not known here: it teaches nothing."""
    try:
        return ended_job(run.job_id, run.document)
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("what a finished run taught cannot be read", job=run.job_id, error=repr(error))
        return None


def ended_job(job_id: str, document: Document) -> EndedJob | None:
    """The inverse of `finished_run_of`; None for an empty one."""
    if not document:
        return None
    rates = document.get("learning_rates") or ((), ())
    pace_steps, pace_seconds = document.get("course") or ((), ())
    return EndedJob(
        id=job_id,
        task=document["task"],
        project=document["project"],
        arguments=tuple(document.get("arguments", ())),
        steps_per_epoch=document["steps_per_epoch"],
        loss_steps=tuple(document["loss_steps"]),
        losses=tuple(document["losses"]),
        rate_steps=tuple(rates[0]),
        learning_rates=tuple(rates[1]),
        speed_samples=tuple(SpeedSample(*speed) for speed in document["speeds"]),
        mode=Mode(document["mode"]),
        architecture=Architecture(document["architecture"]),
        global_batch_size=document["global_batch_size"],
        total_steps=document.get("total_steps", 0),
        rule=rule_of(read(Convergence, document["convergence"], strict=True)) if "convergence" in document else None,
        ended_by=document.get("ended_by"),
        announced_steps=document.get("announced_steps"),
        device=document.get("device"),
        percent_of_peak=document.get("percent_of_peak"),
        noise_steps=tuple(step for step, _ in document.get("noise", ())),
        noise_scales=tuple(scale for _, scale in document.get("noise", ())),
        rescale_seconds=tuple(document.get("rescale_seconds", ())),
        silent=SilentRun(*document["silent"]) if document.get("silent") else None,
        seconds_after_steps=document.get("seconds_after_steps"),
        report_seconds=document.get("report_seconds", 0.0),
        busy_seconds=document.get("busy_seconds", 0.0),
        reported_seconds=document.get("reported_seconds", 0.0),
        judged_from=document.get("judged_from"),
        pace_steps=tuple(pace_steps),
        pace_seconds=tuple(pace_seconds),
    )
