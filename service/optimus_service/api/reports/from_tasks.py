"""What a job's own tasks call, with the job's token (docs/protocol.md, section 2). All may be repeated."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body, Query
from starlette.concurrency import run_in_threadpool

from optimus_contract.codec import write
from optimus_contract.membership import MembershipReport, WantedMembership
from optimus_contract.result import JobProfile, JobResult, Network, PlannedRates
from optimus_contract.telemetry import IgnoredSample, SampleColumns, Telemetry, TelemetryAnswer
from optimus_models.analytic.description import cost_of_description
from optimus_models.analytic.layers import InvalidNetwork
from optimus_scheduler.lifecycle import MembershipFormed, Outcome, Paused, ResultReported
from optimus_scheduler.model import JobState
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, invalid_field
from optimus_service.api.services import HistoriesDep, SampleQueueDep, Services, ServicesDep
from optimus_service.insight.format import counted
from optimus_service.insight.jobs.bodies import wanted_body
from optimus_service.insight.jobs.end import announced_beyond
from optimus_service.insight.jobs.lost_work import losses
from optimus_service.insight.jobs.reasons import CHECKPOINTS, NO_STEP, WORKER_SILENT, unread_words
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.metrics.read import prediction_error
from optimus_service.observe.divergence import fails_on_nonfinite, why_not_succeeded
from optimus_service.observe.spec import began_at, begins_anew
from optimus_service.store.records import AddedSamples, JobRecord, MembershipRecord, PostedSamples
from optimus_service.store.repository import MAX_PAGE, Repository

MAX_WAIT_SECONDS = 60.0
"""Longest long poll: below the idle timeouts of common proxies."""
RESTORED_WAIT_SECONDS = 5.0
"""Longest long poll of a coordinator that knows a later generation than the database."""

_SIZE_FIXED = (
    "The training counts its steps by its number of processes, so at another size it went on from the wrong step. "
    "Number of workers from now on: {} (docs/script-sizes.md)."
)

router = APIRouter(route_class=StrictRoute, tags=["calls of a job's tasks"])


# In front of the others: a path is compared with one after the other.
@router.post("/v1/jobs/{job_id}/telemetry", responses=documented(429))
async def add_telemetry(
    job_id: str,
    telemetry: Annotated[Telemetry, Body(openapi_examples=examples.TELEMETRY)],
    services: ServicesDep,
    queue: SampleQueueDep,
) -> TelemetryAnswer:
    """Report steps and losses, and what tasks use. Samples that are not counted are named with the reason; that is no
    error. Tasks that are not known are ignored. 429: too many samples wait to be stored; send them again later,
    more at a time."""
    if telemetry.tells_of_the_job:
        await run_in_threadpool(_note, services, job_id, telemetry)
    columns = SampleColumns.of(telemetry.samples) if telemetry.samples else telemetry.columns
    if columns is None:
        return TelemetryAnswer(accepted=0, ignored=[])
    before = None if is_finite(columns) else await run_in_threadpool(services.repository.jobs.get, job_id)
    # Not in a thread of the pool: many wait here together, for one commit.
    added = await asyncio.wrap_future(queue.put(PostedSamples(job_id, columns, services.clock())))
    if before is not None and added.accepted:
        look_at_divergence(services, before)
    return note_added(services, job_id, columns, added)


def note_added(services: Services, job_id: str, columns: SampleColumns, added: AddedSamples) -> TelemetryAnswer:
    """Tell those who wait for steps, and the metrics, what became of samples; the answer to who sent them."""
    if added.accepted:
        first = ((step, at) for rank, step, at in zip(columns.rank, columns.step, columns.at, strict=True) if rank == 0)
        step, at = max(first, default=(0, None))
        newest = max(columns.step)
        services.note_step(job_id, newest, at if step == newest else None)
    services.metrics.observe_sample_lag(services.clock() - max(columns.at))
    services.metrics.count_samples("accepted", added.accepted)
    for why, n_samples in Counter(ignored.why for ignored in added.ignored).items():
        services.metrics.count_samples(why, n_samples)
    ignored = [IgnoredSample(index=each.index, why=each.why) for each in added.ignored]
    return TelemetryAnswer(accepted=added.accepted, ignored=ignored)


@router.get("/v1/jobs/{job_id}/membership")
async def wait_for_membership(
    job_id: str,
    services: ServicesDep,
    after: Annotated[int, Query(ge=-1, le=2**53, description="the generation that the caller knows")] = -1,
    timeout_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 25.0,
) -> WantedMembership:
    """What the job should have, once its generation is above `after`; unchanged at the timeout (a long poll), and once
    eight later ones wait for this job."""
    wanted = await run_in_threadpool(services.repository.wanted.get, job_id)
    if wanted.generation <= after:
        if wanted.generation < after:  # an older backup was restored: a round is to see first what runs
            timeout_seconds = min(timeout_seconds, RESTORED_WAIT_SECONDS)
        # Neither a thread nor a database connection is held while waiting.
        await services.long_polls.wait(job_id, after, timeout_seconds)
        wanted = await run_in_threadpool(services.repository.wanted.get, job_id)
    if wanted.generation < after:
        # What is wanted would be heard of only many changes later.
        await run_in_threadpool(services.repository.wanted.go_beyond, job_id, after)
        wanted = await run_in_threadpool(services.repository.wanted.get, job_id)
    return wanted_body(wanted)


@router.post("/v1/jobs/{job_id}/membership", status_code=204, responses=documented(409))
def report_membership(
    job_id: str,
    report: Annotated[MembershipReport, Body(openapi_examples=examples.MEMBERSHIPS)],
    services: ServicesDep,
    histories: HistoriesDep,
) -> None:
    """Report a membership epoch that was formed; of a tracked job, again and again while it runs. 409: the job has
    ended."""
    values = write(report) | {"workers": tuple(report.workers), "servers": tuple(report.servers)}
    record = _with_steps_untold(services, histories, MembershipRecord(job_id=job_id, **values))
    with services.repository.write() as tx:
        if _is_no_longer_watched(tx.jobs.get(job_id)):
            return
        is_new = tx.memberships.report(job_id, record)
        tx.memberships.heard(job_id, services.clock())
        _advance(tx, job_id, report, services.clock())
    if is_new and report.pause_seconds is not None:
        services.metrics.observe_pause(report.cause, report.pause_seconds)
    if is_new and report.lost_steps:  # a job that has nothing to lose any more may be paused for another
        services.trigger_round("steps lost")


def _with_steps_untold(services: Services, histories: HistoryCache, report: MembershipRecord) -> MembershipRecord:
    """That of a script which makes its steps again after a pause, with those that the pause was told to lose: also
    steps that it had made and not told."""
    if report.cause != "resume":
        return report
    job, before = services.repository.jobs.get(report.job_id), services.repository.memberships.of_job(report.job_id)
    before = [each for each in before if each.epoch < report.epoch]
    if not before or before[-1].workers or not begins_anew(job) or report.step >= job.step:
        return report
    lost = losses(job, before, {}, histories.last_steps(job, before))[-1]
    return replace(report, lost_steps=max(report.lost_steps, began_at(job) + lost.steps - report.step))


def _within_its_life(job: JobRecord, at: float, now: float) -> float:
    """What a task says of when something happened, as far as it can be: not before the job had what it has."""
    return min(max(at, job.wanted_at or job.created_at, job.started_at or 0.0), now)


def _advance(tx: Repository, job_id: str, report: MembershipReport, now: float) -> None:
    """Start, pause or resume the job, unless a newer epoch was reported: a late repetition must not undo it."""
    job = tx.jobs.get(job_id)
    if job.membership_epoch == report.epoch:
        event = Paused() if report.cause == "pause" else MembershipFormed(report.epoch)
        tx.jobs.advance(job_id, event, _within_its_life(job, report.at, now))


@router.put("/v1/jobs/{job_id}/profile", status_code=204, responses=documented(409))
def put_profile(
    job_id: str, profile: Annotated[JobProfile, Body(openapi_examples=examples.PROFILES)], services: ServicesDep
) -> None:
    """Report what only the job's code knows: parameters, examples, steps per epoch. 409: the job has ended."""
    with services.repository.write() as tx:
        before = _active(tx, job_id).profile or {}
        known = before.get("fixed_workers")
        tx.jobs.put_profile(job_id, write(profile))
        if profile.unread_line is not None and before.get("unread_line") is None:
            data = {"line": profile.unread_line, "pattern": profile.suggested_pattern}
            words = unread_words(profile.unread_line, profile.suggested_pattern)
            tx.events.add(job_id, "NothingLearned", words, data, services.clock())
        fixed = profile.fixed_workers
        if profile.began_at_step and not before.get("began_at_step"):
            tx.memberships.began_at(job_id, profile.began_at_step, services.clock())
        is_fixed = fixed is not None and fixed != known
        if is_fixed:
            tx.events.add(job_id, "SizeFixed", _SIZE_FIXED.format(fixed), {"workers": fixed}, services.clock())
    if is_fixed or before.get("total_steps") not in (None, profile.total_steps):  # its end is another one
        services.trigger_round("profile")


@router.put("/v1/jobs/{job_id}/network", status_code=204, responses=documented(409))
def put_network(
    job_id: str, network: Annotated[Network, Body(openapi_examples=examples.NETWORKS)], services: ServicesDep
) -> None:
    """Report the layers of what is trained: its speed can then be calculated before the first step is measured.
    409: the job has ended."""
    document = write(network)
    try:
        cost_of_description(document)
    except InvalidNetwork as error:
        raise invalid_field("layers", str(error)) from error
    with services.repository.write() as tx:
        _active(tx, job_id)
        tx.jobs.put_network(job_id, document)


@router.put("/v1/jobs/{job_id}/learning-rates", status_code=204, responses=documented(409))
def put_planned_rates(
    job_id: str, planned: Annotated[PlannedRates, Body(openapi_examples=examples.PLANNED_RATES)], services: ServicesDep
) -> None:
    """Report the learning rates that the job is to have: its loss falls where they are lowered. The newest plan
    counts. 409: the job has ended."""
    with services.repository.write() as tx:
        _active(tx, job_id)
        tx.jobs.put_planned_rates(job_id, write(planned))


def _active(tx: Repository, job_id: str) -> JobRecord:
    """The job. Raises `Problem` (409) when it has ended: late reports must not change what is kept of it."""
    job = tx.jobs.get(job_id)
    if job.state.is_final:
        raise Problem(409, f"the job has ended ({job.state})")
    return job


def is_finite(columns: SampleColumns) -> bool:
    """Whether all losses are numbers."""
    return all(map(math.isfinite, filter(None, columns.loss or ())))


def look_at_divergence(services: Services, before: JobRecord) -> None:
    """A job, as it was before, has told a loss that is NaN or infinite: a round says so, and ends one that is not to
    train on for nothing. Until the next one by the period nobody would be told."""
    if fails_on_nonfinite(before) or before.loss is None or math.isfinite(before.loss):
        services.trigger_round_for(before.id, "loss")


def _note(services: Services, job_id: str, telemetry: Telemetry) -> None:
    """What a post tells beside samples."""
    if telemetry.tasks:
        usages = {each.task: write(each.usage, without_none=True) for each in telemetry.tasks}
        services.repository.tasks.put_usage(job_id, usages, services.clock())
    if telemetry.checkpoints:
        services.repository.events.add(job_id, CHECKPOINTS, telemetry.checkpoints, {}, services.clock())
    if telemetry.silence:
        services.repository.events.add(job_id, WORKER_SILENT, telemetry.silence, {}, services.clock())
    for note in telemetry.notes or ():
        services.repository.events.add(job_id, note.kind, note.message, {}, services.clock())


@router.post("/v1/jobs/{job_id}/result", status_code=204, responses=documented(409))
def report_result(
    job_id: str, result: Annotated[JobResult, Body(openapi_examples=examples.RESULTS)], services: ServicesDep
) -> None:
    """Report how the job ended. 409: it has ended in another way already. After an error of the job's code the job
    may go on from its last checkpoint: see `retries` of its specification."""
    event = ResultReported(
        outcome=Outcome(result.outcome),
        step=result.step,
        final_loss=result.final_loss,
        metrics=result.metrics,
        error=result.error,
        checkpoint=result.checkpoint,
        model=result.model,
        attempt=result.attempt,
        permanent=result.permanent,
    )
    end_job(services, job_id, event, result.seconds_ago)


def end_job(services: Services, job_id: str, event: ResultReported, seconds_ago: float = 0.0) -> None:
    """Note how a job ended. Raises `InvalidTransition`: it has ended in another way already.

    `seconds_ago`: since then, if the service was away.
    """
    with services.repository.write() as tx:
        before = tx.jobs.get(job_id)
        if _is_no_longer_watched(before):
            return
        had_ended = before.state.is_final
        if event.outcome is Outcome.SUCCEEDED and (why := why_not_succeeded(before)) is not None:
            event = replace(event, outcome=Outcome.FAILED, error=why, permanent=True)
        if before.is_tracked:
            event = replace(event, permanent=True)  # nobody here could start it again
        is_script = before.asked.command is not None or before.is_tracked
        if is_script and before.loss is not None and (before.step >= event.step or not math.isfinite(before.loss)):
            # The coordinator of a script hears of losses now and then only, and who tells the end of a training
            # elsewhere tells none; its samples have the last one. Of steps after that, which a script that tells only
            # some has made, none is known: one that was no number is not told as the number before.
            event = replace(event, final_loss=before.loss)
        now = services.clock()
        ended_at = _within_its_life(before, now - seconds_ago, now)
        job = tx.jobs.advance(job_id, event, ended_at, told_at=now)
        if not had_ended and (noted := _noted_at_end(job, event)) is not None:
            tx.events.add(job_id, *noted, {"step": event.step}, ended_at)
    if job.state.is_final and not had_ended:
        _observe_end(services, job, event)
    services.long_polls.notify(job_id, job.generation)
    services.trigger_round("result")


def _is_no_longer_watched(job: JobRecord) -> bool:
    """Whether it trains outside the cluster and its owner has cancelled it: what it tells is answered as usual and does
    not count."""
    return job.is_tracked and job.is_being_cancelled


def _noted_at_end(job: JobRecord, event: ResultReported) -> tuple[str, str] | None:
    """What its owner should know of a script that ended well: type and words of an event; None: nothing."""
    has_command = job.asked.command is not None
    if job.state is not JobState.SUCCEEDED or not (has_command or job.is_tracked):
        return None
    if event.step == 0 and has_command:
        if (line := (job.profile or {}).get("unread_line")) is not None:
            return "NothingLearned", unread_words(line, (job.profile or {}).get("suggested_pattern"), has_ended=True)
        return "NothingLearned", NO_STEP
    words = _ended_early(job, event)
    return None if words is None else ("EndedEarly", words)


def _ended_early(job: JobRecord, event: ResultReported) -> str | None:
    """What to say of a command that ended well, but long before it said that it would; None: it did not."""
    total = announced_beyond(job, event.step)
    if total is None:
        return None
    if job.asked.command is None:
        return f"The training said that it has ended, at step {event.step} of {total}."
    words = f"The command ended with exit code 0 at step {event.step} of {total}"
    if not job.rescales:
        return f"{words}. If it should have gone on, see what it printed last (optimus logs {job.id})."
    return (
        f"{words}, after {counted(job.rescales, 'change')} of its size. A training that counts its steps by its number "
        "of processes takes a resumed one for further than it is (docs/script-sizes.md)."
    )


def _observe_end(services: Services, job: JobRecord, event: ResultReported) -> None:
    error = None
    if event.outcome is Outcome.SUCCEEDED:
        decisions = services.repository.rounds.decisions(job.id, limit=MAX_PAGE).items
        error = prediction_error(decisions, event.step)
    ended_at = services.clock() if job.finished_at is None else job.finished_at
    services.metrics.observe_end(event.outcome.value, ended_at - job.created_at, error)
