"""Every command against a service that answers over HTTP: what is asked, what is printed, the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli import builders
from tests.cli.builders import job as a_job
from tests.cli.conftest import Answer, Optimus, Request, ScriptedService, problem

from optimus_cli import resolve, watching
from optimus_cli.show import render_jobs
from optimus_contract.answers.jobs import ListedState
from optimus_contract.job import NOT_SHOWN

JOB = "digits-mlp-x7k2p"
REFUSED_PORT = "http://127.0.0.1:1"
READING = [
    ["list"],
    ["describe", JOB],
    ["explain", JOB],
    ["logs", JOB],
    ["nodes"],
    ["promises"],
    ["queue"],
    ["usage", "--month", "2026-11"],
    ["predict", JOB],
]


@pytest.fixture
def service(scripted: ScriptedService) -> ScriptedService:
    scripted.has_job(builders.job())
    return scripted


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_reading_commands_answer_people_and_programs(
    service: ScriptedService, optimus: Optimus, arguments: list[str]
) -> None:
    for_people = optimus(*arguments, "--url", service.url)
    assert for_people.exit_code == 0
    assert for_people.stdout
    assert not for_people.stderr
    for_programs = optimus(*arguments, "--json", env={"OPTIMUS_URL": service.url})
    assert for_programs.exit_code == 0
    json.loads(for_programs.stdout)
    assert not for_programs.stderr


@pytest.mark.parametrize("arguments", [*READING, ["cancel", JOB], ["watch", JOB], ["submit", "--task", "a:b"]])
def test_no_service_is_exit_code_1_and_one_message(optimus: Optimus, arguments: list[str]) -> None:
    done = optimus(*arguments, "--json", "--url", REFUSED_PORT)
    assert done.exit_code == 1
    assert done.stdout == ""
    said = json.loads(done.stderr)["error"]
    assert (said["exit_code"], said["errors"]) == (1, [])
    assert said["message"].startswith(f"No service answers at {REFUSED_PORT}")
    assert "optimus serve" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--state", "nonsense"],
        ["list", "--limit", "0"],
        ["describe"],
        ["nonsense"],
        ["predict", JOB, "--workers", "8-1"],
        ["predict", JOB, "--servers", "many"],
        ["submit"],
        ["submit", "no-such-file.yaml"],
        ["submit", "--task", "a:b", "--set", "nothing"],
        ["submit", "--task", "a:b", "--mode", "sometimes"],
        ["submit", "--task", "a:b", "--working-directory", "/no/such/place"],
        ["list", "--url", "http://[broken"],
        ["list", "--url", "localhost:8080"],
        ["list", "--url", "http://localhost:x"],
        ["serve", "--port", "-1"],
        ["serve", "--host", "0.0.0.0"],
        ["serve", "--policy", "nonsense"],
        ["serve", "--objective", "nonsense"],
        ["db", "upgrade", "--database-url", "mysql://x"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_code_2_and_no_traceback(
    service: ScriptedService, optimus: Optimus, arguments: list[str]
) -> None:
    done = optimus(*arguments, env={"OPTIMUS_URL": service.url})
    assert done.exit_code == 2
    assert done.stderr
    assert "Traceback" not in done.output
    assert not [request for request in service.requests if request.method == "POST"]


def test_answers_that_are_not_ours_are_said_to_be_so(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/nodes", Answer(200, b"<html>"))
    done = optimus("nodes", "--url", scripted.url)
    assert done.exit_code == 1
    assert "not an Optimus service" in done.stderr
    scripted.on("GET", "/v1/nodes", Answer(502, b"<html>"))
    assert "502 Bad Gateway" in optimus("nodes", "--url", scripted.url).stderr


def test_the_token_comes_from_the_environment(service: ScriptedService, optimus: Optimus) -> None:
    optimus("nodes", env={"OPTIMUS_URL": service.url, "OPTIMUS_TOKEN": "secret-secret-secret"})
    assert service.requests[-1].headers["authorization"] == "Bearer secret-secret-secret"
    service.on("GET", "/v1/nodes", problem(401, "a token is needed"))
    done = optimus("nodes", "--url", service.url)
    assert done.exit_code == 1
    assert "OPTIMUS_TOKEN" in done.stderr


def test_list_passes_filters_and_reads_pages_up_to_the_limit(scripted: ScriptedService, optimus: Optimus) -> None:
    def page(request: Request) -> Any:
        start = int(request.query.get("cursor", 0))
        size = min(int(request.query["limit"]), 100)
        jobs = [builders.job(id=f"job-{number}") for number in range(start, min(start + size, 250))]
        return {"jobs": jobs, "next_cursor": str(start + size) if start + size < 250 else None}

    scripted.on("GET", "/v1/jobs", page)
    listed = json.loads(optimus("list", "--limit", "120", "--json", "--url", scripted.url).stdout)["jobs"]
    assert [job["id"] for job in listed] == [f"job-{number}" for number in range(120)]
    everything = json.loads(optimus("list", "--all", "--json", "--url", scripted.url).stdout)["jobs"]
    assert len(everything) == 250
    optimus("list", "--state", "failed", "--project", "p", "--name", "n", "--url", scripted.url)
    filters = {"state": "failed", "project": "p", "name": "n"}
    assert filters.items() <= scripted.requests[-1].query.items()


ENTRY = {
    "id": 1, "at": "2026-11-27T10:00:00Z", "who": "ada", "token_id": None, "action": "job.change",
    "target": "x", "project": "vision", "request_id": "r", "data": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "path", "key", "make", "said"),
    [
        ("list", "/v1/jobs", "jobs", builders.job,
         "Only the newest 50 jobs are shown, and 2 older ones have not ended; --all or --limit N shows more."),
        ("queue", "/v1/queue", "jobs", builders.queued_job,
         "Only the first 50 jobs are shown; --all or --limit N shows more."),
        ("audit", "/v1/audit", "entries", lambda **_: ENTRY,
         "Only the newest 50 entries are shown; --limit N shows more."),
    ],
)  # fmt: skip
def test_a_list_that_is_cut_says_so(
    command: str, path: str, key: str, make: Any, said: str, scripted: ScriptedService, optimus: Optimus
) -> None:
    def page(request: Request) -> Any:
        start = int(request.query.get("cursor", 0))
        end = min(start + int(request.query["limit"]), 56)
        active = (3, 52, 55) if "state" in request.query else range(start, end)
        items = [make(id=f"job-{number}", name=f"job-{number}") for number in active]
        if "state" in request.query:
            return {key: items, "next_cursor": None}
        return {key: items, "waiting": 56, "next_cursor": str(end) if end < 56 else None}

    scripted.on("GET", path, page)
    cut = optimus(command, "--url", scripted.url)
    assert cut.stderr == said + "\n"
    assert "job-50" not in cut.stdout
    as_json = optimus(command, "--json", "--url", scripted.url)
    document = json.loads(as_json.stdout)
    assert (as_json.stderr, len(document[key]), document["more"]) == ("", 50, True)
    assert optimus(command, "--limit", "56", "--url", scripted.url).stderr == ""
    assert not json.loads(optimus(command, "--limit", "56", "--json", "--url", scripted.url).stdout)["more"]
    one = optimus(command, "--limit", "1", "--url", scripted.url).stderr
    assert one.startswith(
        f"Only the {'first' if command == 'queue' else 'newest'} {'job' if key == 'jobs' else 'entry'} is"
    )


def test_logs_of_more_tasks_than_are_served_say_how_to_see_the_others(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    scripted.has_job(builders.job())
    logs = [{"task": f"worker-{number}", "text": ""} for number in range(50)]
    scripted.on("GET", f"/v1/jobs/{JOB}/logs", {"logs": logs})
    told = optimus("logs", JOB, "--url", scripted.url).stderr
    assert told == "These are the newest 50 tasks; --task NAME shows an older one.\n"
    assert optimus("logs", JOB, "--json", "--url", scripted.url).stderr == ""


@pytest.mark.parametrize("state", get_args(ListedState))
def test_jobs_are_asked_for_by_the_state_that_is_shown(
    scripted: ScriptedService, optimus: Optimus, state: ListedState
) -> None:
    scripted.on("GET", "/v1/jobs", {"jobs": [a_job()], "next_cursor": None})
    assert optimus("list", "--state", state, "--json", "--url", scripted.url).exit_code == 0
    assert [each.query["state"] for each in scripted.requests] == [state]


def test_jobs_of_several_states_are_asked_for_together(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/jobs", {"jobs": [], "next_cursor": None})
    done = optimus("list", "--state", "running", "--state", "queued", "--url", scripted.url)
    assert done.stdout == "No job matches --state running --state queued.\n"


@pytest.mark.parametrize(
    ("job", "shown"),
    [
        ({"state": "queued", "wanted": {"workers": 0}}, "queued"),
        ({"state": "queued", "wanted": {"workers": 1}}, "starting"),
        ({"state": "paused", "wanted": {"workers": 1}}, "starting"),
        ({"state": "paused", "wanted": {"workers": 1}, "directive": "cancel"}, "paused"),
        ({"state": "queued", "wanted": {"workers": 0}, "reason": "PausedByOwner"}, "paused"),
    ],
)
def test_a_state_is_shown_as_on_the_page(job: dict[str, Any], shown: str) -> None:
    assert render_jobs.state_of(a_job(**job)).plain == shown


def test_an_empty_list_says_so(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/jobs", {"jobs": [], "next_cursor": None})
    done = optimus("list", "--url", scripted.url)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert "No jobs. Submit one" in done.stdout
    filtered = optimus("list", "--label", "team=x", "--state", "failed", "--url", scripted.url)
    assert (filtered.stdout, filtered.stderr) == ("No job matches --state failed --label team=x.\n", "")
    assert json.loads(optimus("list", "--json", "--url", scripted.url).stdout) == {"jobs": [], "more": False}


# --- naming jobs


@pytest.fixture
def two_jobs(scripted: ScriptedService) -> ScriptedService:
    jobs = [builders.job(id="cnn-big-aaaaa", name="cnn-big"), builders.job(id="cnn-bbbbb", name="cnn")]

    def listed(request: Request) -> Any:
        name, match = request.query.get("name", ""), request.query.get("match")
        is_whole = match in ("exact", "one")
        texts = {job["id"]: [job["name"]] if is_whole else [job["name"], job["id"]] for job in jobs}
        found = [
            job for job in jobs if any(text == name if is_whole else text.startswith(name) for text in texts[job["id"]])
        ]
        return {"jobs": found, "next_cursor": None}

    scripted.on("GET", "/v1/jobs", listed)
    for job in jobs:
        scripted.on("GET", f"/v1/jobs/{job['id']}", job)
        scripted.on("GET", f"/v1/jobs/{job['id']}/logs", {"logs": [{"task": job["id"], "text": ""}]})
    return scripted


@pytest.mark.parametrize(
    ("reference", "job_id"),
    [("cnn-bbbbb", "cnn-bbbbb"), ("cnn", "cnn-bbbbb"), ("cnn-bi", "cnn-big-aaaaa"), ("cnn-bb", "cnn-bbbbb")],
)
def test_jobs_go_by_id_name_and_beginning(
    two_jobs: ScriptedService, optimus: Optimus, reference: str, job_id: str
) -> None:
    done = optimus("logs", reference, "--json", "--url", two_jobs.url)
    assert json.loads(done.stdout)["logs"][0]["task"] == job_id


@pytest.mark.parametrize(
    ("reference", "exit_code", "message"),
    [("cn", 2, "cnn-big-aaaaa, cnn-bbbbb"), ("resnet", 1, "No job is called"), ("../x?y", 1, "lower-case")],
)
def test_unclear_names_are_refused(
    two_jobs: ScriptedService, optimus: Optimus, reference: str, exit_code: int, message: str
) -> None:
    done = optimus("describe", reference, "--url", two_jobs.url)
    assert done.exit_code == exit_code
    assert message in done.stderr


def test_of_several_jobs_of_one_name_the_service_chooses_and_the_choice_is_said(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    jobs = {"b": builders.job(id="cnn-bbbbb", name="cnn"), "a": builders.finished_job(id="cnn-aaaaa", name="cnn")}

    def listed(request: Request) -> Any:
        is_one = request.query.get("match") == "one"
        found = [jobs["b"]] if is_one and request.query["name"] == "cnn" else list(jobs.values())
        return {"jobs": [] if is_one and request.query["name"] != "cnn" else found, "next_cursor": None}

    scripted.on("GET", "/v1/jobs", listed)
    scripted.on("GET", "/v1/jobs/cnn-bbbbb/logs", {"logs": [{"task": "cnn-bbbbb", "text": ""}]})
    for reference in ("cnn", "cn"):
        done = optimus("logs", reference, "--json", "--url", scripted.url)
        assert json.loads(done.stdout)["logs"][0]["task"] == "cnn-bbbbb"
        assert done.stderr == (
            "Several jobs are called cnn: this is about cnn-bbbbb, the newest of them that is active.\n"
        )


@pytest.mark.parametrize("command", ["describe", "explain", "predict", "logs", "cancel", "resume", "watch"])
def test_a_wrong_name_costs_a_few_answers_of_one_page_and_names_the_nearest(
    scripted: ScriptedService, optimus: Optimus, command: str
) -> None:
    page = [builders.job(id=f"digits-cnn-{number:05}", name=f"digits-cnn-{number}") for number in range(100)]

    def listed(request: Request) -> Any:
        return {"jobs": [], "next_cursor": None} if "name" in request.query else {"jobs": page, "next_cursor": "more"}

    scripted.on("GET", "/v1/jobs", listed)
    done = optimus(command, "digits-cmm-7", "--url", scripted.url)
    assert done.exit_code == 1
    assert "No job is called 'digits-cmm-7'. Did you mean digits-cnn-7" in done.stderr
    assert len(scripted.requests) <= 4
    dotted = optimus(command, "digits-cnn.7", "--url", scripted.url)
    assert "letters, digits and - only. Did you mean digits-cnn-7" in dotted.stderr


# --- submit


def test_submit_prints_the_id_and_sends_a_key(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    arguments = ["submit", "--task", "pkg.net:Net", "--workers-max", "3", "--set", "lr=0.1", "--env", "A=1"]
    done = optimus(*arguments, "--url", service.url)
    assert (done.exit_code, done.stdout) == (0, JOB + "\n")
    request = service.requests[-1]
    assert request.body == {
        "name": "net",
        "task": "pkg.net:Net",
        "workers": {"max": 3},
        "task_args": {"lr": 0.1},
        "environment": {"A": "1"},
    }
    assert len(request.headers["idempotency-key"]) >= 16
    as_json = optimus(*arguments, "--json", "--idempotency-key", "mine", "--url", service.url)
    assert json.loads(as_json.stdout)["id"] == JOB
    assert service.requests[-1].headers["idempotency-key"] == "mine"


def test_a_refused_file_is_pointed_at(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\ntask: a:b\nworkers:\n  max: -3\n")
    service.on("POST", "/v1/jobs", problem(422, "not valid", ("workers.max", "must be above 0"), ("seed", "too big")))
    done = optimus("submit", str(file), "--seed", "99", "--url", service.url)
    assert done.exit_code == 2
    assert f"{file}:4:8: workers.max: must be above 0" in done.stderr
    assert "--seed: too big" in done.stderr
    assert done.stdout == ""


def test_a_broken_file_is_pointed_at(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{\n  "name": "x"\n  "task": "a:b"\n}')
    done = optimus("submit", str(file), "--url", service.url)
    assert done.exit_code == 2
    assert f"{file}:3:3: " in done.stderr


def test_a_lost_answer_is_asked_for_again_with_the_same_key(service: ScriptedService, optimus: Optimus) -> None:
    keys: list[str] = []

    def break_once(request: Request) -> Any:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise ConnectionAbortedError
        return Answer(201, builders.job())

    service.on("POST", "/v1/jobs", break_once)
    done = optimus("submit", "--task", "a:b", "--url", service.url)
    assert done.exit_code == 0
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_conflict_is_a_failed_operation(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", f"/v1/jobs/{JOB}/cancel", problem(409, "the job is succeeded already"))
    done = optimus("cancel", JOB, "--yes", "--url", service.url)
    assert done.exit_code == 1
    assert done.stderr == "Error: the job is succeeded already\n"


# --- watch


def ending(*jobs: Any) -> Callable[[Request], Any]:
    """Answers one after the other; the last one stays."""
    left = list(jobs)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        (builders.finished_job(), 0),
        (builders.finished_job(state="failed", failure="no data at /data/cats", result=None), 1),
        (builders.finished_job(state="cancelled", result=None), 1),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_watch_ends_with_the_job(service: ScriptedService, optimus: Optimus, end: Any, exit_code: int) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", ending(builders.job(), builders.job(), end))
    done = optimus("watch", JOB, "--interval", "0.05", "--url", service.url)
    assert done.exit_code == exit_code
    assert "digits-mlp: running 62 %" in done.stdout
    assert (end["failure"] or "") in done.stderr


def test_watch_json_is_a_line_per_look(service: ScriptedService, optimus: Optimus) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", ending(builders.job(), builders.job(), builders.finished_job()))
    done = optimus("watch", JOB, "--interval", "0.05", "--json", "--url", service.url)
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    assert [frame["jobs"][0]["state"] for frame in frames] == ["running", "succeeded"]
    assert frames[0]["cluster"]["policy"] == "optimus"


def test_watch_without_names_follows_what_is_active(service: ScriptedService, optimus: Optimus) -> None:
    def active(request: Request) -> Any:
        jobs = [builders.job()] if looks.pop(0) else []
        return {"jobs": jobs, "next_cursor": None}

    looks = [True, False]
    service.on("GET", "/v1/jobs", active)
    service.on("GET", f"/v1/jobs/{JOB}", builders.finished_job())
    done = optimus("watch", "--interval", "0.05", "--url", service.url)
    assert done.exit_code == 0
    assert "succeeded" in done.stdout


def test_ctrl_c_while_watching_says_that_the_job_goes_on(
    service: ScriptedService, optimus: Optimus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "follow", interrupted)
    done = optimus("watch", JOB, "--url", service.url)
    assert done.exit_code == 130
    assert f"{JOB} goes on; end it: optimus cancel {JOB}." in done.stderr
    assert "The jobs go on." in optimus("watch", "--url", service.url).stderr


def test_watch_with_nothing_active_says_so(service: ScriptedService, optimus: Optimus) -> None:
    service.on("GET", "/v1/jobs", {"jobs": [], "next_cursor": None})
    done = optimus("watch", "--url", service.url)
    assert done.exit_code == 0
    assert "No job is active" in done.stderr


def test_watch_survives_a_restart_of_the_service(service: ScriptedService, optimus: Optimus) -> None:
    def break_in_the_middle(_request: Request) -> Any:
        count.append(1)
        if len(count) == 3:
            raise ConnectionAbortedError
        return builders.job() if len(count) < 5 else builders.finished_job()

    count: list[int] = []
    service.on("GET", f"/v1/jobs/{JOB}", break_in_the_middle)
    done = optimus("watch", JOB, "--interval", "0.05", "--url", service.url)
    assert done.exit_code == 0
    assert len(count) == 5


def test_a_job_that_ends_while_its_events_are_read_is_described_as_ended(
    service: ScriptedService, optimus: Optimus
) -> None:
    """Its state was of before, its newest event of after that."""
    has_ended: list[bool] = []

    def events(_request: Request) -> Any:
        has_ended.append(True)
        ended = {"id": 9, "at": "2026-01-02T03:09:00Z", "type": "JobFailed", "message": "It failed.", "data": {}}
        return {"events": [ended], "next_cursor": None}

    failed = builders.job(state="failed", finished_at="2026-01-02T03:09:00Z")
    service.on("GET", f"/v1/jobs/{JOB}", lambda _: failed if has_ended else builders.job())
    service.on("GET", f"/v1/jobs/{JOB}/events", events)
    told = json.loads(optimus("describe", JOB, "--json", "--url", service.url).stdout)
    assert (told["state"], told["events"][0]["type"]) == ("failed", "JobFailed")
    assert len(has_ended) == 2, "asked for again, once"


def test_a_job_that_changes_all_the_time_is_described_nevertheless(service: ScriptedService, optimus: Optimus) -> None:
    asked: list[int] = []

    def changes(_request: Request) -> Any:
        asked.append(len(asked))
        return builders.job(membership_epoch=len(asked))

    service.on("GET", f"/v1/jobs/{JOB}", changes)
    assert optimus("describe", JOB, "--json", "--url", service.url).exit_code == 0
    assert len(asked) == 1 + resolve.MOST_LOOKS


def test_predictions_stand_beside_the_job_that_they_are_of(service: ScriptedService, optimus: Optimus) -> None:
    """It was told no time left, and not why, as it stood still between the two questions."""
    asked: list[bool] = []

    def predicted(_request: Request) -> Any:
        asked.append(True)
        return builders.predictions(remaining_seconds=None)

    still = "its workers hung once, after step 40"
    service.on("GET", f"/v1/jobs/{JOB}", lambda _: builders.job(standstill=still if asked else None))
    service.on("GET", f"/v1/jobs/{JOB}/predictions", predicted)
    told = " ".join(optimus("predict", JOB, "--url", service.url).stdout.split())
    assert "Its workers hung once, after step 40." in told
    assert len(asked) == 2


def test_resume_says_what_the_job_does_now(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", f"/v1/jobs/{JOB}/resume", Answer(200, builders.job(state="paused")))
    done = optimus("resume", JOB, "--url", service.url)
    assert (done.exit_code, done.stdout) == (
        0,
        f"{JOB} goes on from its last checkpoint as soon as a round gives it room\n",
    )
    result = {"checkpoint": "/d/checkpoints/manifest-000000000000.json"}
    service.has_job({**builders.job(state="failed", step=25), "result": result})
    assert (
        "goes on from its last checkpoint, of step 0 of 25, as soon"
        in optimus("resume", JOB, "--url", service.url).stdout
    )
    early = builders.job(state="failed", step=310, finished_at="2026-01-02T03:04:11Z")
    early |= {"spec": {**early["spec"], "checkpoint_seconds": 30.0}, "result": None}
    service.has_job(early | {"membership_epoch": 1})
    said = optimus("resume", JOB, "--url", service.url).stdout
    assert "which may be of step 0 of 310 (it trained for less than the 30 s between two), as soon" in said
    start, changed = builders.allocation(1, 1, 1), {**builders.allocation(2, 2, 1), "cause": "rescale"}
    service.on("GET", f"/v1/jobs/{JOB}/allocations", {"allocations": [start, changed]})
    said = optimus("resume", JOB, "--url", service.url).stdout
    assert "which may be of a step before 310, as soon" in said, "a change of its tasks may save"
    paused = {**builders.allocation(2, 0, 0), "cause": "pause", "step": 264}
    went_on = {**builders.allocation(4, 1, 1), "cause": "resume", "step": 264}
    service.on("GET", f"/v1/jobs/{JOB}/allocations", {"allocations": [start, paused, went_on]})
    said = optimus("resume", JOB, "--url", service.url).stdout
    assert "which may be of step 264 of 310 (it trained for less than the 30 s between two after that), as soon" in said
    spec = {**early["spec"], "task": None, "command": ["python", "train.py"]}
    service.has_job(early | {"spec": spec, "step": 0, "started_at": early["created_at"]})
    service.on("POST", f"/v1/jobs/{JOB}/resume", early | {"spec": spec, "step": 0, "begins_anew": False})
    said = optimus("resume", JOB, "--url", service.url).stdout
    assert said == f"{JOB} goes on as soon as a round gives it room\n", "it told no step"
    asked = optimus("delete", JOB, "--url", service.url, input="n\n").stderr
    assert asked.startswith(f"Delete {JOB} (failed, no step told)?")
    service.on("POST", f"/v1/jobs/{JOB}/resume", problem(409, "the job has no checkpoint: it never made a step"))
    done = optimus("resume", JOB, "--url", service.url)
    assert done.exit_code == 1
    assert "it never made a step" in done.stderr


def test_a_job_from_another_one_has_its_specification_unless_it_says_one(
    service: ScriptedService, optimus: Optimus
) -> None:
    spec = {"name": "digits", "task": "pkg.net:Net", "task_args": {"lr": 0.1}, "deadline_seconds": 9.0, "seed": 3}
    service.has_job(builders.job(spec=spec))
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", "--from", JOB, "--set", "lr=0.01", "--url", service.url)
    assert done.exit_code == 0, done.stderr
    assert service.requests[-1].body == {
        "name": "digits", "task": "pkg.net:Net", "task_args": {"lr": 0.01}, "seed": 3, "from_job": JOB,
    }  # fmt: skip
    service.has_job(builders.job(spec=spec | {"environment": {"HF_TOKEN": NOT_SHOWN}}))
    optimus("submit", "--from", JOB, "--env", "HF_TOKEN=hf_1", "--url", service.url)
    assert service.requests[-1].body["environment"] == {"HF_TOKEN": "hf_1"}
    optimus("submit", "--from", JOB, "--task", "pkg.other:Net", "--url", service.url)
    assert service.requests[-1].body == {"name": "net", "task": "pkg.other:Net", "from_job": JOB}
    done = optimus("submit", "--from", JOB, "--url", service.url, "--", "python", "loop.py")
    assert done.exit_code == 2
    assert "leave out --from, or what stands after --" in done.stderr
    service.on("POST", "/v1/jobs", problem(422, "no", ("from_job", "has no checkpoint")))
    done = optimus("submit", "--from", JOB, "--url", service.url)
    assert (done.exit_code, done.stderr) == (2, "Error: --from: has no checkpoint\n")


def test_a_dry_run_submits_nothing_and_says_what_would_happen(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", "/v1/plan", builders.plan())
    done = optimus("submit", "--task", "a:b", "--dry-run", "--url", service.url)
    assert done.exit_code == 0, done.stderr
    for part in ("1w+1p", "5.0 min (4.0–8.0)", "1.25", "other-1 would have less.", "3w+2p", "2w+2p"):
        assert part in done.stdout
    assert [(request.method, request.path) for request in service.requests] == [("POST", "/v1/plan")]
    as_json = optimus("submit", "--task", "a:b", "--dry-run", "--json", "--url", service.url)
    assert json.loads(as_json.stdout) == builders.plan()
    nothing = dict.fromkeys(("start_seconds", "finish_seconds", "finish_at"))
    service.on("POST", "/v1/plan", builders.plan(cost=None, effects=[], expected=nothing))
    assert "None" not in optimus("submit", "--task", "a:b", "--dry-run", "--url", service.url).stdout


@pytest.mark.parametrize("behind", [True, False])
def test_a_dry_run_that_goes_to_the_command_is_pointed_out(
    service: ScriptedService, optimus: Optimus, behind: bool
) -> None:
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", "--url", service.url, "--", "python", "train.py", *["--dry-run"] * behind)
    assert (done.exit_code, done.stdout) == (0, JOB + "\n")
    assert ("this is a submission: to ask only, put it before --" in done.stderr) == behind


def test_submit_and_watch(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    service.on("GET", f"/v1/jobs/{JOB}", builders.finished_job())
    done = optimus("submit", "--task", "a:b", "--watch", "--url", service.url)
    assert done.exit_code == 0
    assert done.stdout.startswith(JOB)
    as_json = optimus("submit", "--task", "a:b", "--watch", "--json", "--url", service.url)
    assert [json.loads(line)["jobs"][0]["state"] for line in as_json.stdout.splitlines()] == ["succeeded"]


# --- logs, predict, others


def test_logs_of_one_task(service: ScriptedService, optimus: Optimus) -> None:
    logs = [{"task": f"{JOB}-{task}", "text": f"I am {task}\n"} for task in ("worker-0-0", "server-0-0")]
    service.on("GET", f"/v1/jobs/{JOB}/logs", {"logs": logs})
    assert optimus("logs", JOB, "--task", "worker-0", "--url", service.url).stdout == (
        f"{JOB}-worker-0-0 | I am worker-0-0\n"
    )


def test_logs_end_with_the_newest_task(service: ScriptedService, optimus: Optimus) -> None:
    logs = [{"task": f"{JOB}-worker-0-{attempt}", "text": f"attempt {attempt}\n"} for attempt in (2, 1, 0)]
    service.on("GET", f"/v1/jobs/{JOB}/logs", {"logs": logs})
    told = optimus("logs", JOB, "--url", service.url).stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in told] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("job", "options", "told"),
    [
        ({"state": "queued", "started_at": None}, [], "No task of"),
        ({"spec": {"tracked": True}}, [], "trains outside the cluster"),
        ({"spec": {"tracked": True}}, ["--follow"], "trains outside the cluster"),
        ({"state": "cancelled", "started_at": None}, [], "ended before a task of it had started"),
        ({"state": "succeeded"}, [], "is kept any more"),
    ],
)
def test_why_a_job_has_no_log_is_told(
    service: ScriptedService, optimus: Optimus, job: dict[str, Any], options: list[str], told: str
) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", builders.job(id=JOB, **job))
    service.on("GET", f"/v1/jobs/{JOB}/logs", {"logs": []})
    assert told in optimus("logs", JOB, *options, "--url", service.url).stderr


def test_logs_follow_until_the_end(service: ScriptedService, optimus: Optimus) -> None:
    def log(text: str) -> Any:
        return {"logs": [{"task": "t", "text": text}]}

    service.on("GET", f"/v1/jobs/{JOB}", ending(builders.job(), builders.finished_job()))
    service.on("GET", f"/v1/jobs/{JOB}/logs", ending(log("one\n"), log("one\ntwo\n")))
    done = optimus("logs", JOB, "--follow", "--json", "--url", service.url)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["one\n", "two\n"]


def test_a_job_that_ends_between_two_questions_is_told_as_ended(service: ScriptedService, optimus: Optimus) -> None:
    nothing = dict.fromkeys(("total_steps", "error_percent", "held", "remaining_seconds"))
    nothing |= dict.fromkeys(("seconds_error_percent", "seconds_held"))
    review = [{**nothing, "at": builders.CREATED, "step": 650, "part": 0.5, "true_remaining_seconds": 45.0}]
    outcome = {"steps": 1300, "seconds": 90.0, "final_loss": 0.12, "metrics": {}, "cost": None, "review": review}
    service.on("GET", f"/v1/jobs/{JOB}/predictions", builders.predictions(outcome=outcome))
    service.on("GET", f"/v1/jobs/{JOB}/explanation", builders.explanation(state="succeeded"))
    for command, told in (
        ("predict", "Ended succeeded after 1 300 steps"),
        ("explain", "What was predicted, and what"),
    ):
        service.on("GET", f"/v1/jobs/{JOB}", ending(builders.job(), builders.finished_job()))
        done = optimus(command, JOB, "--url", service.url)
        assert told in " ".join(done.stdout.split())


def test_predict_draws(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    png = tmp_path / "new" / "left.png"
    done = optimus("predict", JOB, "--workers", "1-3", "--servers", "2", "--png", str(png), "--url", service.url)
    assert done.exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert service.requests[-2].query == {"workers": "1-3", "servers": "2-2"}, "then the job again"
    unwritable = optimus("predict", JOB, "--png", "/proc/no/left.png", "--url", service.url)
    assert unwritable.exit_code == 1


def test_version_and_help(optimus: Optimus) -> None:
    assert optimus("--version").stdout.strip() == "0.1.0"
    for arguments in (["--help"], ["-h"], ["submit", "--help"], ["db", "-h"]):
        assert optimus(*arguments).exit_code == 0


def test_completion_asks_the_service(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    from optimus_cli.options import complete_job

    monkeypatch.setenv("OPTIMUS_URL", service.url)
    assert complete_job("digits") == [(JOB, "running")]
    assert complete_job("other") == []
    monkeypatch.setenv("OPTIMUS_URL", REFUSED_PORT)
    assert complete_job("") == []


def test_completion_reaches_the_shell(service: ScriptedService, optimus: Optimus) -> None:
    asked = {"_OPTIMUS_COMPLETE": "complete_bash", "COMP_WORDS": "optimus describe dig", "COMP_CWORD": "2"}
    done = optimus(env={**asked, "OPTIMUS_URL": service.url}, prog_name="optimus")
    assert done.stdout.split() == [JOB]


def test_database_commands(optimus: Optimus, tmp_path: Path) -> None:
    directory = ["--data-directory", str(tmp_path / "data"), "--json"]
    before = optimus("db", "current", *directory)
    assert before.exit_code == 1
    assert json.loads(before.stdout)["revision"] is None
    assert not (tmp_path / "data").exists(), "looking creates nothing"
    for _ in range(2):
        upgraded = optimus("db", "upgrade", *directory)
        assert upgraded.exit_code == 0
    answer = json.loads(upgraded.stdout)
    assert answer["revision"] == answer["newest"]
    assert optimus("db", "current", *directory).exit_code == 0
    (tmp_path / "data" / "optimus.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    broken = optimus("db", "current", *directory)
    assert broken.exit_code == 1
    assert "cannot be used" in broken.stderr


def test_settings_complaints_name_their_source(optimus: Optimus) -> None:
    from_flag = optimus("serve", "--slots", "0")
    assert from_flag.exit_code == 2
    assert "--slots 0" in from_flag.stderr
    from_variable = optimus("serve", env={"OPTIMUS_ROUND_SECONDS": "soon"})
    assert from_variable.exit_code == 2
    assert "OPTIMUS_ROUND_SECONDS soon" in from_variable.stderr
    open_door = optimus("serve", "--host", "0.0.0.0")
    assert "OPTIMUS_TOKEN" in open_door.stderr
