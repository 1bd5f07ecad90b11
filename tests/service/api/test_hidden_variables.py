"""Values of a job's variables are given to its tasks and to nobody who asks the service."""

from __future__ import annotations

import pytest
from tests.service.api.api_harness import Api, faults, job_spec

from optimus_contract.job import NOT_SHOWN

SECRET = "hf_a-value-that-must-stay-here"
READS = (
    *("", "/events", "/decisions", "/explanation", "/predictions"),
    *("/allocations", "/evaluations", "/curves", "/tasks", "/logs"),
)


@pytest.fixture
def job_id(api: Api) -> str:
    return api.submit(environment={"HF_TOKEN": SECRET, "EMPTY": ""})


def test_answers_have_the_names_of_variables_and_not_their_values(api: Api, job_id: str) -> None:
    told = [api.get(f"/v1/jobs/{job_id}{what}") for what in READS]
    told += [api.get("/v1/jobs"), api.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 2.0})]
    told += [api.post(f"/v1/jobs/{job_id}/{what}") for what in ("pause", "resume", "cancel", "retry")]
    assert {answer.status_code for answer in told} == {200, 201}
    assert [answer.url.path for answer in told if SECRET in answer.text] == []
    assert api.job(job_id)["spec"]["environment"] == {"HF_TOKEN": NOT_SHOWN, "EMPTY": NOT_SHOWN}


def test_submissions_and_conflicts_do_not_repeat_the_value(api: Api) -> None:
    spec = job_spec(environment={"HF_TOKEN": SECRET})
    answers = [api.post("/v1/jobs", json=each, headers={"Idempotency-Key": "k"}) for each in (spec, spec | {"seed": 1})]
    answers.append(api.post("/v1/jobs", json=spec | {"environment": {"OPTIMUS_X": SECRET}}))
    assert [answer.status_code for answer in answers] == [201, 409, 422]
    assert all(SECRET not in answer.text for answer in answers)


def test_what_runs_again_and_what_is_changed_keeps_its_values(api: Api, job_id: str) -> None:
    api.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 2.0})
    api.post(f"/v1/jobs/{job_id}/cancel")
    again = api.post(f"/v1/jobs/{job_id}/retry").json()["id"]
    for each in (job_id, again):
        assert api.repository.jobs.get(each).spec["environment"] == {"HF_TOKEN": SECRET, "EMPTY": ""}


def test_an_answer_that_is_submitted_as_it_came_is_refused(api: Api, job_id: str) -> None:
    answer = api.post("/v1/jobs", json=api.job(job_id)["spec"])
    assert "HF_TOKEN" in faults(answer)["environment"]
