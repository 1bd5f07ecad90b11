"""The shell: replays a trace in virtual time under a policy, with the same rounds as the live service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from optimus_models.calibration import MOST_JUDGED, Errors, Experience, Judged
from optimus_scheduler.ahead.arrivals import RecentJobs
from optimus_scheduler.ahead.corrected_times import ANY_TASK, CorrectedTimes, corrected_times, judged
from optimus_scheduler.ahead.deadlines import Answer
from optimus_scheduler.ahead.queue import ExpectedTimes, Queue
from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.forecast import Overheard, RememberingForecaster
from optimus_scheduler.forecast.prices import cost_per_second
from optimus_scheduler.forecast.priors import EndedJobs
from optimus_scheduler.model import (
    Directive,
    Interval,
    Job,
    JobState,
    Nodes,
    Plan,
    Reason,
    SetWanted,
    Snapshot,
    StartTask,
    StopTask,
)
from optimus_scheduler.round import RoundMemory, learns, plan
from optimus_scheduler.settings import Settings
from optimus_simulator.cluster import Cluster, shape_of
from optimus_simulator.elasticflow import PERIOD_SECONDS, PublishedElasticFlow
from optimus_simulator.engine import ARRIVAL, CHANGE, ROUND, Engine
from optimus_simulator.errors import Stuck
from optimus_simulator.faults import Faults
from optimus_simulator.options import DAY_SECONDS, Options
from optimus_simulator.oracle import Oracle
from optimus_simulator.outcome.outcome import JobRecord, Moment, Outcome, finish_time_fairness
from optimus_simulator.running import RunningJob, Telemetry
from optimus_simulator.shown_predictions import START, WHILE_RUNNING, Prediction
from optimus_simulator.trace import Trace, TraceJob

Progress = Callable[[int, float], None]
"""Called with (jobs ended, virtual seconds) after rounds in which a job ended."""


def unwatched(_ended: int, _now: float) -> None:
    """Ignores the progress of a replay."""


class Replay:
    """One simulation; `run` it once. The same trace, policy, options and seed give the same outcome, bit for bit."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        options: Options | None = None,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        progress: Progress = unwatched,
    ) -> None:
        self._trace, self._policy, self._seed = trace, policy, seed
        self._options = options or Options()
        self._settings = settings or self._options.settings()
        self._progress = progress
        self._engine, self._cluster = Engine(), Cluster(trace.nodes)
        self._capacity, self._memory = trace.capacity, RoundMemory()
        self.active: dict[str, RunningJob] = {}
        self._ended: dict[str, RunningJob] = {}
        self._taught = EndedJobs()
        self._timeline: list[Moment] = []
        self._n_rounds = 0
        self._next_round = self._last_round = -math.inf
        self._again_at: float | None = None
        """When the last round to be due for a waiting job's deadline is."""
        self._faults = Faults(self._engine, self._cluster, self._options, np.random.default_rng(seed), self._disturbed)
        forecaster = Oracle(self.active, self._options, seed) if self._options.oracle else RememberingForecaster()
        self._forecaster = Overheard(forecaster)
        self._recent = RecentJobs()
        self._judged: dict[str, list[Judged]] = {"time": [], "start": []}
        self._experience = Experience()
        self._experience_of: dict[str, Experience] = {}
        """By task: until a further job has ended, the very same values are told."""

    @property
    def spent(self) -> float:
        """Money that the ended jobs have cost, at the prices of the settings."""
        return sum(job.spent for job in self._ended.values())

    def run(self) -> Outcome:
        """Until every job has ended.

        Raises:
            Stuck: they do not; the message says how to see it again.
        """
        for number, entry in enumerate(self._trace.jobs):
            self._engine.at(entry.submitted_at, ARRIVAL, partial(self._arrive, number, entry))
        self._faults.begin(self._trace.nodes)
        if not self._options.elasticflow:
            self._next_round = self._engine.now + self._options.round_seconds
            self._engine.at(self._next_round, ROUND, self._periodic_round)
        limit = self._options.limit_days * DAY_SECONDS
        while len(self._ended) < len(self._trace.jobs):
            if self._engine.now > limit:
                raise Stuck(self._stuck())
            self._engine.step()
        return self._outcome()

    # --- what happens by itself ----------------------------------------------------------------------------------

    def _arrive(self, number: int, entry: TraceJob) -> None:
        telemetry = Telemetry(np.random.default_rng((self._seed, number)), self._options)
        entry = entry if self._options.deadlines else entry.without_deadline()
        job = RunningJob(entry, entry.truth.begin(), telemetry, updated_at=self._engine.now)
        self.active[entry.id] = job
        self._cluster.add_job(entry.id, entry.spec)
        self._wake()

    def _maybe_end(self, job: RunningJob, version: int) -> None:
        """The event of a job's end, unless its tasks have changed since it was made."""
        if job.version == version and job.id in self.active:
            self._advance(job)
            self._wake()

    def _advance(self, job: RunningJob) -> None:
        job.advance(self._engine.now)
        if job.finished_at is not None:
            job.state = JobState.SUCCEEDED
            self._ended[job.id] = self.active.pop(job.id)
            if self._options.learn_from_finished_jobs:
                self._taught.add(job.taught(self._settings.convergence_points))
            self._score(job)
            self._cluster.remove_job(job.id)

    def _disturbed(self, job_ids: set[str]) -> None:
        """Tasks of these jobs have died: they stand still until they are given others."""
        for job_id in sorted(job_ids & self.active.keys()):
            job = self.active[job_id]
            self._advance(job)
            job.shape, job.version = (), job.version + 1
        self._wake()

    # --- rounds --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """A round soon, unless one is coming anyway."""
        soon = self._engine.now + self._options.debounce_seconds
        if self._options.elasticflow:
            soon = max(soon, self._last_round + PERIOD_SECONDS)
        if self._options.rounds_on_events and not self._engine.now <= self._next_round <= soon:
            self._round_at(soon)

    def _round_at(self, time: float) -> None:
        self._next_round = time
        self._engine.at(time, ROUND, self._round)

    def _periodic_round(self) -> None:
        self._round()
        period = self._options.round_seconds
        following = self._engine.now + period
        if not self.active and self._engine.next_time is not None:
            # Nothing to decide before something happens: skip whole periods up to then.
            idle = self._engine.next_time - self._engine.now
            following = self._engine.now + max(math.ceil(idle / period), 1) * period
        self._engine.at(following, ROUND, self._periodic_round)

    def _round(self) -> None:
        for job in list(self.active.values()):
            self._advance(job)
        if not self.active:
            return
        self._n_rounds += 1
        now = self._last_round = self._engine.now
        before = {job.id: job.version for job in self.active.values()}
        nodes = self._memory.nodes(self._cluster.nodes)
        jobs = tuple(self._seen(job, nodes) for job in self.active.values())
        snapshot = Snapshot(now, nodes, jobs, self._cluster.tasks, self._trace.quotas)
        outcome = plan(
            snapshot, self._policy, self._settings, forecaster=self._forecaster, memory=self._memory, worded=False
        )
        for decision in outcome.decisions:
            job = self.active[decision.job_id]
            job.note_predicted_steps(decision.forecast.total_steps)
        soon = now + self._options.learning_round_seconds
        if soon > now and learns(snapshot, outcome) and not now < self._next_round <= soon:
            self._round_at(soon)
        again = outcome.again_at
        if again is not None and again > now and self._options.rounds_on_events and again != self._again_at:
            self._again_at = again
            self._engine.at(again, ROUND, self._round)
        self._predict(snapshot, outcome)
        for action in outcome.actions:
            match action:
                case SetWanted():
                    self._set_wanted(action)
                case StartTask(task):
                    self._cluster.start(task)
                case StopTask(key):
                    self._cluster.stop(key)
        if isinstance(self._policy, PublishedElasticFlow):
            self._like_elasticflow(self._policy, outcome, before)
        self._note()
        self._progress(len(self._ended), now)

    def _like_elasticflow(self, policy: PublishedElasticFlow, outcome: Plan, before: Mapping[str, int]) -> None:
        """Declined jobs leave, others are admitted; every running job stands still for a moment, changed or not."""
        now, gpus = self._engine.now, sum(self._capacity.gpus.values())
        for decision in outcome.decisions:
            job = self.active[decision.job_id]
            if decision.reason is Reason.DEADLINE_CANNOT_BE_MET:
                job.first_answer = Answer.DECLINED
                self._ended[job.id] = self.active.pop(job.id)
                self._cluster.remove_job(job.id)
                continue
            if job.promised_at is None and job.entry.spec.deadline_at is not None:
                job.first_answer, job.promised_at = Answer.PROMISED, now
            if job.shape:
                changed = job.version != before[job.id]
                job.stopped_until = now + policy.pause(job.allocation.workers, gpus, changed=changed)
                job.version += 1
                self._expect_end(job)
        if policy.seconds < math.inf:
            self._next_round = now + max(policy.seconds, PERIOD_SECONDS)
            self._engine.at(self._next_round, ROUND, partial(self._planned_round, self._next_round))

    def _planned_round(self, at: float) -> None:
        """Unless another round has come between, which planned anew."""
        if self._next_round == at:
            self._round()

    def _seen(self, job: RunningJob, nodes: Nodes) -> Job:
        family = job.entry.spec.family
        experience = self._experience_of.get(family)
        if experience is None:
            experience = self._experience_of[family] = replace(self._experience, task=family)
        return job.seen(self._taught.of(family), experience, self._taught.boundary_of(job.entry.spec, nodes))

    def _predict(self, snapshot: Snapshot, outcome: Plan) -> None:
        """Keep what is said of the time left of jobs whose newest prediction is too old to be judged."""
        if self._options.promises:  # only the queue simulated forward asks for it
            self._recent.note(self._forecaster.outlooks, snapshot.now)
        due = [job for job in self.active.values() if job.wants_prediction(snapshot.now, self._options.promise_spacing)]
        if not due:
            return
        if self._options.promises:
            found = self._expected_times(snapshot, outcome)
            for job in self.active.values():
                job.answer(found[job.id].shown.left(snapshot.now), snapshot.now)
            predictions = {job.id: _prediction(job, found[job.id], snapshot.now) for job in due}
        else:
            left = {decision.job_id: decision.forecast.remaining_seconds for decision in outcome.decisions}
            predictions = {job.id: Prediction(snapshot.now, left[job.id]) for job in due}
        for job in due:
            job.predictions.note(predictions[job.id])

    def _score(self, job: RunningJob) -> None:
        """Learn from what an ended job was told."""
        for each in job.judged_predictions():
            is_start = each.kind == START
            before = each.prediction.uncorrected_wait if is_start else each.prediction.uncorrected
            if before is None or each.kind == WHILE_RUNNING:
                continue
            age, task = each.prediction.at - job.entry.submitted_at, ANY_TASK if is_start else job.entry.spec.family
            one = judged(job.id, task, age, before, each.true_left)
            kind = "start" if is_start else "time"
            self._judged[kind] = [*self._judged[kind], *([] if one is None else [one])][-MOST_JUDGED:]
        self._experience = Experience(time=Errors(self._judged["time"]), start=Errors(self._judged["start"]))
        self._experience_of = {}

    def _expected_times(self, snapshot: Snapshot, outcome: Plan) -> dict[str, CorrectedTimes]:
        """By the queue simulated forward."""
        return corrected_times(self._queue(snapshot, outcome), self._policy, self._settings)

    def _queue(self, snapshot: Snapshot, outcome: Plan) -> Queue:
        arrivals = self._recent.arrivals(snapshot.now)
        return Queue.after_round(snapshot, outcome, self._forecaster.outlooks, arrivals, self._recent.lengths)

    def _set_wanted(self, action: SetWanted) -> None:
        """The job goes on with these tasks after a stop; tasks that stay keep their places."""
        job, now = self.active[action.job_id], self._engine.now
        # A job ends when its truth says so: a forecaster that believes it has converged does not end it.
        job.directive = Directive.RUN if action.directive is Directive.FINISH else action.directive
        new_batch = action.batch != job.training.batch
        job.training.batch = action.batch
        if action.tasks == job.wanted:
            if new_batch and job.shape:
                self._train_with_batch(job)
            return
        if action.allocation != job.allocation:
            job.allocation, job.allocated_at = action.allocation, now
        job.wanted, job.version = action.tasks, job.version + 1
        job.shape = shape_of(action.tasks)
        spec = job.entry.spec.on(action.allocation.gpu_type)
        demand = spec.demand(action.allocation.workers, action.allocation.servers)
        job.share = demand.dominant_share(self._capacity)
        job.cost_per_second = cost_per_second(job.entry.spec, action.allocation, self._settings)
        self._tell_of_change(job)
        self._cluster.let_go(job.id, action.tasks)
        self._cluster.put_on(job.id, action.allocation.gpu_type)
        if job.shape:
            self._start(job)
        elif job.state is JobState.RUNNING:
            job.state = JobState.PAUSED

    def _start(self, job: RunningJob) -> None:
        now = self._engine.now
        stop = self._faults.stop_seconds()
        job.stopped_until = now + stop
        if job.started_at is None:
            job.started_at = now
        else:
            job.restarts += 1
            job.telemetry.stopped(stop)
        job.state = JobState.RUNNING
        job.factor = self._faults.speed_factor(job, self.active.values())
        job.factor *= job.entry.speed_factor(job.allocation.gpu_type) * self._left_by_racks(job)
        self._faults.expect(job)
        self._expect_end(job)

    def _train_with_batch(self, job: RunningJob) -> None:
        """Another batch from the next step on: nothing stops."""
        job.version += 1
        job.batch_changes += 1
        self._tell_of_change(job)
        self._expect_end(job)

    def _left_by_racks(self, job: RunningJob) -> float:
        """What its racks leave of a job's speed."""
        return job.entry.rack_crossing_factor if len(self._cluster.racks_of(job.wanted)) > 1 else 1.0

    def _tell_of_change(self, job: RunningJob) -> None:
        exchange = job.training.exchange_part(job.shape) if job.shape else None
        if exchange is not None:  # between racks it is the exchange that takes longer
            exchange = 1.0 - (1.0 - exchange) * self._left_by_racks(job)
        job.telemetry.changed(job.allocation, job.training.batch, exchange, len(job.shape))

    def _expect_end(self, job: RunningJob) -> None:
        end = job.ends_at(self._engine.now) if self._options.rounds_on_events else math.inf
        if end < math.inf:
            self._engine.at(end, CHANGE, partial(self._maybe_end, job, job.version))

    # --- what is reported --------------------------------------------------------------------------------------------

    def _note(self) -> None:
        running = [job for job in self.active.values() if job.share]
        waiting = len(self.active) - len(running)
        share = sum(job.share for job in running)
        self._timeline.append(Moment(self._engine.now, len(running), waiting, share))

    def _outcome(self) -> Outcome:
        jobs = [self._ended[entry.id] for entry in self._trace.jobs]
        finished = [job.entry.submitted_at if job.finished_at is None else job.finished_at for job in jobs]
        fairness = finish_time_fairness(self._trace.jobs, finished, self._capacity, self._options.restart_seconds)
        rows = zip(jobs, fairness, self._trace.jobs, strict=True)
        records = tuple(_record(job, rho, entry.spec.deadline_at) for job, rho, entry in rows)
        return Outcome(self._trace.name, self._policy.name, self._seed, records, tuple(self._timeline), self._n_rounds)

    def _stuck(self) -> str:
        names = ", ".join(sorted(self.active)[:5])
        days = self._engine.now / DAY_SECONDS
        return f"{len(self.active)} jobs have not ended after {days:.0f} virtual days, such as {names}"


def _prediction(job: RunningJob, found: CorrectedTimes, now: float) -> Prediction:
    shown, predicted = found.shown, found.predicted
    if job.started_at is not None:
        return Prediction(now, shown.left(now), predicted.left(now))
    return Prediction(now, shown.left(now), predicted.left(now), _wait(shown, now), _wait(predicted, now))


def _wait(times: ExpectedTimes, now: float) -> Interval | None:
    """What is said of the first start; None for one that is there: a fact is no prediction."""
    wait = times.waiting(now)
    return None if wait is None or wait.high <= 0 else wait


def _record(job: RunningJob, fairness: float, deadline_at: float | None) -> JobRecord:
    dropped = job.finished_at is None
    return JobRecord(
        job.id,
        job.entry.submitted_at,
        job.entry.submitted_at if dropped or job.started_at is None else job.started_at,
        job.entry.submitted_at if job.finished_at is None else job.finished_at,
        job.restarts,
        job.attained_share_seconds,
        job.trained_share_seconds,
        fairness,
        job.judged_step_predictions(),
        deadline_at,
        () if dropped else job.judged_predictions(),
        job.first_answer,
        job.promised_at is not None,
        dropped,
    )
