"""`optimus project` and `optimus export-trace`, and what `submit` says of types and deadlines."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli import builders
from tests.cli.conftest import Answer, Optimus, ScriptedService, problem

from optimus_cli.commands.simulate import moment
from optimus_cli.errors import BadInput

VISION: dict[str, Any] = {
    "name": "vision",
    "quota": {"share": 0.25, "cpu": None, "memory_bytes": None, "gpus": {"a100": 8}, "may_borrow": False},
    "guaranteed": {"cpu": 16.0, "memory_bytes": 2**36, "gpus": {"a100": 8}},
    "used": {"cpu": 4.0, "memory_bytes": 2**32, "gpus": {"a100": 2}},
    "borrowed": {"cpu": 0.0, "memory_bytes": 0, "gpus": {}},
    "jobs": {"running": 2, "queued": 1},
    "updated_at": "2026-11-21T20:00:00Z",
}
PATH = "/v1/projects/vision"


@pytest.fixture
def service(scripted: ScriptedService, optimus: Optimus, monkeypatch: pytest.MonkeyPatch) -> ScriptedService:
    del optimus  # comes first: it clears the environment
    monkeypatch.setenv("OPTIMUS_URL", scripted.url)
    scripted.on("GET", "/v1/projects", {"projects": [VISION]})
    scripted.on("GET", PATH, VISION)
    scripted.on("PUT", PATH, VISION)
    scripted.on("DELETE", PATH, Answer(204, b""))
    return scripted


# --- project ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["list"], ["show", "vision"]], ids=" ".join)
def test_projects_for_people_and_programs(service: ScriptedService, optimus: Optimus, arguments: list[str]) -> None:
    for_people = optimus("project", *arguments)
    assert for_people.exit_code == 0, for_people.output
    for words in ("vision", "25 % of everything, 8 a100; may not borrow", "16 cores", "2 a100"):
        assert words in for_people.stdout
    found = json.loads(optimus("project", *arguments, "--json").stdout)
    assert found in (VISION, {"projects": [VISION]})


def test_no_project_has_a_quota(service: ScriptedService, optimus: Optimus) -> None:
    service.on("GET", "/v1/projects", {"projects": []})
    assert "No project has a quota" in optimus("project", "list").stdout


def test_flags_become_a_quota(service: ScriptedService, optimus: Optimus) -> None:
    flags = ["--share", "0.25", "--gpus", "a100=8", "--gpus", "t4=2", "--memory", "64Gi", "--no-borrow"]
    done = optimus("project", "set", "vision", *flags)
    assert done.exit_code == 0, done.output
    expected = {"share": 0.25, "memory_bytes": "64Gi", "gpus": {"a100": 8, "t4": 2}, "may_borrow": False}
    assert service.requests[-1].body == expected


def test_a_quota_can_be_tried_first(service: ScriptedService, optimus: Optimus) -> None:
    told = ["No job that runs would change its size."]
    service.on("POST", f"{PATH}/plan", {"sentences": told, "effects": []})
    done = optimus("project", "set", "vision", "--share", "0.5", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, f"{told[0]}\n")
    (sent,) = [request for request in service.requests if request.method != "GET"]
    assert (sent.method, sent.path, sent.body["share"]) == ("POST", f"{PATH}/plan", 0.5)


def test_limits_of_a_project_stay_and_go_one_by_one(service: ScriptedService, optimus: Optimus) -> None:
    limited = {"waiting_jobs": 5, "max_workers": None, "max_priority": 2.0}
    service.on("GET", PATH, {**VISION, "quota": {**VISION["quota"], "share": None, "gpus": {}, "limits": limited}})

    def sent(*flags: str) -> Any:
        done = optimus("project", "set", "vision", *flags)
        assert done.exit_code == 0, done.output
        return service.requests[-1].body["limits"]

    assert sent("--max-workers", "8") == {"waiting_jobs": 5, "max_workers": 8, "max_priority": 2.0}
    assert sent("--workers-together", "9")["workers_together"] == 9
    assert sent("--unset", "max-priority", "--max-waiting", "7") == {"waiting_jobs": 7}
    assert "at most waiting jobs 5, max priority 2; may not borrow" in optimus("project", "show", "vision").stdout


def test_a_guarantee_that_is_less_than_the_quota_is_told_so(service: ScriptedService, optimus: Optimus) -> None:
    why = "because the quotas of all projects together exceed what the open nodes have"
    less = f"its quota of 1 core comes to 0.57 cores now, {why}"
    shrunk = {**VISION, "shrunk": less}
    for arguments, answer in ((("show", "vision"), shrunk), (("list",), {"projects": [VISION, shrunk]})):
        assert "comes to" not in optimus("project", *arguments).stdout
        service.on("GET", PATH if "show" in arguments else "/v1/projects", answer)
        told = " ".join(optimus("project", *arguments).stdout.split())
        assert told.count(less) == 1
    assert f"vision: {less}." in told, "below the table"


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"waiting_jobs": 5}, "members; not administrators and operators, nor anybody where no tokens are needed"),
        ({"workers_together": 9, "max_priority": None}, "all its jobs"),
        ({"workers_together": 9, "max_priority": 2.0}, "no tokens are needed; workers together: all its jobs"),
        ({"waiting_jobs": None}, None),
    ],
)
def test_whom_the_limits_of_a_project_bind_is_told(
    service: ScriptedService, optimus: Optimus, limits: dict[str, float | None], told: str | None
) -> None:
    service.on("GET", PATH, {**VISION, "quota": {**VISION["quota"], "limits": limits}})
    shown = " ".join(optimus("project", "show", "vision").stdout.split())
    assert shown.count("limits hold for") == (told is not None)
    assert (told or "") in shown


def test_what_a_project_has_beyond_its_quota_is_borrowed_only_where_it_may_borrow(
    service: ScriptedService, optimus: Optimus
) -> None:
    """For the moment until a round, after its quota was made smaller."""
    over = {**VISION, "borrowed": {"cpu": 1.0, "memory_bytes": 0, "gpus": {}}}
    service.on("GET", PATH, over)
    assert "none; beyond its guarantee: 1 core, to be given back" in optimus("project", "show", "vision").stdout
    service.on("GET", PATH, {**over, "quota": {**VISION["quota"], "may_borrow": True}})
    assert "to be given back" not in optimus("project", "show", "vision").stdout


def test_what_the_service_refuses_is_told_by_the_flags(service: ScriptedService, optimus: Optimus) -> None:
    refused = ("cpu", "too many"), ("memory_bytes", "too much"), ("limits.waiting_jobs", "too few"), ("gpus", "none")
    service.on("PUT", PATH, problem(422, "the quota is not valid", *refused))
    done = optimus("project", "set", "vision", "--share", "0.5")
    told = "--cpu: too many", "--memory: too much", "--max-waiting: too few", "--gpus: none"
    assert done.exit_code == 2
    assert done.stderr.splitlines() == ["Error: the quota is not valid", *(f"  {each}" for each in told)]
    service.on("GET", "/v1/usage", problem(422, "month: must be a month", ("month", "must be a month")))
    assert optimus("usage", "--month", "2026-13").stderr.startswith("Error: --month: must be a month")
    bound = optimus("project", "set", "vision", "--share", "1.5").stderr
    assert "Invalid value for '--share': must be less than or equal to 1." in bound


def test_what_is_not_given_of_a_quota_stays(service: ScriptedService, optimus: Optimus) -> None:
    def sent(*flags: str) -> Any:
        done = optimus("project", "set", "vision", *flags)
        assert done.exit_code == 0, done.output
        return service.requests[-1].body

    assert sent("--cpu", "8") == {"share": 0.25, "cpu": 8.0, "gpus": {"a100": 8}, "may_borrow": False}
    assert sent("--borrow") == {"share": 0.25, "gpus": {"a100": 8}, "may_borrow": True}
    assert sent("--unset", "gpus") == {"share": 0.25, "may_borrow": False}
    nothing = optimus("project", "set", "vision", "--unset", "gpus", "--unset", "share")
    assert (nothing.exit_code, "would be guaranteed nothing" in nothing.stderr) == (2, True)
    service.on("GET", PATH, problem(404, "project 'vision' has no quota"))
    assert sent("--cpu", "8") == {"cpu": 8.0}
    service.on("GET", PATH, problem(503, "the database cannot be reached right now"))
    assert optimus("project", "set", "vision", "--cpu", "8").exit_code == 1


def test_a_quota_is_taken_away(service: ScriptedService, optimus: Optimus) -> None:
    had = "25 % of everything, 8 a100; may not borrow"
    question = f"Take the quota of vision away ({had})? It has 3 active jobs, without a guarantee then. [y/N]"
    for declined in (optimus("project", "delete", "vision", input=each) for each in ("n\n", "")):
        assert declined.exit_code == 1
        assert declined.stderr.startswith(question)
        assert "Nothing was deleted" in declined.stderr
    assert {request.method for request in service.requests} == {"GET"}
    for done in (optimus("project", "delete", "vision", "--yes"), optimus("project", "delete", "vision", input="y\n")):
        assert done.exit_code == 0
        assert done.stdout.endswith(f"vision has no quota any more; it had {had}\n")
    service.on("GET", PATH, problem(404, "project 'vision' has no quota"))
    missing = optimus("project", "delete", "vision")
    assert (missing.exit_code, missing.stderr) == (1, "Error: project 'vision' has no quota\n")


@pytest.mark.parametrize(
    "flags",
    [[], ["--gpus", "a100"], ["--gpus", "a100=many"], ["--gpus", "a100=-1"], ["--share", "2"], ["--unset", "speed"]],
    ids=" ".join,
)
def test_quotas_that_make_no_sense(service: ScriptedService, optimus: Optimus, flags: list[str]) -> None:
    assert optimus("project", "set", "vision", *flags).exit_code == 2
    assert not [request for request in service.requests if request.method == "PUT"]


# --- submit ----------------------------------------------------------------------------------------------------------


def test_types_and_deadlines_are_flags(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    flags = ["--gpu-types", "a100, v100", "--deadline", "2030-01-01T00:00:00Z", "--deadline-seconds", "60"]
    assert optimus("submit", "--task", "a:b", *flags).exit_code == 0
    body = service.requests[-1].body
    assert body["gpu_types"] == ["a100", "v100"]
    assert (body["deadline"], body["deadline_seconds"]) == ("2030-01-01T00:00:00Z", 60.0)


# --- export-trace ----------------------------------------------------------------------------------------------------

LINES = [{"nodes": [{"cpu": 4}]}, {"id": "a"}, {"id": "b"}]
END = {"end": {"jobs": 2, "active": 1, "unmeasured": 0}}


def told(*lines: Any) -> Answer:
    return Answer(200, "".join(json.dumps(line) + "\n" for line in lines).encode())


def test_a_trace_is_written_without_its_end(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    service.on("GET", "/v1/trace", told(*LINES, END))
    file = tmp_path / "month.jsonl"
    done = optimus("export-trace", str(file), "--since", "2026-11-01", "--project", "vision")
    assert done.exit_code == 0, done.output
    assert done.stderr == f"wrote 2 jobs to {file}; left out: 1 not ended yet\n"
    assert [json.loads(line) for line in file.read_text().splitlines()] == LINES
    assert service.requests[-1].query == {"since": "2026-11-01T00:00:00+00:00", "project": "vision"}


@pytest.mark.parametrize(
    ("name", "jobs", "is_told"),
    [("visoin", [], True), ("visoin", [builders.job()], False), ("vision", [], False), ("speech", [], False)],
)
def test_a_new_project_with_nearly_the_name_of_another_is_hinted_at(
    service: ScriptedService, optimus: Optimus, name: str, jobs: list[Any], is_told: bool
) -> None:
    """It is no error: a project needs no quota."""
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    service.on("GET", "/v1/jobs", {"jobs": jobs, "next_cursor": None})
    done = optimus("submit", "--task", "a:b", "--project", name)
    assert done.exit_code == 0
    told = f"Project {name} is new, and has no quota. Did you mean vision?\n"
    assert done.stderr == (told if is_told else "")


def test_a_submission_needs_no_list_of_projects(service: ScriptedService, optimus: Optimus) -> None:
    service.on("POST", "/v1/jobs", Answer(201, builders.job()))
    service.on("GET", "/v1/projects", problem(503, "the database cannot be reached right now"))
    done = optimus("submit", "--task", "a:b", "--project", "visoin")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_trace_can_be_piped(service: ScriptedService, optimus: Optimus) -> None:
    service.on("GET", "/v1/trace", told(*LINES, END))
    done = optimus("export-trace", "-")
    assert [json.loads(line) for line in done.stdout.splitlines()] == LINES


def test_half_a_trace_is_an_error(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    service.on("GET", "/v1/trace", told(*LINES))
    done = optimus("export-trace", str(tmp_path / "t.jsonl"))
    assert done.exit_code == 1
    assert "not complete" in done.stderr


def test_a_name_that_stands_for_another_format_is_refused(optimus: Optimus, tmp_path: Path) -> None:
    done = optimus("export-trace", str(tmp_path / "t.csv"))
    assert done.exit_code == 2
    assert "a trace is JSON lines: give a name such as" in done.stderr
    assert not (tmp_path / "t.csv").exists()


def test_refusals_are_said(service: ScriptedService, optimus: Optimus, tmp_path: Path) -> None:
    service.on("GET", "/v1/trace", problem(503, "the database cannot be reached right now"))
    done = optimus("export-trace", str(tmp_path / "t.jsonl"))
    assert (done.exit_code, done.stderr) == (1, "Error: the database cannot be reached right now\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2d", datetime(2026, 11, 19, 12, tzinfo=UTC)),
        ("12h", datetime(2026, 11, 21, 0, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T08:00:00+01:00", datetime(2026, 11, 1, 7, tzinfo=UTC)),
    ],
)
def test_moments(text: str, expected: datetime) -> None:
    assert moment(text, datetime(2026, 11, 21, 12, tzinfo=UTC)) == expected


@pytest.mark.parametrize("text", ["999999d", "99999999999d", "9" * 30 + "h", "9" * 5000 + "w"])
def test_a_moment_before_all_dates(text: str) -> None:
    with pytest.raises(BadInput, match="ago is before the year 1"):
        moment(text, datetime(2026, 11, 21, tzinfo=UTC))


def test_a_moment_that_is_none() -> None:
    with pytest.raises(BadInput, match="expected something like 30d"):
        moment("last week", datetime(2026, 11, 21, tzinfo=UTC))
