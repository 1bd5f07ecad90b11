"""What `/metrics` says, and that its documentation says the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.service.api.api_harness import NOW, Api, on_sqlite, sample, telemetry
from tests.service.loop.loop_world import World
from tests.service.seeing.metrics_page import BEGIN, DOCUMENT, END, as_markdown
from tests.service.store.store_builders import a_decision, a_membership, set_wanted

from optimus_contract import answers
from optimus_scheduler.lifecycle import ResumeRequested
from optimus_scheduler.model import Allocation, Forecast, Interval, JobState, Node, Resources, Role
from optimus_scheduler.settings import Settings
from optimus_service.insight.jobs.usage import LATELY_SECONDS, JobUsage
from optimus_service.metrics.families import MAX_JOBS, families
from optimus_service.metrics.points import ClusterMetrics, JobMetrics
from optimus_service.metrics.read import (
    fitted_loss,
    global_batch,
    job_metrics,
    metrics_reader,
    prediction_error,
    reconcile_lag,
    step_parts,
    straggler_ratio,
)
from optimus_service.metrics.registry import Metrics, NoMetrics
from optimus_service.store.jobs.jobs import Jobs
from optimus_service.store.records import MembershipRecord, SampleRecord
from optimus_service.store.repository import Repository

Labels = tuple[tuple[str, str], ...]


PRICES = Settings(price_per_core_hour=0.5)


def parsed(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def values(text: str) -> dict[tuple[str, Labels], float]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in parsed(text)
        for each in family.samples
    }


def a_job(**changes: Any) -> JobMetrics:
    everything: dict[str, Any] = {
        "reason": "GrantedMore",
        "share": 0.5,
        "epoch": 1.5,
        "loss": 2.0,
        "global_batch": 64,
        "fitted_loss": 2.1,
        "progress": 0.4,
        "steps_per_second": 3.0,
        "predicted_steps_per_second": 3.1,
        "total_steps": answers.Interval(mean=100, low=90, high=120),
        "remaining_steps": answers.Interval(mean=60, low=50, high=None),
        "remaining_seconds": answers.Interval(mean=20, low=None, high=None),
        "confidence": 0.7,
        "gain": 0.2,
        "next_gain": 0.1,
        "step_parts": {"compute": 0.1},
        "straggler": 1.2,
        "usage": JobUsage(workers=1, cpu_cores=0.9, memory_bytes=1e9, gpu_utilization=0.5, gpu_memory_bytes=2e9),
        "usage_of_others": {"server": {"cpu_cores": 0.4, "memory_bytes": 3e8}},
        "noise_scale": 22.0,
        "waiting_since": 5.0,
        "cost_per_hour": 3.0,
        "remaining_cost": answers.Interval(mean=5, low=4, high=6),
    }
    return JobMetrics(**({"job_id": "job-1", "name": "job"} | everything | changes))


def some_metrics(*jobs: JobMetrics, **changes: Any) -> ClusterMetrics:
    values: dict[str, Any] = {
        "jobs_by_state": {JobState.RUNNING: 500},
        "active_jobs": jobs,
        "n_active_jobs": len(jobs),
        "waiting_by_reason": {"WaitingForResources": 0},
        "capacity": Resources(8.0, 2**34, {"gpu": 4}),
        "used": Resources(2.0, 2**30, {"gpu": 1}),
        "nodes_by_state": {"schedulable": 2},
    }
    return ClusterMetrics(**(values | changes))


def everything_that_can_be_said() -> list[Metric]:
    """The families of a replica that has something to say of each."""
    metrics = Metrics()
    metrics.show_state(lambda: some_metrics(a_job()))
    return [family for family in parsed(metrics.text().decode()) if family.name.startswith("optimus_")]


# --- the catalogue ---------------------------------------------------------------------------------------------------


def test_every_metric_is_in_the_catalogue_with_its_kind_and_the_other_way_round() -> None:
    declared = {family.name.removesuffix("_total"): family.kind for family in families()}
    assert {family.name: family.type for family in everything_that_can_be_said()} == declared


def test_names_follow_the_conventions() -> None:
    for family in families():
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert "milliseconds" not in family.name, family.name
        assert family.help, family.name
        assert (family.kind == "histogram") == bool(family.buckets), family.name


def test_the_documentation_lists_them_all() -> None:
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    table, found, _ = rest.partition(END)
    assert before
    assert found
    assert table == as_markdown(), "run `python -m tests.service.seeing.metrics_page`"


# --- jobs and cluster ------------------------------------------------------------------------------------------------


def test_jobs_beyond_the_bound_are_counted_but_have_no_series() -> None:
    metrics = Metrics()
    metrics.show_state(lambda: some_metrics(JobMetrics(job_id="job-1", name="job", loss=math.nan), n_active_jobs=500))
    found = values(metrics.text().decode())
    job = (("job", "job"), ("job_id", "job-1"))
    assert found["optimus_jobs_without_series", ()] == 499
    assert math.isnan(found["optimus_job_loss", job])
    assert found["optimus_jobs", (("state", "running"),)] == 500
    assert ("optimus_job_steps_per_second", job) not in found


def test_unknown_bounds_of_an_interval_have_no_series() -> None:
    metrics = Metrics()
    metrics.show_state(lambda: some_metrics(a_job()))
    found = values(metrics.text().decode())
    bounds = {dict(labels)["bound"] for name, labels in found if name == "optimus_job_predicted_remaining_steps"}
    assert bounds == {"low", "mean"}


@on_sqlite
def test_the_global_batch_is_that_of_the_newest_membership(world: World) -> None:
    world.submit("job-1", global_batch_size=24)
    world.submit("job-2", scaling="weak")
    elastic = {"minimum": 16, "maximum": 64, "per_pass": 64}
    world.submit("job-3", architecture="allreduce", servers={"min": 0, "max": 0}, elastic_batch=elastic)
    first, second, third = (world.repository.jobs.get(f"job-{number}") for number in (1, 2, 3))

    def membership(epoch: int, n_workers: int, batch: int | None = None) -> MembershipRecord:
        workers = tuple(f"w-{rank}" for rank in range(n_workers))
        return MembershipRecord(
            job_id="job", epoch=epoch, generation=1, at=0.0, step=0, workers=workers, servers=(), cause="start",
            global_batch=batch,
        )  # fmt: skip

    assert global_batch(first, [membership(1, 2)]) == 24
    assert global_batch(first, []) is None
    assert global_batch(first, [membership(2, 0), membership(1, 2)]) is None, "paused"
    assert global_batch(second, [membership(1, 3)]) is None, "its task's own, not told yet"
    assert global_batch(replace(second, profile={"global_batch_size": 32}), [membership(1, 3)]) == 96
    assert global_batch(third, [membership(1, 2, 16), membership(2, 2, 48)]) == 48


def test_usage_is_told_by_role_as_far_as_anybody_told_it(world: World) -> None:
    world.submit("job-1")
    world.round()
    world.train(5)
    tasks = [task.key.name for task in world.repository.tasks.select() if task.key.role is not Role.WORKER]
    usages = {name: {"cpu_cores": 0.25, "memory_bytes": 100.0} for name in tasks}
    world.repository.tasks.put_usage("job-1", usages, world.clock())
    metrics = Metrics()
    metrics.show_state(metrics_reader(world.repository, world.clock, lambda: True, lambda: None, PRICES))

    def told(name: str) -> dict[str, float]:
        found = values(metrics.text().decode())
        return {dict(labels)["role"]: value for (series, labels), value in found.items() if series == name}

    n_servers = len(tasks) - 1
    assert told("optimus_job_used_cpu_cores") == {"server": 0.25 * n_servers, "coordinator": 0.25}
    assert told("optimus_job_used_memory_bytes") == {"server": 100.0 * n_servers, "coordinator": 100.0}
    world.clock.now += LATELY_SECONDS + 1
    assert told("optimus_job_used_cpu_cores") == {}
    metrics.show_state(lambda: some_metrics(a_job()))
    assert told("optimus_job_used_cpu_cores") == {"worker": 0.9, "server": 0.4}


def test_a_live_service_shows_who_has_what(world: World) -> None:
    world.submit("job-1")
    world.round()
    world.submit("job-2", workers={"min": 3, "max": 3, "resources": {"cpu": 2}})
    world.round()
    world.train(5)
    world.clock.now += 20
    metrics = Metrics()
    assert world.rounds.seen is not None
    metrics.observe_plan(world.clock(), world.rounds.seen.nodes, world.rounds.decided)
    metrics.show_state(metrics_reader(world.repository, world.clock, lambda: True, lambda: metrics.nodes, PRICES))
    found = values(metrics.text().decode())
    job = (("job", "job-1"), ("job_id", "job-1"))
    assert found["optimus_cluster_cpu_cores", (("of", "capacity"),)] == 8
    assert found["optimus_cluster_cpu_cores", (("of", "used"),)] == 2
    assert found["optimus_job_share_ratio", job] == 0.25
    assert found["optimus_job_cost_per_hour", job] == 1.0
    assert found["optimus_job_stopped_seconds_total", job] == 0.5
    assert found["optimus_job_state", (*job, ("state", "running"))] == 1
    assert found["optimus_waiting_jobs", (("reason", "WaitingForResources"),)] == 1
    assert found["optimus_decisions_total", (("reason", "WaitingForResources"),)] == 1
    assert found["optimus_reconciling_jobs", ()] == 0
    world.clock.now += 60
    world.round()  # wants more, and nobody forms the membership
    world.clock.now += 7
    lagging = values(metrics.text().decode())
    assert lagging["optimus_reconciling_jobs", ()] == 1
    assert lagging["optimus_reconcile_lag_seconds", ()] == 7
    assert lagging["optimus_job_wanted_workers", job] + lagging["optimus_job_wanted_servers", job] > 2


def test_of_two_replicas_only_the_leader_tells_states(world: World) -> None:
    world.submit()
    replicas = [Metrics(), Metrics()]
    for replica, leads in zip(replicas, (lambda: True, lambda: False), strict=True):
        replica.show_state(metrics_reader(world.repository, world.clock, leads, lambda: None, PRICES))
    scraped = [values(replica.text().decode()) for replica in replicas]
    assert sum(found.get(("optimus_jobs", (("state", "queued"),)), 0) for found in scraped) == 1
    assert not any(name.startswith("optimus_job_info") for name, _ in scraped[1])
    assert [found["optimus_database_up", ()] for found in scraped] == [1, 1]


def test_without_a_database_a_scrape_says_so() -> None:
    metrics = Metrics()
    metrics.show_state(lambda: NoMetrics.NO_DATABASE)
    assert values(metrics.text().decode())["optimus_database_up", ()] == 0


# --- figures of one job ----------------------------------------------------------------------------------------------


def a_record(**changes: Any) -> SampleRecord:
    return SampleRecord(**{**sample(), "id": 1, "received_at": NOW, **changes})


def test_time_is_split_by_what_it_was_spent_on() -> None:
    records = [a_record(rank=0, n_steps=10, compute_seconds=1.0), a_record(rank=1, n_steps=10, compute_seconds=3.0)]
    assert step_parts(records)["compute"] == pytest.approx(0.2)
    assert step_parts([]) == {}


def test_a_straggler_is_seen_in_its_own_membership_only() -> None:
    records = [a_record(rank=rank, compute_seconds=seconds) for rank, seconds in enumerate((1.0, 1.0, 2.5))]
    assert straggler_ratio(records) == pytest.approx(2.5)
    assert straggler_ratio([*records, a_record(membership_epoch=2)]) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.floats(0, 1e3)), max_size=12))
def test_the_slowest_is_never_faster_than_the_median(records: list[tuple[int, int, float]]) -> None:
    found = straggler_ratio([a_record(rank=rank, n_steps=n, compute_seconds=s) for rank, n, s in records])
    assert found is None or found >= 1.0


def test_the_fitted_loss_is_equation_1_in_units_of_the_loss() -> None:
    curve: dict[str, float | None] = {"beta0": 0.1, "beta1": 1.0, "beta2": 0.05, "scale": 2.0, "offset": 0.5}
    assert fitted_loss(curve, 10) == pytest.approx((1 / 2 + 0.05) * 2 + 0.5)
    assert fitted_loss({**curve, "beta0": None}, 10) is None
    assert fitted_loss({}, 10) is None


def test_the_prediction_of_half_time_is_held_against_the_end() -> None:
    def predicted(total: float, left: float) -> Any:
        in_all, to_go = (Interval(value, value, value) for value in (total, left))
        return a_decision(forecast=Forecast("job-1", in_all, to_go, confidence=0.5))

    newest_first = [predicted(100, 10), predicted(120, 71), predicted(300, 280)]
    assert prediction_error(newest_first, 100) == pytest.approx(0.2)
    assert prediction_error([a_decision()], 100) is None


def test_a_job_that_has_what_it_should_does_not_lag(world: World) -> None:
    job = world.submit()
    assert reconcile_lag(job, world.clock()) is None
    set_wanted(world.repository, "job-1", Allocation(1, 1), job.directive, (), world.clock())
    assert reconcile_lag(world.repository.jobs.get("job-1"), world.clock() + 3) == 3


def test_lost_steps_are_those_of_deaths(world: World) -> None:
    """Not of pauses, changes of size and retries, after which a script without checkpoints begins anew."""
    job = world.submit()
    causes = ("start", "worker_lost", "rescale", "pause", "resume", "server_lost", "coordinator_restart")
    memberships = [a_membership(epoch=epoch, cause=cause, lost_steps=10**epoch) for epoch, cause in enumerate(causes)]
    assert job_metrics(job, None, memberships, [], None, world.clock()).lost_steps == 1_100_010


def test_a_job_that_its_owner_resumed_waits_since_then(world: World) -> None:
    jobs = world.repository.jobs
    world.submit("job-1", paused=True)
    metrics = Metrics()
    metrics.show_state(metrics_reader(world.repository, world.clock, lambda: True, lambda: None, PRICES))

    def told() -> float | None:
        job = (("job", "job-1"), ("job_id", "job-1"))
        return values(metrics.text().decode()).get(("optimus_job_waiting_since_timestamp_seconds", job))

    assert told() is None, "it waits for its owner"
    world.clock.now += 5 * 3600.0
    jobs.advance("job-1", ResumeRequested(), world.clock())
    assert told() == world.clock()
    world.round()
    assert told() is None, "its tasks are on their way"


# --- this replica ----------------------------------------------------------------------------------------------------


@on_sqlite
def test_the_service_itself_is_measured(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    api.as_task("POST", job_id, "telemetry", json=telemetry(sample(at=NOW - 4)))
    for _ in range(2):
        result = {"outcome": "succeeded", "step": 10, "final_loss": 1.0}
        assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    found = values(api.get("/metrics").text)
    assert found["optimus_build_info", (("policy", "optimus"), ("version", "1.2.3"))] == 1
    assert found["optimus_sample_lag_seconds_sum", ()] == 4
    assert found["optimus_job_completion_seconds_count", (("outcome", "succeeded"),)] == 1
    assert found["optimus_loop_healthy", ()] == 1
    assert found["optimus_api_requests_in_progress", ()] == 1, "the scrape itself"


@on_sqlite
def test_what_is_logged_for_a_request_about_a_job_names_the_job(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, seen = api.submit(), []
    looked_up = Jobs.get

    def get(jobs: Jobs, wanted: str) -> Any:
        seen.append(structlog.contextvars.get_contextvars())
        return looked_up(jobs, wanted)

    monkeypatch.setattr(Jobs, "get", get)
    api.get(f"/v1/jobs/{job_id}", headers={"X-Request-ID": "id-1"})
    assert seen == [{"request_id": "id-1", "job_id": job_id}]


def test_transactions_are_timed(world: World) -> None:
    seen: list[tuple[str, bool]] = []

    def observe(kind: str, seconds: float, /, *, failed: bool) -> None:
        assert seconds >= 0
        seen.append((kind, failed))

    repository = Repository(world.repository._engine, observe)
    repository.ping()
    repository.events.add(None, "Test", "a test", {}, 1.0)
    assert seen == [("read", False), ("write", False)]


def test_nodes_are_remembered_from_the_last_round() -> None:
    metrics = Metrics()
    assert metrics.nodes is None
    node = Node("node-1", Resources(1.0))
    from optimus_scheduler.model import Plan

    metrics.observe_plan(12.0, (node,), Plan((), ()))
    assert metrics.nodes == (node,)
    assert values(metrics.text().decode())["optimus_last_round_timestamp_seconds", ()] == 12.0
    assert MAX_JOBS == 200
