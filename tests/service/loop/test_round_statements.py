"""What a round asks of the database: as much for many jobs as for few."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benchmarks.round_statements import Counts, counted, make_rounds, submit, train

from optimus_scheduler.model import JobState, Node, Resources
from optimus_service.api.jobs.jobs import shown
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop.round import Phases
from optimus_service.metrics.points import ClusterMetrics
from optimus_service.metrics.read import metrics_reader
from optimus_service.push.stream_state import read_stream_state
from optimus_service.settings import Settings
from optimus_service.store.repository import LEADER_LEASE, Repository

MOST_STATEMENTS = 11


def measured(repository: Repository, directory: Path, n_jobs: int) -> tuple[Counts, Counts]:
    """Of the round that starts so many jobs, and of a quiet round once they train."""
    cluster = FakeCluster([Node(f"node-{n}", Resources(8.0, 2**36)) for n in range(n_jobs)])
    rounds = make_rounds(repository, cluster, directory)
    lease = repository.leases.acquire(LEADER_LEASE, "test", 600.0)
    assert lease is not None
    rounds.run("test", lease.token)  # the first one prunes
    submit(repository, n_jobs)
    with counted(repository._engine) as starts:
        rounds.run("test", lease.token)
    assert len(cluster.tasks()) == 3 * n_jobs
    train(repository)
    rounds.run("test", lease.token)
    with counted(repository._engine) as quiet:
        record = rounds.run("test", lease.token)
    assert (record.n_jobs, record.n_actions, record.error) == (n_jobs, 0, None)
    assert {job.state for job in repository.jobs.active()} == {JobState.RUNNING}
    return starts, quiet


@pytest.mark.parametrize("n_jobs", [3, 60])
def test_quiet_round(repository: Repository, tmp_path: Path, n_jobs: int) -> None:
    _, quiet = measured(repository, tmp_path, n_jobs)
    assert quiet.statements <= MOST_STATEMENTS


def test_round_that_starts_many_jobs(repository: Repository, tmp_path: Path) -> None:
    """Tasks are noted and jobs are granted 64 at a time, not each in transactions of its own."""
    starts, _ = measured(repository, tmp_path, 60)
    assert starts.transactions <= 30
    assert starts.statements <= 5 * 60


def test_quiet_round_with_waiting_jobs(repository: Repository, tmp_path: Path) -> None:
    cluster = FakeCluster([replace(Node("node-0", Resources(8.0, 2**36)), schedulable=False)])
    rounds = make_rounds(repository, cluster, tmp_path)
    lease = repository.leases.acquire(LEADER_LEASE, "test", 600.0)
    assert lease is not None
    submit(repository, 20)
    rounds.run("test", lease.token)
    with counted(repository._engine) as quiet:
        rounds.run("test", lease.token)
    assert quiet.statements <= MOST_STATEMENTS


def test_page_of_jobs(repository: Repository, tmp_path: Path) -> None:
    measured(repository, tmp_path, 12)
    services = cast(Services, SimpleNamespace(repository=repository, clock=lambda: 0.0, listens_since=0.0))
    with counted(repository._engine) as page:
        bodies = shown(services, repository.jobs.page(limit=12).items)
    assert len(bodies) == 12
    assert page.statements == 4, "jobs, decisions, samples, tasks of those that run"


def test_live_view_and_scrape(repository: Repository, tmp_path: Path) -> None:
    measured(repository, tmp_path, 12)
    with counted(repository._engine) as view:
        shown = read_stream_state(repository, FakeCluster([]), "optimus", "1", 0.0)
    assert len(shown.jobs) == 12
    assert view.statements <= MOST_STATEMENTS
    read = metrics_reader(repository, lambda: 0.0, lambda: True, lambda: (), Settings().scheduling)
    with counted(repository._engine) as scrape:
        metrics = read()
    assert isinstance(metrics, ClusterMetrics)
    assert len(metrics.active_jobs) == 12
    assert scrape.statements <= MOST_STATEMENTS


def test_phases_of_two_passes_add_up() -> None:
    phases = Phases()
    with phases.measure("allocate"):
        pass
    phases.seconds["allocate"] += 5.0
    with phases.measure("allocate"):
        pass
    assert phases.seconds["allocate"] >= 5.0
