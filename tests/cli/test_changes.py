"""`optimus pause`, `resume`, `set`, `retry`, `delete`, and labels: what is sent, what is said."""

from __future__ import annotations

import json
from typing import cast

import pytest
from tests.cli import builders
from tests.cli.conftest import Answer, Optimus, ScriptedService, problem

from optimus_cli.bodies import Job, JobProfile

JOB = "digits-mlp-x7k2p"


@pytest.fixture
def service(scripted: ScriptedService) -> ScriptedService:
    scripted.has_job(builders.job())
    return scripted


def test_pause_says_what_becomes_of_the_job(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", f"/v1/jobs/{JOB}/pause", builders.job(state="running"))
    done = optimus("pause", JOB, "--url", service.url)
    assert done.stdout.startswith(f"{JOB} saves what it can and is paused then; `optimus resume {JOB}`")
    service.on("POST", f"/v1/jobs/{JOB}/pause", builders.job(state="paused"))
    assert optimus("pause", JOB, "--url", service.url).stdout.startswith(f"{JOB} is paused;")
    assert json.loads(optimus("pause", JOB, "--json", "--url", service.url).stdout)["state"] == "paused"
    service.on("POST", f"/v1/jobs/{JOB}/pause", problem(409, "the job has succeeded already"))
    refused = optimus("pause", JOB, "--url", service.url)
    assert (refused.exit_code, refused.stderr) == (1, "Error: the job has succeeded already\n")


def test_a_limit_of_time_runs_on_in_a_pause_and_ends_a_job_that_is_resumed_after_it(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    job = builders.job(state="paused", step=40)
    job["spec"] = {**job["spec"], "convergence": {"max_seconds": 20.0}}
    scripted.has_job(job)
    scripted.on("POST", f"/v1/jobs/{JOB}/pause", Answer(200, job))
    assert "; its limit of time runs on\n" in optimus("pause", JOB, "--url", scripted.url).stdout
    over = {**job, "limit_reached": "the time of its limit is over"}
    scripted.on("POST", f"/v1/jobs/{JOB}/resume", Answer(200, over))
    told = optimus("resume", JOB, "--url", scripted.url).stdout
    assert told.startswith(f"{JOB} ends as soon as a round gives it room: the time of its limit is over. With a")
    assert "goes on from" not in told
    assert "before it is resumed" in told
    scripted.has_job({**job, "state": "cancelled"})
    told = optimus("resume", JOB, "--url", scripted.url).stdout
    assert f". `optimus set {JOB}` with a larger limit before that lets it go on; `optimus retry {JOB}`" in told
    assert "before it is resumed" not in told, "nothing of an ended job can be changed"


def test_a_pause_asks_where_a_script_loses_its_steps_by_it(scripted: ScriptedService, optimus: Optimus) -> None:
    job = builders.job()
    lost = "86 steps (22 s of work)"
    job |= {
        "step": 86,
        "state": "running",
        "begins_anew": True,
        "started_at": job["created_at"],
        "lost_by_a_stop": lost,
    }
    scripted.has_job(job)
    scripted.on("POST", f"/v1/jobs/{JOB}/pause", Answer(200, job))
    calls = ["pause", JOB, "--url", scripted.url]
    declined = optimus(*calls, input="n\n")
    assert declined.exit_code == 1
    assert declined.stderr.startswith(f"Pause {JOB}? It is not known to go on from a checkpoint, and loses {lost}.")
    assert declined.stderr.endswith("Error: Nothing was paused.\n")
    nobody = optimus(*calls, "--json", input="")
    assert nobody.exit_code == 1
    assert "Nothing was paused: nobody answered; give --yes where nobody can" in nobody.stderr
    assert not [request for request in scripted.requests if request.method == "POST"]
    assert f"from its beginning, as far as is known; lost: {lost}\n" in optimus(*calls, input="y\n").stdout
    assert json.loads(optimus(*calls, "--json", "--yes").stdout)["id"] == JOB
    scripted.on("POST", f"/v1/jobs/{JOB}/resume", job)
    resume = ["resume", JOB, "--url", scripted.url]
    assert optimus(*resume).stdout == f"{JOB} trains already: nothing was changed\n"
    job = {**job, "state": "paused"}
    scripted.has_job(job)
    assert "goes on from step 0, as far as is known, as soon as a round gives it room" in optimus(*resume).stdout
    known: Job = {**job, "lost_by_a_stop": None}
    scripted.has_job(known)
    scripted.on("POST", f"/v1/jobs/{JOB}/pause", Answer(200, known))
    silent = optimus(*calls, input="")
    assert (silent.exit_code, silent.stderr, "lost" in silent.stdout) == (0, "", False)
    scripted.has_job({**job, "begins_anew": False})
    assert "goes on from its last checkpoint as soon as" in optimus(*resume).stdout


def test_a_script_that_began_from_an_older_checkpoint_begins_anew_there(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    job = builders.job()
    profile = cast(JobProfile, {"began_at_step": 20})
    job |= {"step": 47, "state": "running", "begins_anew": True, "started_at": job["created_at"], "profile": profile}
    scripted.has_job({**job, "lost_by_a_stop": "27 steps"})
    for change in ("pause", "resume"):
        scripted.on("POST", f"/v1/jobs/{JOB}/{change}", Answer(200, job))
    paused = optimus("pause", JOB, "--yes", "--url", scripted.url)
    assert "go on: from step 20, as far as is known; lost: 27 steps" in paused.stdout
    scripted.has_job({**job, "state": "paused"})
    assert "goes on from step 20, as far as is known," in optimus("resume", JOB, "--url", scripted.url).stdout


def test_set_sends_what_is_to_change_and_nothing_else(service: ScriptedService, optimus: Optimus) -> None:
    other = builders.job()
    other["spec"] = {**other["spec"], "priority": 4.0}
    before = builders.job()
    before["spec"] = {**before["spec"], "labels": {"try": "1", "team": "speech"}}
    service.has_job(before)
    service.on("PATCH", f"/v1/jobs/{JOB}", other)
    flags = ["--priority", "4", "--workers-max", "8", "--max-epochs", "9", "--label", "team=vision", "--name", "other"]
    taken = ["--unset", "deadline", "--unset", "labels.try"]
    done = optimus("set", JOB, *flags, *taken, "--url", service.url)
    assert done.exit_code == 0, done.stderr
    assert service.requests[-1].body == {
        "priority": 4.0,
        "workers": {"max": 8},
        "convergence": {"max_epochs": 9.0},
        "labels": {"team": "vision", "try": None},
        "name": "other",
        "unset": ["deadline"],
    }
    assert done.stdout == f"{JOB} is changed; `optimus describe {JOB}` says from what to what\n"
    ends: Job = {**other, "step": 90, "limit_reached": "it has made all the epochs of its limit"}
    service.on("PATCH", f"/v1/jobs/{JOB}", ends)
    at_once = optimus("set", JOB, "--max-epochs", "5", "--url", service.url).stdout
    assert at_once.startswith(
        f"{JOB} is changed and ends now, after step 90: it has made all the epochs of its limit; `opt"
    )
    service.on("PATCH", f"/v1/jobs/{JOB}", before)
    assert "is as it was" in optimus("set", JOB, "--priority", "1", "--url", service.url).stdout


def test_set_with_dry_run_changes_nothing_and_says_what_it_would_do(service: ScriptedService, optimus: Optimus) -> None:
    service.has_job(builders.job())
    effects, told = builders.plan()["effects"], ["With the next round it would have 3 workers instead of 2.", "Why."]
    service.on("POST", f"/v1/jobs/{JOB}/plan", {"sentences": told, "effects": effects})
    flags = ["set", JOB, "--workers-max", "8", "--dry-run", "--url", service.url]
    done = optimus(*flags)
    assert done.exit_code == 0, done.stderr
    assert [*told, "Jobs of another size", "other-1"] == [
        each for each in (*told, "Jobs of another size", "other-1") if each in done.stdout
    ]
    assert [request.body for request in service.requests if request.method != "GET"] == [{"workers": {"max": 8}}]
    assert json.loads(optimus(*flags, "--json").stdout)["sentences"] == told
    unsaved = [{**effects[0], "loses_since_checkpoint": True}]
    service.on("POST", f"/v1/jobs/{JOB}/plan", {"sentences": told, "effects": unsaved})
    assert "unless it saves" in optimus(*flags).stdout
    service.on("POST", f"/v1/jobs/{JOB}/plan", problem(422, "no", ("workers.max", "too many")))
    refused = optimus(*flags)
    assert (refused.exit_code, refused.stderr) == (2, "Error: --workers-max: too many\n")


def test_set_names_the_flag_that_is_refused(service: ScriptedService, optimus: Optimus) -> None:
    service.on("PATCH", f"/v1/jobs/{JOB}", problem(422, "no", ("workers.min", "too many")))
    done = optimus("set", JOB, "--workers-min", "64", "--url", service.url)
    assert (done.exit_code, done.stderr) == (2, "Error: --workers-min: too many\n")
    service.on("PATCH", f"/v1/jobs/{JOB}", problem(422, "no", ("unset.0", "must be one of these")))
    done = optimus("set", JOB, "--unset", "task", "--url", service.url)
    assert (done.exit_code, done.stderr) == (2, "Error: --unset: must be one of these\n")
    done = optimus("set", JOB, "--unset", "labels.none", "--url", service.url)
    assert (done.exit_code, done.stderr) == (2, f"Error: --unset labels.none: {JOB} has no such label; it has none.\n")
    nothing = optimus("set", JOB, "--url", service.url)
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "Say what is to change" in nothing.stderr


def test_retry_prints_the_new_jobs_id(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", f"/v1/jobs/{JOB}/retry", Answer(201, builders.job(id="digits-mlp-2")))
    done = optimus("retry", JOB, "--idempotency-key", "k", "--url", service.url)
    assert (done.exit_code, done.stdout) == (0, "digits-mlp-2\n")
    assert service.requests[-1].headers["idempotency-key"] == "k"


def test_delete_asks_before_it_deletes(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.has_job(builders.finished_job())
    scripted.on("DELETE", f"/v1/jobs/{JOB}", Answer(204, None))
    calls = ["delete", JOB, "--url", scripted.url]
    declined = optimus(*calls, input="n\n")
    assert declined.exit_code == 1
    assert declined.stderr.endswith("Error: Nothing was deleted.\n")
    nobody = optimus(*calls, input="")
    assert nobody.exit_code == 1
    assert "give --yes where nobody can" in nobody.stderr
    assert optimus(*calls, "--json", input="").exit_code == 1
    assert not [request for request in scripted.requests if request.method == "DELETE"]
    agreed = optimus(*calls, "--checkpoints", input="y\n")
    assert agreed.exit_code == 0
    assert agreed.stdout.endswith(f"deleted {JOB} and its checkpoints\n")
    assert scripted.requests[-1].query == {"checkpoints": "true"}
    assert optimus(*calls, "--yes").stdout == f"deleted {JOB}\n"
    assert json.loads(optimus(*calls, "--json", "--yes").stdout) == {"deleted": JOB, "checkpoints": False}


def test_it_is_said_what_delete_deletes(optimus: Optimus) -> None:
    assert "and what is at its --checkpoint-url" in " ".join(
        optimus("delete", "--help", env={"COLUMNS": "200"}).stdout.split()
    )


def test_an_active_job_is_refused_without_a_question(service: ScriptedService, optimus: Optimus) -> None:
    service.on("DELETE", f"/v1/jobs/{JOB}", problem(409, f"cancel it first (`optimus cancel {JOB}`)"))
    done = optimus("delete", JOB, "--url", service.url)
    assert (done.exit_code, done.stderr) == (1, f"Error: cancel it first (`optimus cancel {JOB}`)\n")


def test_labels_are_asked_for_and_shown(scripted: ScriptedService, optimus: Optimus) -> None:
    job = builders.job()
    job["spec"] = {**job["spec"], "labels": {"team": "vision", "try": ""}}
    scripted.has_job(job)
    done = optimus("list", "--label", "team=vision", "--url", scripted.url, env={"COLUMNS": "160"})
    assert scripted.requests[-1].query["label"] == "team=vision"
    assert {"team=vision", "try"} <= set(done.stdout.split())
    assert "team=vision, try" in optimus("describe", JOB, "--url", scripted.url, env={"COLUMNS": "160"}).stdout
