"""The round trip: jobs run in the service, what happened becomes a trace, the simulator replays it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from httpx import ASGITransport, AsyncClient, Response
from tests.service.loop.loop_world import ELASTIC, NOISE_SCALE, World, elastic_step_seconds, loss_at, speed
from typer.testing import CliRunner

from optimus_cli.app import app
from optimus_contract.limits import MAX_SECONDS
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import JobState, Node, Quota, Resources
from optimus_service.api.app import create_app
from optimus_service.api.cluster import trace
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.insight.cluster.trace_export import job_line
from optimus_service.observe.histories import Histories
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.store.jobs.jobs import Jobs
from optimus_service.store.repository import Repository
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace
from optimus_simulator.traces.own import read_own
from optimus_simulator.truth.elastic import ElasticTruth

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
GPUS = {"v100": 4}
RACK = {"topology.kubernetes.io/rack": "r1", "topology.kubernetes.io/zone": "z1"}
LABELS = {**RACK, "kubernetes.io/hostname": "a"}
RING: dict[str, Any] = {"max": 4, "resources": {"cpu": 0.5, "gpus": 1}}


@pytest.fixture
def lived(repository: Repository, tmp_path: Path) -> World:
    """A service in which three jobs have ended, one was cancelled and one still runs."""
    world = World(
        repository,
        tmp_path,
        FakeCluster([Node("a", Resources(8.0, 2**34, GPUS), labels=LABELS), Node("b", Resources(8.0, 2**34))]),
    )
    world.repository.projects.put(Quota("vision", share=0.5), world.clock())
    rule = {"convergence": {"max_steps": 600}}
    world.submit("first", project="vision", workers=RING, gpu_types=["v100"], deadline_seconds=3600, **rule)
    world.live_until("it runs", lambda: world.repository.jobs.get("first").step > 60)
    for name in ("second", "third"):
        world.submit(name)
    names = ("first", "second", "third")
    world.live_until("they end", lambda: all(_has_ended(world, name) for name in names))
    world.submit("fourth", convergence={"max_steps": 10**9})
    world.live_until("it runs", lambda: world.repository.jobs.get("fourth").step > 20)
    return world


def _has_ended(world: World, name: str) -> bool:
    job = world.repository.jobs.get(name)
    if job.state is JobState.RUNNING and job.step >= 600 and name == "first":
        world._finish(job, world.coordinators[name])  # the limit that coordinators keep by themselves
    return world.repository.jobs.get(name).state is JobState.SUCCEEDED


def exported(world: World, **params: str) -> list[dict[str, Any]]:
    """The lines of the API's answer."""
    answer = asked(world, **params)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def asked(world: World, **params: str) -> Response:
    services = Services(
        settings=world.settings,
        repository=world.repository,
        cluster=world.cluster,
        long_polls=LongPolls(world.repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0",
        clock=world.clock,
    )
    transport = ASGITransport(create_app(services))

    async def ask() -> Response:
        async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/v1/trace", params=params)

    with start_blocking_portal() as portal:
        return portal.call(ask)


def replayed(lines: list[dict[str, Any]], folder: Path, policy: str) -> tuple[Trace, dict[str, float]]:
    """The trace as read back, and each job's completion time under the policy."""
    path = folder / "lived.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines if "end" not in line), encoding="utf-8")
    trace = read_own(path)
    options = Options(speed_noise=0.0, restart_seconds=0.5, round_seconds=5.0)
    outcome = Replay(trace, policy_named(policy), options).run()
    return trace, {job.id: job.finished_at - job.submitted_at for job in outcome.jobs}


def test_what_happened_is_told_and_replayed(lived: World, tmp_path: Path) -> None:
    lines = exported(lived)
    assert lines[-1] == {"end": {"jobs": 3, "active": 1, "unmeasured": 0}}
    trace, times = replayed(lines, tmp_path, "drf")
    assert set(times) == {"first", "second", "third"}

    # The cluster and its rules.
    assert sum(node.capacity.cpu for node in trace.nodes) == 16.0
    assert trace.capacity.gpus == GPUS
    assert sorted((dict(node.labels) for node in trace.nodes), key=len) == [{}, RACK]
    assert trace.quotas == (Quota("vision", share=0.5),)
    assert trace.recorded is not None
    periods = trace.recorded.round_seconds, trace.recorded.learning_round_seconds
    assert periods == (lived.settings.round_seconds, lived.settings.learning_round_seconds)
    assert len(trace.recorded.jct_seconds) == 3
    assert len(trace.recorded.starts) == 3
    assert all(0 <= start < 60 for start in trace.recorded.starts)
    happened = [line["happened"] for line in lines[1:-1]]
    assert trace.recorded.changes == tuple(stop for each in happened for stop in each["stops"])

    for job in trace.jobs:
        record = lived.repository.jobs.get(job.id)
        # Arrivals, requests and ends.
        began = lived.repository.jobs.get("first").created_at
        assert job.submitted_at == pytest.approx(record.created_at - began)
        assert job.truth.begin().steps_left() == record.step
        assert (job.spec.family, job.spec.project) == ("m:f", record.project)
        # Measured speeds are those that the jobs had.
        for membership in lived.repository.memberships.of_job(job.id):
            size = len(membership.workers), len(membership.servers)
            if any(sample.workers == size[0] for sample in lived.repository.samples.newest(job.id, 1)):
                told = job.truth.steps_per_second((size,))
                assert told == pytest.approx(speed(*size), rel=0.15)
        # So are losses.
        training = job.truth.begin()
        training.advance(20.0, ((1, 1),))
        assert training.loss() == pytest.approx(loss_at(training.step), rel=0.1)

    first = trace.jobs[0]
    assert first.spec.gpu_types == ("v100",)
    assert first.spec.deadline_at == pytest.approx(3600.0)
    assert first.type_speeds == {"v100": 1.0}


@pytest.mark.parametrize(("deadline", "told"), [(0.0, 0.0), (2.5e11, MAX_SECONDS)])
def test_a_deadline_of_any_date_is_told_as_a_trace_may_have_it(
    lived: World, deadline: float, told: float, tmp_path: Path
) -> None:
    """In 1970, or in the year 9892."""
    job = lived.repository.jobs.get("first")
    dated = replace(job, spec={**job.spec, "deadline": datetime.fromtimestamp(deadline, UTC).isoformat()})
    memberships = lived.repository.memberships.of_job("first")
    history = Histories(lived.repository).update([job], {"first": memberships})["first"]
    line = job_line(dated, history, memberships, job.created_at)
    assert line is not None
    assert line["deadline_seconds"] == told
    path = tmp_path / "dated.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (exported(lived)[0], line)), encoding="utf-8")
    assert len(read_own(path).jobs) == 1


def test_the_same_policy_does_what_it_did(lived: World, tmp_path: Path) -> None:
    """As near as a simulation of the service comes: its jobs learn, wait and stop as the live ones did."""
    _, times = replayed(exported(lived), tmp_path, "optimus")
    for job_id, seconds in times.items():
        record = lived.repository.jobs.get(job_id)
        assert record.finished_at is not None
        assert seconds == pytest.approx(record.finished_at - record.created_at, rel=0.35)


def test_only_starts_and_changes_of_size_are_taken_for_those(lived: World) -> None:
    """What a try after an error or a lost worker takes says nothing of them."""
    with lived.repository.write() as tx:
        newest = tx.memberships.of_job("first")[-1]
        for number, cause in enumerate(("resume", "worker_lost", "rescale"), start=1):
            tx.memberships.report(
                "first",
                replace(newest, epoch=newest.epoch + number, cause=cause, pause_seconds=100.0 + number),
            )
    happened = exported(lived)[1]["happened"]
    assert happened["stops"][-3:] == [101.0, 102.0, 103.0]
    assert happened["change_seconds"][-1] == 103.0
    assert not {101.0, 102.0} & set(happened["change_seconds"])


@pytest.mark.parametrize("policy", ["drf", "optimus", "srtf"])
def test_no_policy_is_better_than_the_bound_of_what_happened(lived: World, tmp_path: Path, policy: str) -> None:
    path = tmp_path / "lived.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in exported(lived)[:-1]), encoding="utf-8")

    def told(*words: str) -> Any:
        return json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)

    bound = told("bound", str(path))
    simulated = told("simulate", "--trace", str(path), "--policy", policy, "--processes", "1")
    assert simulated["assumed"]["restart_seconds"] == [bound["start_seconds"]]
    figures = simulated["policies"][0]["figures"]
    assert figures["mean_jct_seconds"] >= bound["mean_jct_seconds"] - 1e-6
    assert figures["makespan_seconds"] >= bound["makespan_seconds"] - 1e-6
    assert figures["deadlines_met"] <= bound["deadlines_met"] + 1e-9


def test_an_elastic_job_is_told_with_its_noise_and_its_step_times(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    spec: dict[str, Any] = {"architecture": "allreduce", "servers": {"min": 0, "max": 0}, "elastic_batch": ELASTIC}
    world.submit("elastic", **spec, workers={"max": 4})
    world.live_until("its end", lambda: world.repository.jobs.get("elastic").state is JobState.SUCCEEDED)
    trace, times = replayed(exported(world), tmp_path, "optimus")
    (job,) = trace.jobs
    assert job.spec.elastic_batch == ElasticBatch(32, 512, 64)
    assert job.spec.global_batch_size == 32
    assert isinstance(job.truth, ElasticTruth)
    assert list(job.truth.noise) == pytest.approx([NOISE_SCALE, NOISE_SCALE])
    assert job.truth.total_steps == world.repository.jobs.get("elastic").step
    had = {(len(each.workers), each.global_batch) for each in world.repository.memberships.of_job("elastic")}
    for workers, batch in had:
        assert batch is not None
        told, exchange = job.truth.step_parts(((workers, 0),), batch)
        seconds, _ = elastic_step_seconds(workers, batch)
        assert told == pytest.approx(seconds, rel=0.35)
        assert (exchange > 0) == (workers > 1)
    assert times["elastic"] > 0


def test_a_part_of_what_happened(lived: World) -> None:
    assert exported(lived, project="vision")[-1]["end"]["jobs"] == 1
    assert exported(lived, since="2001-01-01T00:00:00Z")[-1] == {"end": {"jobs": 0, "active": 0, "unmeasured": 0}}
    assert exported(lived, until="1970-01-01T00:00:01Z")[-1]["end"]["jobs"] == 0


def test_a_long_history_is_read_a_few_jobs_at_a_time(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held does not grow with the number of jobs, and pages lose none."""
    monkeypatch.setattr(trace, "_LISTED_AT_ONCE", 2)
    monkeypatch.setattr(trace, "_JOBS_AT_ONCE", 1)
    read: list[int] = []
    page = Jobs.submitted

    def noted(*arguments: Any) -> list[Any]:
        found = page(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(Jobs, "submitted", noted)
    for number in range(3):
        lived.submit(f"waits-{number}")
    lines = exported(lived)
    assert lines[-1] == {"end": {"jobs": 3, "active": 4, "unmeasured": 0}}
    assert [line["id"] for line in lines[1:-1]] == ["first", "second", "third"]
    assert read == [2, 2, 2, 1, 0]


def test_more_exports_than_there_may_be_are_refused(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported(lived)
    busy = BoundedSemaphore(1)
    monkeypatch.setattr(trace, "_running", busy)
    assert busy.acquire(blocking=False)
    refused = asked(lived)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:optimus:problem:too-many-requests")
    assert refused.headers["retry-after"]
    busy.release()
    for _ in range(3):
        assert exported(lived), "each gives its place back"
