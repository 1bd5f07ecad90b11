"""Health, metrics, request ids, and answers when something is broken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from sqlalchemy.pool import Pool
from tests.service.api.api_harness import NOW, Api, Surroundings, faults, on_sqlite, problem, sample, telemetry
from tests.service.api.conftest import serve
from tests.service.postgres_cluster import PostgresCluster

from optimus_service.api import health
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.events import Rounds
from optimus_service.store.repository import Repository

Serve = Callable[..., AbstractContextManager[Api]]


def test_a_healthy_service_is_alive_and_ready(api: Api) -> None:
    assert api.get("/healthz").json() == {"status": "alive", "version": "1.2.3"}
    assert api.get("/readyz").json() == {"status": "ready", "version": "1.2.3"}


@on_sqlite
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/jobs"])
def test_a_method_that_a_path_does_not_have_is_told_those_that_it_has(api: Api, path: str) -> None:
    answer = api.call("TRACE", path)
    assert answer.status_code == 405
    assert "GET" in answer.headers["Allow"]


def test_a_dead_loop_is_not_ready(api: Api) -> None:
    api.surroundings.loop_error = "no round for 300 s"
    answer = api.get("/readyz")
    assert faults(answer, 503) == {"loop": "no round for 300 s"}
    assert int(answer.headers["retry-after"]) > 0
    assert api.get("/healthz").status_code == 200


def test_a_database_without_our_tables_is_not_ready_and_says_how_to_repair_it(
    empty_database_url: str, tmp_path: Path
) -> None:
    repository = Repository(create_engine_from_url(empty_database_url))
    settings = Settings(data_directory=tmp_path, database_url=empty_database_url)
    with serve(repository, settings, Surroundings()) as api:
        assert "optimus db upgrade" in faults(api.get("/readyz"), 503)["database"]
    repository.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_service_whose_database_has_no_connection_left_is_ready(api: Api, database_url: str) -> None:
    """It works with those that it has; a check that connects anew would take it out of service."""
    assert api.get("/readyz").status_code == 200
    url = database_url.replace("+psycopg", "")
    taken: list[psycopg.Connection] = []
    try:
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(url))
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        assert api.get("/readyz").status_code == 200
        assert api.get("/v1/jobs").status_code == 200
    finally:
        for connection in taken:
            connection.close()


@on_sqlite
def test_readiness_opens_no_connection_each_time(api: Api) -> None:
    connections: list[object] = []

    def note(connection: object, _entry: object) -> None:
        connections.append(connection)

    event.listen(Pool, "connect", note)
    try:
        for _ in range(10):
            assert api.get("/readyz").status_code == 200
    finally:
        event.remove(Pool, "connect", note)
    assert len(connections) <= 1


def test_the_log_says_why_something_is_not_available(lost_database: str, tmp_path: Path) -> None:
    repository = Repository(create_engine_from_url(lost_database))
    settings = Settings(data_directory=tmp_path, database_url=lost_database)
    surroundings = Surroundings(loop_error="no round for 300 s")
    with serve(repository, settings, surroundings) as api, structlog.testing.capture_logs() as lines:
        for path in ("/v1/jobs", "/readyz"):
            assert "unable to open" not in problem(api.get(path), 503)["detail"]
    jobs, ready = [line for line in lines if line["event"] == "request"]
    assert "unable to open database file" in jobs["cause"]
    assert "unable to open database file" in ready["cause"]
    assert "no round for 300 s" in ready["cause"]


@pytest.fixture
def lost_database(tmp_path: Path) -> str:
    """The URL of a database that cannot be opened."""
    return f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'optimus.db'}"


def test_without_a_database_everything_that_needs_it_says_so(lost_database: str, tmp_path: Path) -> None:
    repository = Repository(create_engine_from_url(lost_database))
    settings = Settings(data_directory=tmp_path, database_url=lost_database)
    with serve(repository, settings, Surroundings()) as api:
        assert faults(api.get("/readyz"), 503) == {"database": "the database cannot be reached right now"}
        assert api.get("/healthz").status_code == 200
        token = api.services.job_tokens.issue("a-job", "nonce")
        calls: list[tuple[str, str, Any]] = [
            ("GET", "/v1/jobs", ""),
            ("GET", "/v1/jobs/a-job", ""),
            ("GET", "/v1/jobs/a-job/predictions", ""),
            ("POST", "/v1/jobs/a-job/telemetry", token),
        ]
        for method, path, sent in calls:
            answer = api.call(method, path, token=sent)
            assert "database" in problem(answer, 503)["detail"]
            assert answer.headers["retry-after"]
        assert figures(api)["optimus_database_up", ()] == 0


# --- a database that answers nothing ---------------------------------------------------------------------------------


def test_readiness_is_told_soon_while_all_threads_wait_for_a_frozen_database(
    own_postgres: PostgresCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_ANSWER_SECONDS", 0.5)
    url = own_postgres.url(own_postgres.create_database())
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    settings = Settings(data_directory=tmp_path, database_url=url)
    with serve(repository, settings, Surroundings()) as api:
        assert api.get("/readyz").status_code == 200
        with own_postgres.frozen():
            waiting = [api.portal.start_task_soon(api.call_async("GET", "/v1/jobs")) for _ in range(60)]
            told = [api.get("/readyz") for _ in range(3)]
            still_waiting = [each for each in waiting if not each.done()]
        assert still_waiting, "the test is to show that others hold the threads meanwhile"
        for answer in told:  # a connection that is made at this moment may give up by itself
            found = faults(answer, 503)
            assert list(found) == ["database"]
            assert found["database"] in ("does not answer", "the database cannot be reached right now")
        for each in waiting:
            each.result(60)
        assert api.get("/readyz").status_code == 200
    repository.close()


@on_sqlite
@pytest.mark.parametrize(("others_are_answered", "expected"), [(True, 200), (False, 503)])
def test_a_question_that_waits_for_its_turn_is_no_trouble_while_others_are_answered(
    api: Api, monkeypatch: pytest.MonkeyPatch, others_are_answered: bool, expected: int
) -> None:
    monkeypatch.setattr(health, "_ANSWER_SECONDS", 0.05)
    go_on, revision = Event(), Repository.revision

    def slow(repository: Repository) -> str | None:
        assert go_on.wait(60)
        return revision(repository)

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "revision", slow)
        patch.setattr(Repository, "answered_since", lambda _self, _moment: others_are_answered)
        assert api.get("/readyz").status_code == expected
        go_on.set()
    monkeypatch.setattr(health, "_ANSWER_SECONDS", 60.0)
    assert api.get("/readyz").status_code == 200


# --- metrics ---------------------------------------------------------------------------------------------------------


def figures(api: Api) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_show_jobs_samples_and_requests(api: Api) -> None:
    job_id = api.submit(name="digits")
    api.start(job_id)
    api.start(job_id, epoch=2, workers=3, step=5, cause="rescale", pause_seconds=0.2)
    samples = [sample(membership_epoch=2, sequence=n, step=10 * (n + 1), at=NOW + n) for n in range(3)]
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    found = figures(api)
    job = (("job", "digits"), ("job_id", job_id))
    assert found["optimus_jobs", (("state", "running"),)] == 1
    assert found["optimus_jobs", (("state", "failed"),)] == 0
    assert found["optimus_job_workers", job] == 3
    assert found["optimus_job_step", job] == 30
    assert found["optimus_job_loss", job] == 2.5
    assert found["optimus_job_steps_per_second", job] == pytest.approx(10.0)
    assert found["optimus_job_rescales_total", job] == 1
    assert ("optimus_job_predicted_remaining_seconds", job) not in found
    assert found["optimus_samples_total", (("outcome", "accepted"),)] == 3
    assert found["optimus_samples_total", (("outcome", "duplicate"),)] == 3
    assert found["optimus_rescale_pause_seconds_count", (("cause", "rescale"),)] == 1
    route = (("method", "POST"), ("route", "/v1/jobs/{job_id}/telemetry"), ("status", "200"))
    assert found["optimus_api_request_seconds_count", route] == 2


def test_series_of_a_job_end_with_it(api: Api) -> None:
    job_id = api.submit()
    api.post(f"/v1/jobs/{job_id}/cancel")
    assert not any(dict(labels).get("job_id") == job_id for _, labels in figures(api))


@on_sqlite
def test_labels_are_bounded_whatever_is_asked_for(api: Api) -> None:
    for number in range(5):
        api.get(f"/no/such/path/{number}")
        api.call(f"METHOD{number}", "/v1/jobs")
    routes = {dict(labels)["route"] for name, labels in figures(api) if name == "optimus_api_request_seconds_count"}
    assert "(none)" in routes
    assert not any("such" in route for route in routes)
    methods = {dict(labels)["method"] for name, labels in figures(api) if name == "optimus_api_request_seconds_count"}
    assert methods == {"GET", "OTHER"}


def test_rounds_of_this_replica_are_measured(api: Api) -> None:
    api.services.metrics.observe_round(0.3, {"forecast": 0.1, "place": 0.05})
    api.services.metrics.observe_round(0.1, {}, failed=True)
    api.services.metrics.set_leader(True)
    found = figures(api)
    assert found["optimus_round_seconds_count", ()] == 2
    assert found["optimus_round_phase_seconds_sum", (("phase", "forecast"),)] == pytest.approx(0.1)
    assert found["optimus_rounds_failed_total", ()] == 1
    assert found["optimus_leader", ()] == 1


# --- around every request --------------------------------------------------------------------------------------------


@on_sqlite
def test_request_ids_are_taken_over_or_made(api: Api) -> None:
    assert api.get("/v1/jobs", headers={"X-Request-ID": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    made = {api.get("/v1/jobs", headers={"X-Request-ID": "bad id\n"[:6]}).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert not any(" " in each for each in made)


@on_sqlite
def test_requests_are_logged_without_their_tokens(api: Api) -> None:
    with structlog.testing.capture_logs() as lines:
        api.get("/v1/jobs", token="very secret", headers={"X-Request-ID": "id-1"})
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["method"], line["path"], line["status"], line["request_id"]) == ("GET", "/v1/jobs", 401, "id-1")
    assert "very secret" not in str(lines)


@on_sqlite
def test_an_unexpected_error_is_a_500_that_tells_nothing_of_the_inside(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(Rounds, "page", broken)
    with serving(raises=False) as api:
        with structlog.testing.capture_logs() as lines:
            answer = api.get("/v1/rounds")
        assert "swordfish" not in problem(answer, 500)["detail"]
        (line,) = [line for line in lines if line["event"] == "request"]
        assert line["request_id"] == answer.headers["x-request-id"]
        assert "swordfish" in str(line["exc_info"])
        found = figures(api)
        route = (("method", "GET"), ("route", "/v1/rounds"), ("status", "500"))
        assert found["optimus_api_request_seconds_count", route] == 1
