"""Projects: quotas given, shown, changed and taken away; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.api.api_harness import CORES, MEMORY_BYTES, NOW, Api, faults, job_spec, on_sqlite, problem
from tests.service.store.store_builders import set_wanted

from optimus_scheduler.model import Allocation, Directive, Node, PlacedTask, Resources, Role, TaskKey
from optimus_service.api.http import examples
from optimus_service.clusters.fake import FakeCluster

HALF = {"share": 0.5}
NO_LIMITS = {"waiting_jobs": None, "max_workers": None, "workers_together": None, "max_priority": None}


def put(api: Api, name: str, **quota: Any) -> dict[str, Any]:
    answer = api.call("PUT", f"/v1/projects/{name}", json=quota)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_quota_and_what_it_comes_to(api: Api) -> None:
    answer = api.call("PUT", "/v1/projects/vision", json=HALF)
    assert answer.status_code == 201
    assert answer.json() == {
        "name": "vision",
        "quota": {
            "share": 0.5, "cpu": None, "memory_bytes": None, "gpus": {}, "may_borrow": True,
            "limits": NO_LIMITS,
        },
        "guaranteed": {"cpu": CORES / 2, "memory_bytes": MEMORY_BYTES // 2, "gpus": {}},
        "shrunk": None,
        "used": {"cpu": 0.0, "memory_bytes": 0, "gpus": {}},
        "borrowed": {"cpu": 0.0, "memory_bytes": 0, "gpus": {}},
        "jobs": {},
        "updated_at": "2025-10-09T08:53:20Z",
    }  # fmt: skip
    assert api.get("/v1/projects/vision").json() == answer.json()
    assert api.surroundings.triggers == ["quota"]


def test_a_quota_is_replaced(api: Api) -> None:
    put(api, "vision", **HALF)
    answer = api.call("PUT", "/v1/projects/vision", json={"cpu": 2, "memory_bytes": "1Gi", "may_borrow": False})
    assert answer.status_code == 200
    expected: dict[str, Any] = {"share": None, "cpu": 2.0, "memory_bytes": 2**30, "gpus": {}, "may_borrow": False}
    assert answer.json()["quota"] == {**expected, "limits": NO_LIMITS}


def test_projects_are_listed_by_name(api: Api) -> None:
    assert api.get("/v1/projects").json() == {"projects": []}
    for name in ("vision", "text"):
        put(api, name, share=0.25)
    assert [one["name"] for one in api.get("/v1/projects").json()["projects"]] == ["text", "vision"]


def test_what_a_project_has_and_borrows(api: Api) -> None:
    put(api, "vision", cpu=2)
    job_id = api.submit(project="vision", workers={"resources": {"cpu": 1}}, servers={"resources": {"cpu": 1}})
    api.submit(project="text")
    set_wanted(api.repository, job_id, Allocation(3, 1), Directive.RUN, (), NOW)
    found = api.get("/v1/projects/vision").json()
    assert (found["used"]["cpu"], found["borrowed"]["cpu"], found["jobs"]) == (4.0, 2.0, {"starting": 1})


@on_sqlite
@pytest.mark.parametrize("may_borrow", [True, False])
def test_use_of_a_closed_node_within_the_quota_is_not_borrowed(api: Api, may_borrow: bool) -> None:
    """It is guaranteed while it stays there: nobody else could have it."""
    job_id = api.submit(project="vision", workers={"resources": {"cpu": 1}}, servers={"resources": {"cpu": 1}})
    put(api, "vision", cpu=3, may_borrow=may_borrow)
    put(api, "text", cpu=1)
    keys = [TaskKey(job_id, Role.WORKER, rank) for rank in range(3)]
    set_wanted(
        api.repository, job_id, Allocation(3, 0), Directive.RUN, tuple(PlacedTask(k, "node-1") for k in keys), NOW
    )
    api.repository.tasks.put([(key, "node-1", None) for key in keys], {}, NOW)
    cluster = api.surroundings.cluster
    cluster.lose_node("node-1")
    found = api.get("/v1/projects/vision").json()
    assert [found[part]["cpu"] for part in ("guaranteed", "used", "borrowed")] == [3.0, 3.0, 0.0]
    assert found["shrunk"] is None
    other = api.get("/v1/projects/text").json()
    assert other["shrunk"].startswith("its quota of 1 core comes to 0 cores now, because")
    put(api, "vision", cpu=2, may_borrow=may_borrow)
    assert api.get("/v1/projects/vision").json()["borrowed"]["cpu"] == 1.0
    cluster.empty_node("node-1")
    leaving = api.get("/v1/projects/vision").json()
    assert [leaving[part]["cpu"] for part in ("guaranteed", "borrowed")] == [0.0, 1.0], "nothing may stay there"
    cluster.return_node("node-1")
    assert api.get("/v1/projects/vision").json()["guaranteed"]["cpu"] == 2.0


@on_sqlite
def test_gpus_of_closed_nodes_are_not_said_to_be_none(api: Api) -> None:
    nodes = [Node("node-0", Resources(8, 2**36)), Node("node-1", Resources(8, 2**36, {"a100": 2}))]
    api.surroundings.cluster.__dict__.update(FakeCluster(nodes).__dict__)
    api.surroundings.cluster.lose_node("node-1")
    found = put(api, "speech", cpu=1, gpus={"a100": 2, "h100": 1})
    assert found["shrunk"] == "no open node has a100; the cluster has no h100"


def test_a_project_is_told_that_others_shrink_its_share_or_its_amounts(api: Api) -> None:
    put(api, "vision", **HALF)
    assert put(api, "text", cpu=CORES / 2)["shrunk"] is None
    text = put(api, "text", cpu=1.5 * CORES)
    why = "because the quotas of all projects together exceed what the open nodes have"
    assert text["shrunk"] == f"its quota of {1.5 * CORES:g} cores comes to {0.75 * CORES:g} cores now, {why}"
    share = api.get("/v1/projects/vision").json()
    assert share["shrunk"] == f"its quota of 50 % of the cluster comes to {0.25 * CORES:g} cores now, {why}"
    listed = api.get("/v1/projects").json()["projects"]
    assert {one["name"]: one["shrunk"] for one in listed} == {"text": text["shrunk"], "vision": share["shrunk"]}
    missing = put(api, "speech", gpus={"a100": 2})
    assert missing["shrunk"] == "the cluster has no a100"


def test_a_quota_is_taken_away_and_jobs_stay(api: Api) -> None:
    put(api, "vision", **HALF)
    job_id = api.submit(project="vision")
    assert api.call("DELETE", "/v1/projects/vision").status_code == 204
    problem(api.get("/v1/projects/vision"), 404)
    assert problem(api.call("DELETE", "/v1/projects/vision"), 404)["detail"] == "project 'vision' has no quota"
    assert api.job(job_id)["project"] == "vision"


@on_sqlite
def test_shares_of_more_than_everything_are_refused(api: Api) -> None:
    put(api, "vision", share=0.75)
    refused = api.call("PUT", "/v1/projects/text", json={"share": 0.5})
    assert faults(refused) == {"share": "the other projects have 75 % of the cluster: 25 % is left"}
    put(api, "text", share=0.25)
    put(api, "vision", share=0.5)


@on_sqlite
@pytest.mark.parametrize(
    ("quota", "field", "message"),
    [
        ({}, "body", "give at least one of share, cpu, memory_bytes, gpus"),
        ({"share": 1.5}, "share", "less than or equal to 1"),
        ({"share": "half"}, "share", "number"),
        ({"gpus": {"a100": -1}}, "gpus.a100", "greater than or equal to 0"),
        ({"memory_bytes": "much"}, "memory_bytes", "expected bytes or a size like 512Mi"),
        ({"cores": 4}, "cores", "allowed here: share, cpu, memory_bytes, gpus, may_borrow"),
    ],
)
def test_quotas_that_are_refused(api: Api, quota: dict[str, Any], field: str, message: str) -> None:
    found = faults(api.call("PUT", "/v1/projects/vision", json=quota))
    assert list(found) == [field]
    assert message in found[field]


@on_sqlite
def test_a_project_is_named_as_jobs_name_it(api: Api) -> None:
    assert "name" in faults(api.call("PUT", "/v1/projects/Vision!", json=HALF))


@on_sqlite
@pytest.mark.parametrize("name", examples.QUOTAS)
def test_the_examples_are_true(api: Api, name: str) -> None:
    put(api, "vision", **examples.QUOTAS[name]["value"])


# --- what a job may say of GPU types and deadlines -------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"gpu_types": ["a100", "a100"]}, "gpu_types", "names a type twice"),
        ({"gpu_types": ["a 100"]}, "gpu_types.0", "must have the form: letters, digits"),
        ({"gpu_types": ["a100"], "workers": {"resources": {"gpus": 1}}}, "gpu_types", "no GPU of these types"),
        ({"gpu_types": ["a100"]}, "gpu_types", "the workers ask for no GPU, so that no type counts"),
        ({"deadline": "tomorrow"}, "deadline", "expected a date and time like 2026-12-24T18:00:00Z"),
        ({"deadline": "2026-12-24T18:00:00"}, "deadline", "say which time it is"),
        ({"deadline": "9999-12-31T23:59:59.9Z"}, "deadline", "from 1970 to 9999 in UTC"),
        ({"deadline": "9999-12-31T23:59:59-14:00"}, "deadline", "from 1970 to 9999 in UTC"),
        ({"deadline": "0001-01-01T00:00:00+14:00"}, "deadline", "from 1970 to 9999 in UTC"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline", "is in the past"),
        ({"deadline_seconds": 0}, "deadline_seconds", "greater than or equal to 0.001"),
        ({"deadline_seconds": 60, "deadline": "2030-01-01T00:00:00Z"}, "body", "give one of"),
    ],
)
def test_specifications_that_are_refused(api: Api, spec: dict[str, Any], field: str, message: str) -> None:
    found = faults(api.post("/v1/jobs", json=job_spec(**spec)))
    assert list(found) == [field]
    assert message in found[field]


@on_sqlite
def test_deadlines_and_types_that_are_accepted(api: Api) -> None:
    gpus = {"a100": 2}
    api.surroundings.cluster.__dict__.update(FakeCluster([Node("node-0", Resources(8, 2**36, gpus))]).__dict__)
    job_id = api.submit(
        deadline="2030-01-01T01:00:00+01:00", gpu_types=["a100", "v100"], workers={"resources": {"gpus": 1}}
    )
    spec = api.job(job_id)["spec"]
    assert (spec["deadline"], spec["gpu_types"]) == ("2030-01-01T01:00:00+01:00", ["a100", "v100"])
