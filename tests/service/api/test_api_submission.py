"""POST /v1/jobs: what is accepted, and how everything else is refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.service.api.api_harness import CORES, Api, faults, job_spec, on_sqlite, problem

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.limits import MAX_BODY_BYTES
from optimus_scheduler.model import Node, Resources
from optimus_service.api.http.body import parse_json
from optimus_service.api.http.problems import Problem
from optimus_service.clusters.fake import FakeCluster

JSON = {"Content-Type": "application/json"}


def submit(api: Api, **spec: Any) -> Any:
    return api.post("/v1/jobs", json=job_spec(**spec))


# --- accepted --------------------------------------------------------------------------------------------------------


def test_an_accepted_job_is_queued_and_a_round_is_asked_for(api: Api) -> None:
    answer = submit(api, name="digits-cnn", workers={"max": 4})
    assert answer.status_code == 201
    job = answer.json()
    assert job["state"] == "queued"
    assert job["spec"]["workers"]["max"] == 4
    assert job["id"].startswith("digits-cnn-")
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert api.get(answer.headers["location"]).json() == job
    assert api.surroundings.triggers == ["submit"]


def test_two_jobs_of_one_name_have_different_ids(api: Api) -> None:
    assert api.submit(name="same") != api.submit(name="same")


def test_more_tasks_than_the_cluster_has_room_for_are_fine_as_a_maximum(api: Api) -> None:
    assert submit(api, workers={"min": 1, "max": 1024}).status_code == 201


def test_the_smallest_and_the_largest_that_fit_are_accepted(api: Api) -> None:
    assert submit(api, workers={"min": CORES - 1, "max": CORES, "resources": {"memory_bytes": 0}}).status_code == 201
    whole = {"cpu": 0.01, "memory_bytes": "4Gi"}
    assert submit(api, workers={"resources": whole}, servers={"resources": whole}).status_code == 201


def test_worker_without_a_core_is_refused_and_so_is_its_dry_run(api: Api) -> None:
    for path in ("/v1/jobs", "/v1/plan"):
        answer = api.post(path, json=job_spec(workers={"resources": {"cpu": 0}}))
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == ["workers.resources.cpu"]


def test_arguments_of_a_task_keep_their_types(api: Api) -> None:
    given = {"depth": 3, "rate": 0.5, "pretrained": True, "name": "x", "large": 10**40}
    answer = submit(api, task_args=given)
    assert answer.json()["spec"]["task_args"] == given
    assert answer.json()["spec"]["task_args"]["pretrained"] is True


def test_an_allreduce_job_has_no_servers_said_or_unsaid(api: Api) -> None:
    for servers in ({}, {"servers": {"min": 0, "max": 0}}):
        answer = submit(api, architecture="allreduce", compression="powersgd", **servers)
        assert answer.status_code == 201
        spec = answer.json()["spec"]
        assert (spec["architecture"], spec["servers"]["min"], spec["servers"]["max"]) == ("allreduce", 0, 0)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"architecture": "allreduce", "servers": {"min": 1, "max": 2}}, "has no servers"),
        ({"architecture": "allreduce", "mode": "async"}, "is sync"),
        ({"architecture": "allreduce", "compression": "topk"}, "is for servers"),
        ({"servers": {"min": 0, "max": 0}}, "says architecture: allreduce"),
        ({"compression": "powersgd"}, "is for architecture: allreduce"),
    ],
)
def test_what_does_not_fit_the_architecture_is_refused(api: Api, spec: dict[str, Any], words: str) -> None:
    answer = submit(api, **spec)
    assert answer.status_code == 422
    assert words in answer.text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scaling": "weak", "mode": "async"}, "scaling weak is for mode sync"),
        ({"warmup_epochs": 3.0}, "warmup_epochs is for scaling weak"),
        ({"scaling": "weak", "warmup_epochs": -1.0}, "greater than or equal to 0"),
        ({"max_gradient_norm": 0.0}, "greater than or equal to 0.000000001"),
        ({"checkpoint_url": "/just/a/path"}, "checkpoint_url"),
    ],
)
def test_options_of_training_that_make_no_sense_are_refused(api: Api, spec: dict[str, Any], words: str) -> None:
    answer = submit(api, **spec)
    assert answer.status_code == 422
    assert words in answer.text


ELASTIC = {"minimum": 16, "maximum": 64, "per_pass": 16}


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"elastic_batch": ELASTIC}, "elastic_batch", "the noise of the gradients, which a script does not measure"),
        ({"max_worker_batch_size": 8}, "max_worker_batch_size", "give global_batch_size as well"),
        ({"scaling": "weak", "tracked": True}, "scaling", "the size of a tracked job stays"),
        ({"warmup_epochs": 2.0}, "body", "warmup_epochs is for scaling weak"),
    ],
)
def test_a_batch_that_a_script_cannot_have_is_refused(api: Api, spec: dict[str, Any], field: str, words: str) -> None:
    script = {"name": "train", "command": ["torchrun", "train.py"]}
    assert words in faults(api.post("/v1/jobs", json={**script, **spec}))[field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("seed", 7), ("device", "cpu"), ("precision", "bf16"), ("overlap", False), ("checkpoint_seconds", 60.0)),
        *(("compile", True), ("evaluate_epochs", 1.0)),
    ],
)
@pytest.mark.parametrize("how", [{"command": ["python", "train.py"]}, {"tracked": True}], ids=["script", "tracked"])
def test_what_no_script_reads_is_refused_of_scripts(api: Api, how: dict[str, Any], field: str, value: object) -> None:
    refused = faults(api.post("/v1/jobs", json={"name": "train", **how, field: value}))
    assert refused == {field: f"{field} is for jobs with a task: a script has arguments of its own for that"}
    unsaid = write(JobSpec(name="train"))[field]
    assert api.post("/v1/jobs", json={"name": "train", **how, field: unsaid}).status_code == 201, "as answers say it"


def test_the_batch_of_a_process_is_for_scripts(api: Api) -> None:
    assert "is for scripts" in faults(submit(api, max_worker_batch_size=8))["max_worker_batch_size"]
    assert "leave it out, as this job has a task" in faults(submit(api, resumes=True))["resumes"]


def test_options_of_training_are_kept(api: Api) -> None:
    given = {
        "scaling": "weak",
        "warmup_epochs": 2.0,
        "max_gradient_norm": 1.0,
        "checkpoint_url": "s3://bucket/checkpoints",
        "gradient_statistics": True,
    }
    answer = submit(api, **given)
    assert answer.status_code == 201
    assert {name: answer.json()["spec"][name] for name in given} == given


# --- repeated --------------------------------------------------------------------------------------------------------


def test_a_repetition_with_the_same_key_gives_the_same_job(api: Api) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = api.post("/v1/jobs", json=job_spec(), headers=headers)
    again = api.post("/v1/jobs", json=job_spec(), headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    assert api.surroundings.triggers == ["submit"]


def test_a_repetition_is_answered_though_the_job_would_not_be_accepted_any_more(api: Api) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = api.post("/v1/jobs", json=job_spec(), headers=headers)
    api.surroundings.cluster.broken_tasks["package.module:task"] = "no module named 'package'"
    again = api.post("/v1/jobs", json=job_spec(), headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_the_same_key_for_another_job_is_a_conflict(api: Api) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = api.post("/v1/jobs", json=job_spec(), headers=headers).json()
    answer = api.post("/v1/jobs", json=job_spec(seed=1), headers=headers)
    assert first["id"] in faults(answer, 409)["Idempotency-Key"]
    assert answer.json()["type"].endswith("idempotency-conflict")


@on_sqlite
@pytest.mark.parametrize("key", ["", "with space", "x" * 256, "trainingjob:mine"])
def test_unusable_keys_are_refused(api: Api, key: str) -> None:
    answer = api.post("/v1/jobs", json=job_spec(), headers={"Idempotency-Key": key})
    assert "Idempotency-Key" in faults(answer)


# --- the body's fields -----------------------------------------------------------------------------------------------

WRONG_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "Upper"}, "name", "lower-case letters, digits and -"),
    ({"name": "x" * 64}, "name", "at most 63"),
    ({"task": "no colon"}, "task", "package.module:name"),
    ({"wrokers": {}}, "wrokers", "allowed here: name, project, labels"),
    ({"workers": {"resources": {"cpus": 1}}}, "workers.resources.cpus", "allowed here: cpu, memory_bytes, gpus"),
    ({"workers": {"resources": {"cpu": -1}}}, "workers.resources.cpu", "greater than or equal to 0"),
    ({"servers": {"resources": {"memory_bytes": -5}}}, "servers.resources.memory_bytes", "greater than or equal to 0"),
    ({"servers": {"resources": {"memory_bytes": "5 apples"}}}, "servers.resources.memory_bytes", "512Mi"),
    ({"servers": {"resources": {"memory_bytes": "9" * 400 + "Gi"}}}, "servers.resources.memory_bytes", "512Mi"),
    ({"workers": {"resources": {"gpus": 1.5}}}, "workers.resources.gpus", "integer"),
    ({"workers": {"min": 0}}, "workers.min", "greater than or equal to 1"),
    ({"workers": {"max": 1025}}, "workers.max", "less than or equal to 1024"),
    ({"workers": {"min": 3, "max": 2}}, "workers", "min (3) must not be above max (2)"),
    ({"workers": []}, "workers", "object"),
    ({"workers": {"min": "many"}}, "workers.min", "integer"),
    ({"mode": "chaos"}, "mode", "'sync' or 'async'"),
    ({"convergence": {}}, "convergence", "at least one of loss_decrease, target_loss"),
    ({"convergence": {"target_metric": {"name": "acc"}}}, "convergence.target_metric", "one of at_least and at_most"),
    (
        {"convergence": {"target_metric": {"name": "acc", "at_least": 0.9, "best": 0.5}}},
        "convergence.target_metric",
        "best goes with at_least",
    ),
    ({"convergence": {"max_cost": 5.0}}, "convergence.max_cost", "the service has no prices"),
    ({"evaluate_epochs": 0}, "evaluate_epochs", "greater than or equal to 0.000000001"),
    ({"convergence": {"loss_decrease": {"below": 2}}}, "convergence.loss_decrease.below", "less than 1"),
    ({"convergence": {"target_loss": float("nan")}}, "convergence.target_loss", "finite"),
    ({"convergence": {"max_seconds": float("inf")}}, "convergence.max_seconds", "finite"),
    ({"priority": float("inf")}, "priority", "finite"),
    ({"priority": 0.001}, "priority", "greater than or equal to 0.01"),
    ({"priority": 1001}, "priority", "less than or equal to 1000"),
    ({"priority": float("nan")}, "priority", "finite"),
    ({"workers": {"resources": {"cpu": float("nan")}}}, "workers.resources.cpu", "finite"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"global_batch_size": 10**100}, "global_batch_size", "less than or equal to"),
    ({"task_args": {"rate": float("inf")}}, "task_args.rate", "finite number"),
    ({"task_args": {"sizes": [1]}}, "task_args.sizes", "must be a string, a finite number or a boolean"),
    ({"environment": {"OPTIMUS_TOKEN": "x"}}, "environment", "OPTIMUS_ are reserved"),
    ({"environment": {"A=B": "x"}}, "environment", "not a variable name"),
    ({"environment": {"A": 1}}, "environment.A", "string"),
    ({"environment": {"A": "x" * 200_000}}, "body", "100000 bytes"),
    ({"working_directory": "relative/path"}, "working_directory", "absolute path"),
    ({"environment": {"A": "\0"}}, "environment.A", "NUL"),
    ({"environment": {"A": "\ud800"}}, "environment.A", "surrogate"),
    ({"\ud800": 1}, "body", "surrogate"),
]


@on_sqlite
@pytest.mark.parametrize(("change", "field", "message"), WRONG_FIELDS, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named_with_what_is_allowed(api: Api, change: Any, field: str, message: str) -> None:
    body = json.dumps(job_spec(**change))  # unlike the client's own encoder, this one says NaN
    found = faults(api.post("/v1/jobs", content=body, headers=JSON))
    assert message in found[field], found


def test_all_wrong_fields_are_named_at_once(api: Api) -> None:
    found = faults(submit(api, name="No", priority=0, workers={"resources": {"cpu": -1}}))
    assert set(found) == {"name", "priority", "workers.resources.cpu"}


def test_missing_fields_are_named(api: Api) -> None:
    assert faults(api.post("/v1/jobs", json={})) == {"name": "is required"}
    assert faults(api.post("/v1/jobs", json={"name": "one"})) == {
        "task": "give task (a function that returns a TrainingTask) or command (a training script)"
    }


def test_nothing_is_stored_or_scheduled_for_a_refused_job(api: Api) -> None:
    assert submit(api, priority=-1).status_code == 422
    assert api.get("/v1/jobs").json()["jobs"] == []
    assert api.surroundings.triggers == []


# --- the code of the task --------------------------------------------------------------------------------------------


def test_a_task_that_cannot_be_loaded_is_refused_with_the_reason(api: Api) -> None:
    api.surroundings.cluster.broken_tasks["package.module:tusk"] = "package.module has no attribute 'tusk'"
    assert faults(submit(api, task="package.module:tusk")) == {"task": "package.module has no attribute 'tusk'"}


def test_bad_news_of_a_task_is_not_remembered(api: Api) -> None:
    broken = api.surroundings.cluster.broken_tasks
    broken["package.module:task"] = "SyntaxError"
    assert submit(api).status_code == 422
    broken.clear()
    assert submit(api).status_code == 201


# --- more than there is ----------------------------------------------------------------------------------------------

TOO_MUCH: list[tuple[dict[str, Any], str, str]] = [
    ({"workers": {"resources": {"cpu": 9}}}, "workers.resources.cpu", "asks for 9 CPU cores; the largest node has 8"),
    ({"servers": {"resources": {"memory_bytes": "16Gi"}}}, "servers.resources.memory_bytes", "has 8 GiB"),
    ({"workers": {"resources": {"gpus": 1}}}, "workers.resources.gpus", "has 0 GPUs (a service on one machine"),
    (
        {"workers": {"min": 9, "max": 9}, "servers": {"min": 1}},
        "workers.min",
        "the whole cluster has room for 8 of this size, without any servers",
    ),
    (
        {"workers": {"min": 5, "resources": {"cpu": 1.5}}, "servers": {"min": 1}},
        "workers.resources.cpu",
        "5 workers and 1 server need 8.5 CPU cores; the whole cluster has 8",
    ),
]


@on_sqlite
@pytest.mark.parametrize(("change", "field", "message"), TOO_MUCH)
def test_more_than_the_cluster_has_is_refused_with_the_limit(api: Api, change: Any, field: str, message: str) -> None:
    assert message in faults(submit(api, **change))[field]


def test_what_fits_no_single_node_is_refused(api: Api) -> None:
    nodes = [Node("cores", Resources(16, 2**30)), Node("memory", Resources(1, 64 * 2**30))]
    api.surroundings.cluster.__dict__.update(FakeCluster(nodes).__dict__)
    found = faults(submit(api, workers={"resources": {"cpu": 4, "memory_bytes": "8Gi"}}))
    assert "no node has all of this together" in found["workers.resources"]


def test_a_job_is_accepted_while_the_cluster_cannot_be_asked(api: Api) -> None:
    api.surroundings.cluster.available = False
    assert submit(api).status_code == 201


# --- the body as a whole ---------------------------------------------------------------------------------------------

NOT_JSON: list[tuple[bytes, str]] = [
    (b'{"name": "a",\n  "task" "m:f"}', "line 2, column 10"),
    (b"\n\n ", "line 3, column 2"),
    (b'{"name": "\xff"}', "byte 10 is not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
    (b"{'name': 1}", "line 1, column 2"),
]


@on_sqlite
@pytest.mark.parametrize(("body", "where"), NOT_JSON, ids=[where for _, where in NOT_JSON])
def test_what_is_not_json_is_refused_with_the_place(api: Api, body: bytes, where: str) -> None:
    answer = api.post("/v1/jobs", content=body, headers=JSON)
    assert where in faults(answer, 400)["body"]
    assert where in answer.json()["detail"]


def test_looking_for_bad_strings_in_a_deep_and_wide_body_takes_memory_for_its_depth_only() -> None:
    depth, width = 500, 20_000
    body = b"[" * depth + b"0," * width + b'"\\u0000"' + b"]" * depth
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match="NUL"):
            parse_json(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(body)  # a path for each value would be 80 MB


@on_sqlite
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"text"', b"3", b"NaN"])
def test_json_that_is_no_object_is_refused(api: Api, body: bytes) -> None:
    found = faults(api.post("/v1/jobs", content=body, headers=JSON))
    assert found["body"] in ("must be an object", "is required")


def test_a_byte_order_mark_does_no_harm(api: Api) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(job_spec()).encode()
    assert api.post("/v1/jobs", content=body, headers=JSON).status_code == 201


@on_sqlite
@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"', "utf8", ""])
def test_json_may_say_that_it_is_utf_8(api: Api, charset: str) -> None:
    headers = {"Content-Type": f"application/json; charset={charset}"}
    assert api.post("/v1/jobs", content=json.dumps(job_spec()).encode(), headers=headers).status_code == 201


@on_sqlite
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": 'application/json;version=1; Charset="latin-1"'},
        JSON | {"Content-Encoding": "gzip"},
    ],
)
def test_other_media_types_are_refused(api: Api, headers: dict[str, str]) -> None:
    answer = api.post("/v1/jobs", content=json.dumps(job_spec()).encode(), headers=headers)
    problem(answer, 415)


def test_a_large_body_is_refused_by_its_declared_length(api: Api) -> None:
    answer = api.post("/v1/jobs", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
    assert str(MAX_BODY_BYTES) in faults(answer, 413)["body"]


def test_a_large_body_of_unknown_length_is_read_only_up_to_the_limit(api: Api) -> None:
    chunk, sent = b" " * 65_536, 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += len(chunk)
            yield chunk

    assert str(MAX_BODY_BYTES) in faults(api.post("/v1/jobs", content=endless(), headers=JSON), 413)["body"]
    assert sent <= MAX_BODY_BYTES + 2 * len(chunk)


def test_a_body_of_exactly_the_limit_is_read(api: Api) -> None:
    body = json.dumps(job_spec()).encode().ljust(MAX_BODY_BYTES)
    assert api.post("/v1/jobs", content=body, headers=JSON).status_code == 201


def test_many_errors_are_not_all_repeated(api: Api) -> None:
    body = {"samples": [{"x" * 500: 1}] * 100}
    job_id = api.submit()
    found = problem(api.as_task("POST", job_id, "telemetry", json=body), 422)["errors"]
    assert len(found) == 50
    assert all(len(error["field"]) <= 200 for error in found)
