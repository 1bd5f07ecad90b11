"""Metrics of jobs and cluster for `/metrics`, read from the database at each scrape, by the replica that leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType

from optimus_models.cost import SECONDS_PER_HOUR
from optimus_scheduler.forecast.prices import cost_per_second, has_prices
from optimus_scheduler.model import JobState, Node, Reason, Resources, Role
from optimus_scheduler.settings import Settings
from optimus_service.insight.format import finite, interval_body
from optimus_service.insight.jobs.progress import measured_speed, progress_of, speed_here
from optimus_service.insight.jobs.usage import job_usage, usage_of_role
from optimus_service.insight.predictions.review import scores
from optimus_service.metrics.points import ClusterMetrics, JobMetrics
from optimus_service.metrics.registry import MAX_JOBS, NoMetrics
from optimus_service.observe.shown_predictions import MAX_PREDICTIONS, verdicts
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.standstills import Standstills
from optimus_service.observe.telemetry import newest_noise_scale
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord, SampleRecord, TaskRecord
from optimus_service.store.repository import Repository
from optimus_service.store.rounds.forecasts import known

_SPEED_SAMPLES = 50
"""Newest samples of a job that speeds and times are taken from: enough for a curve in a dashboard."""
NOT_LOOKED_AT = "NoRoundYet"
"""Stands for the reason of a job that no round has seen."""
_DEATHS = frozenset({"worker_lost", "server_lost", "coordinator_restart"})
"""Causes of memberships that a death of a task began."""
_PARTS = ("data", "compute", "push", "wait", "pull")


def metrics_reader(
    repository: Repository,
    clock: Callable[[], float],
    leads: Callable[[], bool],
    nodes: Callable[[], tuple[Node, ...] | None],
    prices: Settings,
    still: Callable[[], Standstills] = dict,
) -> Callable[[], ClusterMetrics | NoMetrics]:
    """A function that reads the metrics; it says why when there are none. `nodes`: what the last round saw.

    `prices`: what decisions are made with; `still`: what keeps jobs from making steps.
    """

    def read() -> ClusterMetrics | NoMetrics:
        try:
            if leads():
                return _read(repository, clock(), nodes(), prices, still())
            repository.ping()
        except DatabaseNotAvailable:
            return NoMetrics.NO_DATABASE
        return NoMetrics.NOT_LEADING

    return read


def _read(
    repository: Repository, now: float, nodes: tuple[Node, ...] | None, prices: Settings, still: Standstills
) -> ClusterMetrics:
    jobs = repository.jobs.active()
    decisions = repository.rounds.latest_decisions([job.id for job in jobs])
    shown = jobs[:MAX_JOBS]
    ids = [job.id for job in shown]
    memberships = repository.memberships.of_jobs(ids)
    tasks: dict[str, list[TaskRecord]] = {}
    for task in repository.tasks.select(job_ids=ids):
        tasks.setdefault(task.key.job_id, []).append(task)
    capacity = None if nodes is None else _capacity(nodes)
    running = [job.id for job in shown if job.state is JobState.RUNNING]
    newest = repository.samples.newest_of_each(running, _SPEED_SAMPLES)
    lags = [lag for job in jobs if (lag := reconcile_lag(job, now)) is not None]
    return ClusterMetrics(
        jobs_by_state=repository.jobs.count_by_state(),
        active_jobs=tuple(
            replace(
                job_metrics(
                    job,
                    decisions.get(job.id),
                    memberships.get(job.id, ()),
                    newest.get(job.id, ()),
                    capacity,
                    now,
                    still,
                ),
                usage_of_others=usage_of_others(tasks.get(job.id, ()), now),
                cost_per_hour=cost_per_hour(job, prices),
            )
            for job in shown
        ),
        n_active_jobs=len(jobs),
        waiting_by_reason=waiting_by_reason(jobs, decisions),
        capacity=capacity,
        used=sum((resources_of_job(job) for job in jobs), Resources()),
        nodes_by_state=dict(Counter("schedulable" if node.schedulable else "cordoned" for node in nodes or ())),
        n_reconciling=len(lags),
        reconcile_lag_seconds=max(lags, default=0.0),
        predictions=scores(list(verdicts(repository.shown_predictions.ended(0.0, MAX_PREDICTIONS)))),
    )


def usage_of_others(tasks: Sequence[TaskRecord], now: float) -> dict[str, Mapping[str, float]]:
    """What a job's servers take together, and its coordinator, by role; only those that reported it lately."""
    found = {role.value: usage_of_role(tasks, role, now) for role in (Role.SERVER, Role.COORDINATOR)}
    return {role: usage for role, usage in found.items() if usage is not None}


def waiting_by_reason(jobs: Iterable[JobRecord], decisions: Mapping[str, DecisionRecord]) -> dict[str, int]:
    """Active jobs that have no tasks, by why. The two classic reasons are always there, so that alerts see zeros."""
    counts = Counter({Reason.WAITING_FOR_RESOURCES.value: 0, Reason.NO_FEASIBLE_NODE.value: 0})
    for job in jobs:
        if job.is_without_tasks:
            decision = decisions.get(job.id)
            counts[NOT_LOOKED_AT if decision is None else decision.reason] += 1
    return dict(counts)


def cost_per_hour(job: JobRecord, prices: Settings) -> float | None:
    """What the job's membership costs; None when nothing has a price."""
    if not has_prices(prices):
        return None
    spec = readable_spec(job)
    return None if spec is None else cost_per_second(spec, job.running, prices) * SECONDS_PER_HOUR


def reconcile_lag(job: JobRecord, now: float) -> float | None:
    """For how long the job's membership has not been what is wanted; None when it is."""
    wanted, running = job.wanted, job.running
    if (wanted.workers, wanted.servers) == (running.workers, running.servers) or job.wanted_at is None:
        return None
    return max(now - job.wanted_at, 0.0)


def job_metrics(
    job: JobRecord,
    decision: DecisionRecord | None,
    memberships: Sequence[MembershipRecord],
    newest: Sequence[SampleRecord],
    capacity: Resources | None,
    now: float,
    still: Standstills = MappingProxyType({}),
) -> JobMetrics:
    """One active job. Pure."""
    asked, ahead = job.asked, progress_of(job, decision, now, None, still, speed_here(job, newest, now))
    believed = None if decision is None else decision.forecast
    is_of_its_size = decision is not None and decision.previous == job.running
    return JobMetrics(
        job_id=job.id,
        name=job.name,
        project=job.project,
        mode=asked.mode,
        architecture=asked.architecture,
        state=job.state.value,
        reason=None if decision is None else decision.reason,
        workers=job.running.workers,
        servers=job.running.servers,
        global_batch=global_batch(job, memberships),
        wanted_workers=job.wanted.workers,
        wanted_servers=job.wanted.servers,
        share=None if capacity is None else finite(resources_of_job(job).dominant_share(capacity)),
        step=job.step,
        epoch=job.epoch,
        loss=job.loss,
        fitted_loss=None if believed is None else fitted_loss(believed.loss_curve, job.step),
        progress=ahead.progress,
        steps_per_second=measured_speed(newest, now),
        predicted_steps_per_second=finite(believed.steps_per_second) if believed and is_of_its_size else None,
        total_steps=None if believed is None else interval_body(believed.total_steps),
        remaining_steps=ahead.remaining_steps,
        remaining_seconds=ahead.remaining_seconds,
        confidence=None if believed is None else finite(believed.confidence),
        gain=None if decision is None else finite(decision.gain),
        next_gain=None if decision is None else finite(decision.next_gain),
        step_parts=step_parts(newest),
        straggler=straggler_ratio(newest),
        usage=job_usage(newest),
        noise_scale=newest_noise_scale(newest),
        submitted_at=job.created_at,
        waiting_since=job.waits_since if job.waits else None,
        remaining_cost=None if job.running.is_empty or believed is None else interval_body(believed.cost),
        rescales=job.rescales,
        stopped_seconds=sum(each.pause_seconds or 0.0 for each in memberships),
        lost_steps=sum(each.lost_steps for each in memberships if each.cause in _DEATHS),
    )


def global_batch(job: JobRecord, memberships: Iterable[MembershipRecord]) -> int | None:
    """Examples of one step of the job's newest membership; None without one, or before the job has reported its own."""
    newest = max(memberships, key=lambda membership: membership.epoch, default=None)
    if newest is None or not newest.workers:
        return None
    if newest.global_batch is not None:
        return newest.global_batch
    spec = readable_spec(job)
    batch = None if spec is None else spec.global_batch_size
    return batch * len(newest.workers) if batch is not None and job.asked.scaling == "weak" else batch


def fitted_loss(curve: Mapping[str, float | None], step: float) -> float | None:
    """Eq. 1 with the coefficients of a stored forecast, in units of the loss; None when nothing is fitted."""
    beta0, beta1, beta2 = (finite(curve.get(f"beta{number}")) for number in range(3))
    scale, offset = finite(curve.get("scale")), finite(curve.get("offset"))
    if beta0 is None or beta1 is None or beta2 is None or scale is None or beta0 * step + beta1 <= 0:
        return None
    return finite((1.0 / (beta0 * step + beta1) + beta2) * scale + (offset or 0.0))


def _newest_membership(newest: Sequence[SampleRecord]) -> list[SampleRecord]:
    epoch = max((sample.membership_epoch for sample in newest), default=0)
    return [sample for sample in newest if sample.membership_epoch == epoch]


def step_parts(newest: Sequence[SampleRecord]) -> dict[str, float]:
    """Mean seconds of one step of one worker by what it was spent on, from samples of the newest membership."""
    samples = _newest_membership(newest)
    n_steps = sum(sample.n_steps for sample in samples)
    if n_steps == 0:
        return {}
    return {part: sum(float(getattr(each, f"{part}_seconds")) for each in samples) / n_steps for part in _PARTS}


def straggler_ratio(newest: Sequence[SampleRecord]) -> float | None:
    """Compute seconds per step of the slowest worker over those of the median one; None for fewer than two workers."""
    seconds: dict[int, float] = {}
    steps: Counter[int] = Counter()
    for sample in _newest_membership(newest):
        seconds[sample.rank] = seconds.get(sample.rank, 0.0) + sample.compute_seconds
        steps[sample.rank] += sample.n_steps
    rates = [seconds[rank] / steps[rank] for rank in seconds]
    middle = median(rates) if len(rates) > 1 else 0.0
    return max(rates) / middle if middle > 0 else None


def prediction_error(decisions: Iterable[DecisionRecord], total_steps: int) -> float | None:
    """Relative error of the total steps predicted when half of them were done; None when nothing was said then.

    `decisions`: newest first. The step of a decision is what was predicted in all minus what was left.
    """
    for decision in decisions:
        total, left = known(decision.forecast.total_steps), known(decision.forecast.remaining_steps)
        if total is not None and left is not None and total.mean - left.mean <= total_steps / 2:
            return abs(total.mean - total_steps) / total_steps if total_steps > 0 else None
    return None


def resources_of_job(job: JobRecord) -> Resources:
    """What the tasks of the job's membership take of the cluster: nothing where it runs outside."""
    spec, running = readable_spec(job), job.running
    if spec is None or job.is_tracked:
        return Resources()
    return spec.on(running.gpu_type).demand(running.workers, running.servers)


def _capacity(nodes: Iterable[Node]) -> Resources:
    return sum((node.capacity for node in nodes if node.schedulable), Resources())
