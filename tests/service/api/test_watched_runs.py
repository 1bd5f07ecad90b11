"""Trainings that stock libraries tell of by themselves: which job a run is, what is counted once, how it ends."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.api.api_harness import NOW, Api, faults, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

pytestmark = on_sqlite
Serve = Callable[..., AbstractContextManager[Api]]
PROTOBUF = {"content-type": "application/x-protobuf"}
MLFLOW = "/api/2.0/mlflow/"


WORDS = (
    *("trainerStatus", "metrics", "name", "value", "progressPercentage", "lastUpdatedTime", "resourceMetrics"),
    *("scopeMetrics", "gauge", "dataPoints", "asDouble", "timeUnixNano", "attributes", "key", "intValue", "step"),
    *("run_id", "timestamp", "params", "tags", "start_time", "experiment_id", "loss", "current_step"),
)


def status(
    step: int | None = None, *, total: int = 100, percent: int = 50, seconds: float = 0.0, **metrics: float
) -> dict[str, Any]:
    """A status as transformers sends it, `seconds` after the run began."""
    said = {**metrics, "total_steps": total, **({} if step is None else {"current_step": step})}
    return {
        "trainerStatus": {
            "lastUpdatedTime": datetime.fromtimestamp(NOW + seconds, UTC).isoformat(),
            "progressPercentage": percent,
            "metrics": [{"name": name, "value": str(value)} for name, value in said.items()],
        }
    }


def post(api: Api, body: Any, path: str = "bert", at: float | None = None, **options: Any) -> None:
    """`at`: seconds after the run began when it comes, by the service's clock."""
    if at is not None:
        api.surroundings.clock.now = NOW + at
    answer = api.post(f"/v1/track/{path}", json=body, **options)
    assert (answer.status_code, answer.json()) == (200, {}), answer.text


def jobs(api: Api, **options: Any) -> list[dict[str, Any]]:
    """Newest first."""
    found: list[dict[str, Any]] = api.get("/v1/jobs", **options).json()["jobs"]
    return found


def samples(api: Api, job_id: str) -> list[tuple[int, int, float | None]]:
    """Step, number of steps and loss, oldest first."""
    return [(each.step, each.n_steps, each.loss) for each in reversed(api.repository.samples.newest(job_id, 1000))]


def train(api: Api, path: str = "bert", begin: float = 0.0, steps: tuple[int, ...] = (10, 20, 30)) -> None:
    post(api, status(percent=0, seconds=begin), path, begin)
    for number, step in enumerate(steps):
        after = begin + 5.0 * (number + 1)
        post(api, status(step, percent=step, seconds=after, loss=1 / step), path, after)


def test_a_loss_that_becomes_nan_is_looked_at_at_once(api: Api) -> None:
    train(api)
    triggers, looks = api.surroundings.triggers, []
    for number, loss in enumerate((0.5, float("nan"), float("nan"))):
        triggers.clear()
        post(api, status(40 + 10 * number, seconds=20.0 + 5 * number, loss=loss), at=20.0 + 5 * number)
        looks.append("loss" in triggers)
    assert looks == [False, True, False]


def test_statuses_of_a_training_are_a_job_with_a_curve_and_an_end(api: Api) -> None:
    train(api)
    (job,) = jobs(api)
    assert (job["name"], job["state"], job["step"], job["running"]["workers"]) == ("bert", "running", 30, 1)
    assert (job["profile"]["total_steps"], job["profile"]["learned_from"]) == (100, "kubeflow")
    assert samples(api, job["id"]) == [(10, 10, 0.1), (20, 10, 0.05), (30, 10, 1 / 30)]
    post(api, status(None, percent=100, seconds=20.0, eval_accuracy=0.75), at=20.0)
    (job,) = jobs(api)
    assert (job["state"], job["step"]) == ("succeeded", 30)
    assert job["result"]["metrics"] == {"eval_accuracy": 0.75}
    assert job["result"]["final_loss"] == job["loss"] == 1 / 30
    events = api.get(f"/v1/jobs/{job['id']}/events").json()["events"]
    early = [event["message"] for event in events if event["type"] == "EndedEarly"]
    assert early == ["The training said that it has ended, at step 30 of 100."]


def test_the_last_step_is_known_by_the_epoch_of_the_end(api: Api) -> None:
    """The newest status with a step may be 5 s old when the training has ended."""
    post(api, status(percent=0), "one", 0.0)
    post(api, status(40, percent=40, seconds=5.0, current_epoch=0.8), "one", 5.0)
    post(api, status(None, percent=100, seconds=6.0, epoch=2.0), "one", 6.0)
    post(api, status(40, percent=40, seconds=5.0, current_epoch=0.8), "stopped", 5.0)
    post(api, status(None, percent=100, seconds=6.0, epoch=1.06), "stopped", 6.0)
    assert {each["name"]: (each["state"], each["step"]) for each in jobs(api)} == {
        "one": ("succeeded", 100),
        "stopped": ("succeeded", 53),
    }


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ({"train_runtime": 3.2107, "train_steps_per_second": 19.933}, 64),
        ({"train_runtime": 1.5, "train_steps_per_second": 10.667}, 16),
        ({}, 64),
    ],
    ids=["to its end", "stopped early", "another library"],
)
def test_a_training_shorter_than_its_first_status_with_a_step_has_its_steps(
    api: Api, said: dict[str, float], step: int
) -> None:
    """Transformers posts every 5 s, beside a status at the begin and one at the end, which names no step."""
    begin, end = status(percent=0, total=64), status(percent=100, seconds=3.3, loss=0.6, epoch=2.0)
    metrics = end["trainerStatus"]["metrics"]
    metrics += [{"name": name, "value": str(value)} for name, value in said.items()]
    end["trainerStatus"]["metrics"] = [each for each in metrics if each["name"] != "total_steps"]
    post(api, begin, at=0.0)
    post(api, end, at=3.3)
    (job,) = jobs(api)
    assert (job["state"], job["step"], job["epoch"]) == ("succeeded", step, 2.0)
    assert samples(api, job["id"]) == [(step, step, 0.6)]
    events = api.get(f"/v1/jobs/{job['id']}/events").json()["events"]
    assert [event["type"] for event in events].count("EndedEarly") == (step < 64)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(order=st.lists(st.integers(0, 9), min_size=1, max_size=12), run=st.uuids())
def test_repeated_and_reordered_statuses_count_once(api: Api, order: list[int], run: Any) -> None:
    """All are of one run; with an address of its own, so that going back is a resume."""
    sent = [status((number + 1) * 7, seconds=float(number), loss=0.5) for number in range(10)]
    for number in order:
        post(api, sent[number], f"bert/{run}", 60.0)
    (job,) = (each for each in api.repository.jobs.active() if each.spec["labels"]["optimus/run"] == str(run))
    assert job.step == (max(order) + 1) * 7
    assert sum(n_steps for _, n_steps, _ in samples(api, job.id)) == job.step


def test_a_status_that_begins_a_training_begins_another_run_of_the_name(api: Api) -> None:
    train(api)
    post(api, status(percent=0, seconds=0.0), at=20.0)  # a late repetition of the first one
    assert len(jobs(api)) == 1
    train(api, begin=60.0, steps=(10,))
    second, first = jobs(api)
    assert (second["state"], second["step"]) == ("running", 10)
    assert (first["state"], first["step"]) == ("failed", 30)
    assert "Another run of this name began" in first["failure"]
    assert first["jct_seconds"] == pytest.approx(15.0), "it was last heard of then"
    post(api, status(percent=100, seconds=70.0), at=70.0)
    post(api, status(percent=100, seconds=70.0), at=71.0)  # repeated
    train(api, begin=120.0, steps=(10,))
    assert [each["state"] for each in jobs(api)] == ["running", "succeeded", "failed"]


def test_a_run_whose_first_status_was_lost_is_told_by_its_steps(api: Api) -> None:
    train(api)
    post(api, status(10, seconds=60.0, loss=0.3), at=60.0)
    assert [(each["state"], each["step"]) for each in jobs(api)] == [("running", 10), ("failed", 30)]


def test_a_run_that_made_all_its_steps_ended_with_them_when_another_begins(api: Api) -> None:
    train(api, steps=(50,))
    post(api, status(100, percent=99, seconds=10.0), at=10.0)
    train(api, begin=600.0, steps=(10,))
    _, first = jobs(api)
    assert (first["state"], first["jct_seconds"]) == ("succeeded", pytest.approx(10.0))
    told = api.get(f"/v1/jobs/{first['id']}/explanation").json()["sentences"]
    assert any(each.startswith("It took 10") for each in told), told
    assert any("did not say that it ended" in each for each in told), told


def test_a_run_with_an_id_of_its_own_stays_one_job_when_it_is_restarted(api: Api) -> None:
    train(api, "bert/4711")
    train(api, "bert/4711", begin=60.0, steps=(20, 40))
    train(api, "bert/4712", begin=60.0, steps=(5,))
    found = {each.spec["labels"]["optimus/run"]: each.step for each in api.repository.jobs.active()}
    assert found == {"4711": 40, "4712": 5}


def test_a_run_that_its_owner_does_not_want_to_watch_is_not_shown_again(api: Api) -> None:
    train(api)
    (job,) = jobs(api)
    api.post(f"/v1/jobs/{job['id']}/cancel")
    post(api, status(40, seconds=20.0, loss=0.1), at=20.0)
    post(api, status(percent=100, seconds=25.0), at=25.0)
    (job,) = jobs(api)
    assert (job["directive"], job["step"]) == ("cancel", 30)
    train(api, begin=60.0, steps=(5,))
    assert len(jobs(api)) == 2, "the next training is another run"


def test_a_service_that_was_restarted_goes_on_where_it_was(serving: Serve) -> None:
    with serving() as api:
        train(api)
    with serving() as api:
        post(api, status(30, percent=30, seconds=15.0, loss=1 / 30), at=16.0)
        post(api, status(45, percent=45, seconds=20.0, loss=0.02), at=20.0)
        (job,) = jobs(api)
        assert samples(api, job["id"])[2:] == [(30, 10, 1 / 30), (45, 15, 0.02)]
        assert api.repository.samples.newest(job["id"], 1)[0].seconds == pytest.approx(5.0)


def test_two_replicas_that_are_told_in_turn_count_each_step_once(serving: Serve) -> None:
    with serving() as one, serving() as other:
        for number in range(1, 9):
            post((one, other)[number % 2], status(number * 10, seconds=5.0 * number, loss=0.5), at=5.0 * number)
        (job,) = jobs(one)
        assert [n_steps for _, n_steps, _ in samples(one, job["id"])] == [10] * 8


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, 422, "trainerStatus"),
        ({"trainerStatus": []}, 422, "trainerStatus"),
        ({"trainerStatus": {"metrics": {}}}, 422, "trainerStatus.metrics"),
        ({"trainerStatus": {"metrics": [{"name": "loss"}]}}, 422, "trainerStatus.metrics.0.value"),
        ({"trainerStatus": {"metrics": [{"name": "loss", "value": "low"}]}}, 422, "trainerStatus.metrics.0.value"),
        ({"trainerStatus": {"metrics": [{"value": 1}]}}, 422, "trainerStatus.metrics.0"),
        ({"resourceMetrics": {}}, 422, "resourceMetrics"),
        ([], 422, "body"),
    ],
)
def test_a_post_that_is_not_understood_makes_no_job(api: Api, body: Any, code: int, field: str) -> None:
    assert field in faults(api.post("/v1/track/bert", json=body), code)
    assert jobs(api) == []


def test_what_is_no_body_of_these_protocols_is_refused(api: Api) -> None:
    def sent(content: bytes, **headers: str) -> Any:
        return api.post("/v1/track/bert", content=content, headers=headers)

    problem(sent(b"{", **{"content-type": "application/json"}), 400)
    problem(sent(b"step 3", **{"content-type": "text/plain"}), 415)
    assert "body" in faults(sent(b"\xff\xff\xff", **PROTOBUF))
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    problem(sent(b"plain", **packed), 400)
    problem(sent(gzip.compress(b" " * 2_000_000), **packed), 400)
    whole = gzip.compress(json.dumps(exported(40, 0.2, 20.0)).encode())
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        assert "cut off" in problem(sent(whole[:cut], **packed), 400)["detail"], "and nothing is stored"
    problem(sent(b" " * 2_000_000, **{"content-type": "application/json"}), 413)
    assert "name" in faults(api.post("/v1/track/My_Run", json=status()))
    assert "projct" in faults(api.post("/v1/track/bert?projct=a", json=status()))
    assert jobs(api) == []


def test_the_address_says_how_large_the_run_is(api: Api) -> None:
    post(api, status(5), "bert?project=vision&workers=4&gpus=2&gpu_type=H100")
    (job,) = jobs(api)
    assert (job["project"], job["running"]["workers"]) == ("vision", 4)
    spec = api.repository.jobs.get(job["id"]).spec
    assert (spec["workers"]["resources"]["gpus"], spec["gpu_types"]) == (2, ["H100"])


def test_a_run_belongs_to_who_posts_and_needs_the_right_to_submit(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        add_user(api, "ann", {"vision": "member"})
        add_user(api, "bob", {"vision": "member", "speech": "member"})
        add_user(api, "eve", {"vision": "viewer"})
        ann, bob, eve = (add_token(api, name) for name in ("ann", "bob", "eve"))
        post(api, status(5), token=ann)
        post(api, status(7), "bert?project=vision", token=bob)
        assert "project" in faults(api.post("/v1/track/bert", json=status(), token=bob)), "bob has two projects"
        problem(api.post("/v1/track/bert?project=speech", json=status(), token=ann), 403)
        problem(api.post("/v1/track/bert?project=vision", json=status(), token=eve), 403)
        problem(api.post("/v1/track/bert", json=status(), token=""), 401)
        found = {each["owner"]: (each["project"], each["step"]) for each in jobs(api, token=ADMINISTRATOR)}
        assert found == {"ann": ("vision", 5), "bob": ("vision", 7)}
        records = api.get("/v1/audit", token=ADMINISTRATOR).json()["entries"]
        assert [(each["who"], each["action"]) for each in records] == [("bob", "job.track"), ("ann", "job.track")]
        post(api, status(9, seconds=5.0), token=ann, at=5.0)
        assert len(api.get("/v1/audit", token=ADMINISTRATOR).json()["entries"]) == 2, "only what is made is recorded"


# --- OpenTelemetry ---------------------------------------------------------------------------------------------------


def exported(step: int, loss: float, seconds: float) -> dict[str, Any]:
    def gauge(name: str, value: float) -> dict[str, Any]:
        return {
            "name": name,
            "gauge": {"dataPoints": [{"asDouble": value, "timeUnixNano": int((NOW + seconds) * 1e9)}]},
        }

    metrics = [gauge("train.step", step), gauge("train.loss", loss), gauge("train.total_steps", 100)]
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}


def test_metrics_of_opentelemetry_are_a_run_as_well(api: Api) -> None:
    for number in range(1, 4):
        post(api, exported(number * 10, 1 / number, 5.0 * number), at=5.0 * number)
    post(api, exported(30, 1 / 3, 15.0), at=16.0)
    (job,) = jobs(api)
    assert (job["step"], job["profile"]["total_steps"], job["profile"]["learned_from"]) == (30, 100, "otlp")
    assert samples(api, job["id"]) == [(10, 10, 1.0), (20, 10, 0.5), (30, 10, 1 / 3)]
    content = gzip.compress(json.dumps(exported(40, 0.2, 20.0)).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert api.post("/v1/track/bert", content=content, headers=headers).status_code == 200
    assert jobs(api)[0]["step"] == 40
    assert api.post("/v1/track/other", content=protobuf("step", 3.0), headers=PROTOBUF).status_code == 200
    assert jobs(api)[0]["step"] == 3


def protobuf(name: str, value: float) -> bytes:
    """One gauge, in protocol buffers' wire format."""

    def inside(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    point = bytes([4 << 3 | 1]) + struct.pack("<d", value)
    metric = inside(1, name.encode()) + inside(5, inside(1, point))
    return inside(1, inside(2, inside(2, metric)))


# --- MLflow ----------------------------------------------------------------------------------------------------------


def mlflow(api: Api, call: str, body: dict[str, Any], **options: Any) -> Any:
    answer = api.post(MLFLOW + call, json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def created(api: Api, **body: Any) -> str:
    experiment = mlflow(api, "experiments/create", {"name": "Translation"})["experiment_id"]
    asked = {"experiment_id": experiment, "run_name": "sly-fox-1", "start_time": 1000, **body}
    run: str = mlflow(api, "runs/create", asked)["run"]["info"]["run_id"]
    return run


def test_a_run_of_mlflow_is_a_job_from_its_creation_to_its_end(api: Api) -> None:
    run = created(api)
    assert created(api) == run, "a request that is repeated"
    assert created(api, start_time=2000) != run
    mlflow(api, "runs/log-parameter", {"run_id": run, "key": "max_steps", "value": "40"})
    for step in (1, 2, 2):
        api.surroundings.clock.now += 1.0
        mlflow(api, "runs/log-metric", {"run_id": run, "key": "lr", "value": 0.1, "step": step})
        mlflow(api, "runs/log-metric", {"run_id": run, "key": "train_loss", "value": 1 / step, "step": step})
    batch = [{"key": "train_loss", "value": 0.2, "step": step, "timestamp": 1000 * (NOW + step)} for step in (4, 3)]
    mlflow(api, "runs/log-batch", {"run_id": run, "metrics": batch})
    job = api.job(run)
    assert (job["name"], job["state"], job["step"]) == ("translation", "running", 4)
    assert (job["profile"]["total_steps"], job["profile"]["learned_from"]) == (40, "mlflow")
    assert [step for step, _, _ in samples(api, run)] == [1, 2, 3, 4]
    shown = api.get(f"{MLFLOW}runs/get?run_id={run}&run_uuid={run}").json()["run"]
    assert (shown["info"]["status"], shown["data"]["metrics"][0]["step"]) == ("RUNNING", 4)
    mlflow(api, "runs/update", {"run_id": run, "status": "FINISHED", "end_time": 5000})
    mlflow(api, "runs/log-metric", {"run_id": run, "key": "train_loss", "value": 0.1, "step": 9})
    mlflow(api, "runs/update", {"run_id": run, "status": "FAILED"})
    job = api.job(run)
    assert (job["state"], job["step"]) == ("succeeded", 4), "what comes after the end hurts nobody and is not counted"


def test_what_the_client_of_mlflow_measures_of_the_machine_is_no_step_of_the_training(api: Api) -> None:
    """With `enable_system_metrics_logging` it counts these figures by themselves, one each 10 s."""
    run = created(api)
    for counted in range(1, 13):
        api.surroundings.clock.now += 10.0
        of_machine = {"key": "system/cpu_utilization_percentage", "value": 50.0, "step": counted}
        loss = [{"key": "loss", "value": 1 / counted, "step": counted // 6}] if counted % 6 == 0 else []
        mlflow(api, "runs/log-batch", {"run_id": run, "metrics": [of_machine, *loss]})
    assert [(step, n_steps) for step, n_steps, _ in samples(api, run)] == [(1, 1), (2, 1)]
    assert api.job(run)["loss"] == 1 / 12


def test_losses_that_mlflow_logs_without_a_step_count_as_one_each(serving: Serve) -> None:
    """Its client says step 0 then; a request that is repeated, and a service that was restarted, change nothing."""

    def log(api: Api, minute: int) -> None:
        api.surroundings.clock.now = now = NOW + 60.0 * minute
        logged = {"run_id": run, "key": "loss", "value": 1 / minute, "step": 0, "timestamp": int(1000 * now)}
        for _ in range(2):
            mlflow(api, "runs/log-metric", logged)
        mlflow(api, "runs/log-metric", {**logged, "key": "val_loss", "value": 1.0})

    with serving() as api:
        run = created(api)
        for minute in range(1, 6):
            log(api, minute)
        assert samples(api, run) == [(each, 1, 1 / each) for each in range(1, 6)]
        assert [each.seconds for each in api.repository.samples.newest(run, 4)] == [60.0] * 4
    with serving() as api:
        for minute in range(6, 9):
            log(api, minute)
        assert [step for step, _, _ in samples(api, run)] == list(range(1, 9))


def test_steps_of_mlflow_that_begin_with_0_are_those_that_are_said(api: Api) -> None:
    run = created(api)
    for step in range(4):
        api.surroundings.clock.now += 60.0
        for name in ("loss", "val_loss"):
            mlflow(api, "runs/log-metric", {"run_id": run, "key": name, "value": 1.0, "step": step})
    mlflow(api, "runs/log-metric", {"run_id": run, "key": "loss", "value": 1.0})
    mlflow(api, "runs/log-metric", {"run_id": run, "key": "loss", "value": 1.0})
    assert [step for step, _, _ in samples(api, run)] == [1, 2, 3]


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    document=st.dictionaries(st.sampled_from(WORDS), ANY_JSON, max_size=4),
    place=st.sampled_from(["/v1/track/any/1", MLFLOW + "runs/log-batch", MLFLOW + "runs/create"]),
)
def test_any_document_is_taken_or_refused(api: Api, document: dict[str, Any], place: str) -> None:
    if "run_id" in document:
        document["run_id"] = created(api)
    answer = api.post(place, content=json.dumps(document).encode(), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 404, 422), answer.text


@pytest.mark.parametrize(("status", "said"), [("FAILED", "says that it failed"), ("KILLED", "that it was killed")])
def test_a_run_of_mlflow_that_failed_has_failed(api: Api, status: str, said: str) -> None:
    run = created(api)
    mlflow(api, "runs/update", {"run_id": run, "status": status})
    job = api.job(run)
    assert job["state"] == "failed"
    assert said in job["failure"]


def test_calls_of_mlflow_that_are_not_known_are_told(api: Api) -> None:
    for call in ("registered-models/create", "runs/link-model", "traces/search"):
        assert f"there is no call {call}" in problem(api.post(MLFLOW + call, json={}), 404)["detail"]
    assert "there is no run" in problem(api.post(MLFLOW + "runs/update", json={"run_id": "a"}), 404)["detail"]
    assert "there is no experiment" in problem(api.get(MLFLOW + "experiments/get?experiment_id=x"), 404)["detail"]
    problem(api.get(MLFLOW + "runs/create"), 404)
    assert "run_uuid" in faults(api.get(MLFLOW + "runs/get"))
    assert "metrics" in faults(api.post(MLFLOW + "runs/log-batch", json={"run_id": "a", "metrics": 3}))
    assert "start_time" in faults(api.post(MLFLOW + "runs/create", json={"start_time": "now"}))
    tags = [{"key": "optimus.workers", "value": "many"}]
    assert "tags.optimus.workers" in faults(api.post(MLFLOW + "runs/create", json={"tags": tags}))
    assert jobs(api) == []


def test_runs_of_mlflow_are_their_owners(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        for name, projects in (("ann", {"vision": "member"}), ("bob", {"vision": "member"}), ("eve", {})):
            add_user(api, name, projects)  # type: ignore[arg-type]  # the roles are of the type
        ann, bob, eve = (add_token(api, name) for name in ("ann", "bob", "eve"))
        run = mlflow(api, "runs/create", {"start_time": 1}, token=ann)["run"]["info"]["run_id"]
        logged = {"run_id": run, "key": "loss", "value": 1.0, "step": 1}
        problem(api.post(MLFLOW + "runs/log-metric", json=logged, token=bob), 403)
        assert api.get(f"{MLFLOW}runs/get?run_id={run}", token=bob).status_code == 200
        problem(api.get(f"{MLFLOW}runs/get?run_id={run}", token=eve), 404)
        problem(api.post(MLFLOW + "runs/create", json={}, token=eve), 403)
        mlflow(api, "runs/log-metric", logged, token=ann)
        scheduled = api.post("/v1/jobs", json={"name": "a", "project": "vision", "tracked": True}, token=ann).json()[
            "id"
        ]
        problem(api.post(MLFLOW + "runs/log-metric", json={**logged, "run_id": scheduled}, token=ann), 404)
