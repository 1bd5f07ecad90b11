"""What the end of a job will teach of those of its task of which nothing is known yet: its speeds, and how many steps
it made. A plan without that job knows it only if it is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from optimus_scheduler.forecast.cold_start import device_name
from optimus_scheduler.model import EndedJob, Forecast, Job


def taught_by_ends(jobs: Iterable[Job], ended: Sequence[Job], forecasts: Mapping[str, Forecast]) -> tuple[Job, ...]:
    """`jobs` as they are known once those `ended`, which are no more among them. `forecasts`: of these, by id.

    Of a task that others have told of already, one more says little: its jobs stay as they are.
    """
    teach = {job.spec.family: job for job in reversed(ended) if job.speed_samples and job.spec.family}
    runs = {family: as_ended(job, forecasts.get(job.id)) for family, job in teach.items()}
    return tuple(
        replace(job, similar=(runs[job.spec.family],)) if job.spec.family in runs and _is_unknown(job) else job
        for job in jobs
    )


def as_ended(job: Job, forecast: Forecast | None) -> EndedJob:
    """A job that trains as it will be known when it has ended as is predicted."""
    spec, total = job.spec, None if forecast is None else forecast.total_steps
    return EndedJob(
        id=f"{job.id} as of step {job.step}",  # one that has ended never changes
        task=spec.family,
        project=spec.project,
        steps_per_epoch=job.steps_per_epoch,
        loss_steps=job.loss_steps,
        losses=job.losses,
        speed_samples=job.speed_samples,
        mode=spec.mode,
        architecture=spec.architecture,
        global_batch_size=spec.counted_batch,
        total_steps=0 if total is None else round(total.mean),
        rule=spec.convergence,
        ended_by=None if forecast is None else forecast.rule,
        announced_steps=spec.convergence.max_steps if spec.convergence.ends_itself else None,
        device=device_name(spec),
        arguments=spec.arguments,
        report_seconds=job.report_seconds,
    )


def _is_unknown(job: Job) -> bool:
    return not job.similar and not job.speed_samples
