"""What the event stream shows to those who watch: jobs as lines, and the cluster in one look."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optimus_contract import answers
from optimus_contract.interval_words import is_limit
from optimus_scheduler.model import JobState, Node, Resources
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.insight.format import moment, moment_or_none
from optimus_service.insight.jobs.bodies import resources_body
from optimus_service.insight.jobs.progress import Ends, loss_of, progress_of, step_of
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.insight.jobs.why import explain
from optimus_service.metrics.read import resources_of_job, waiting_by_reason
from optimus_service.observe.standstills import Standstills
from optimus_service.requests import as_json
from optimus_service.store.records import DecisionRecord, JobRecord
from optimus_service.store.repository import Repository

MAX_ACTIVE = 5000
"""Active jobs that are shown, the newest: some 2 MB."""
MAX_ENDED = 50
"""Ended jobs that are shown, the newest."""
_STEADY = 0.05
"""Expected times of waiting jobs are shown to so large a part of themselves."""
_ENDED = frozenset(state for state in JobState if state.is_final)


@dataclass(frozen=True, slots=True)
class StreamState:
    """Everything that is shown, as JSON."""

    cluster: str
    jobs: Mapping[str, str]
    """By id, in the order in which they are shown."""


def read_stream_state(
    repository: Repository,
    cluster: Cluster,
    policy: str,
    version: str,
    now: float,
    projects: Collection[str] | None = None,
    still: Standstills = MappingProxyType({}),
) -> StreamState:
    """The present state as seen by those who may read these projects (None: all). A few queries, whatever the number of
    jobs.

    Raises:
        DatabaseNotAvailable: nothing can be said.
    """
    active = repository.jobs.active(projects)
    ended = repository.jobs.page(_ENDED, limit=MAX_ENDED, projects=projects).items
    shown = [*reversed(active[-MAX_ACTIVE:]), *ended]
    decisions = repository.rounds.latest_decisions([job.id for job in shown])
    nodes, error = _nodes(cluster)
    last_round = next(iter(repository.rounds.page(limit=1).items), None)
    summary = answers.ClusterLine(
        capacity=resources_body(sum((node.capacity for node in nodes), Resources())),
        used=resources_body(sum((resources_of_job(job) for job in active), Resources())),
        nodes=len(nodes),
        cordoned=sum(not node.schedulable for node in nodes),
        jobs={state.value: count for state, count in repository.jobs.count_by_state(projects).items()},
        left_out=max(len(active) - MAX_ACTIVE, 0),
        waiting_by_reason={reason: n for reason, n in waiting_by_reason(active, decisions).items() if n},
        last_round_at=None if last_round is None else moment(last_round.at),
        # What went wrong may name jobs of others.
        last_round_error=None if last_round is None or projects is not None else last_round.error,
        policy=policy,
        version=version,
        cluster_error=error,
    )
    ends: Ends = {}
    speeds = speeds_here(repository, shown, decisions, now)
    lines = {
        job.id: as_json(job_line(job, decisions.get(job.id), now, ends, still, speeds.get(job.id))) for job in shown
    }
    return StreamState(as_json(summary), lines)


def job_line(
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    ends: Ends | None = None,
    still: Standstills = MappingProxyType({}),
    speed: float | None = None,
) -> answers.JobLine:
    """One job in a list. Pure but for what `progress_of` keeps in `ends`."""
    ahead, words = progress_of(job, decision, now, ends, still, speed), explain(job, decision, now)
    return answers.JobLine(
        id=job.id,
        name=job.name,
        project=job.project,
        labels=job.asked.labels,
        owner=job.owner,
        state=job.state.value,
        reason=words.reason,
        message=words.message,
        workers=job.running.workers,
        servers=job.running.servers,
        wanted_workers=job.intended.workers,
        wanted_servers=job.intended.servers,
        step=step_of(job, still),
        loss=loss_of(job, still),
        progress=ahead.progress,
        remaining_seconds=steady(ahead.remaining_seconds) if job.is_without_tasks else ahead.remaining_seconds,
        start_seconds=None if ahead.expected is None else steady(ahead.expected.start_seconds),
        longer_than_predicted=ahead.longer_than_predicted,
        finishing=ahead.finishing,
        standstill=still[job.id].words if job.id in still else None,
        created_at=moment(job.created_at),
        started_at=moment_or_none(job.started_at),
        finished_at=moment_or_none(job.finished_at),
    )


def steady(left: answers.Interval | None) -> answers.Interval | None:
    """To some 5 %, whole seconds at least: thousands of lines of jobs that wait would be sent again each second."""
    if left is None:
        return None
    steps = max(_STEADY * left.mean, 1.0)
    unit = 2.0 ** math.floor(math.log2(steps))
    low, mean, high = (None if each is None else round(each / unit) * unit for each in (left.low, left.mean, left.high))
    mean = mean or 0.0
    if is_limit(mean, low, high) and not is_limit(left.mean, left.low, left.high):
        # Written without what makes it doubtful it would be "at most", which is said of what cannot be exceeded.
        low, high = (unit / 2 if left.low else low), (mean + unit if left.high != left.mean else high)
    return answers.Interval(mean=mean, low=low, high=high)


def _nodes(cluster: Cluster) -> tuple[tuple[Node, ...], str | None]:
    try:
        return cluster.nodes(), None
    except ClusterUnavailable as error:
        return (), str(error)
