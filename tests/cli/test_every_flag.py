"""Every flag of every command times what nobody should give: never a traceback, never a bug of ours."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli import builders
from tests.cli.conftest import COMMAND, Answer, Optimus, Request, ScriptedService, problem

UGLY = ["nan", "inf", "-inf", "1e400", "-1", "9" * 40, "", "ünïcødé…𝔘", "\udcff"]
"""The last one is a byte that is not UTF-8, as Python gives it to a program."""
JOB = "digits-mlp-x7k2p"

Case = tuple[tuple[str, ...], str]


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), COMMAND)]
    while pending:
        words, command = pending.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
        else:
            pending += [((*words, name), each) for name, each in inner.items()]


def cases() -> list[Case]:
    """(command, flag that takes a value)."""
    return sorted(
        (words, parameter.opts[0])
        for words, command in commands()
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.is_flag
        if words != ("demo",)  # its one value is a directory, in which it would train for minutes
    )


ARGUMENTS: dict[tuple[str, ...], Sequence[str]] = {
    ("submit",): ["--task", "a:b"],
    ("project", "set"): ["team", "--share", "0.5"],
    ("project", "show"): ["team"],
    ("project", "delete"): ["team", "--yes"],
    ("export-trace",): ["-"],
}
"""What a command needs besides the flag; the others take a job, or nothing."""
WITH_A_JOB = {"describe", "explain", "logs", "predict", "cancel", "watch", "pause", "resume", "set", "retry", "delete"}


@pytest.fixture
def service(scripted: ScriptedService) -> ScriptedService:
    """Refuses what the real service would (its own tests say so), and takes any number that JSON can say."""
    ended = builders.job(state="succeeded", finished_at="2026-11-01T10:00:00Z")
    scripted.has_job(ended)
    scripted.on("POST", "/v1/jobs", _submitted)
    scripted.on("POST", "/v1/plan", problem(422, "no"))
    for call in ("cancel", "pause", "resume", "retry"):
        scripted.on("POST", f"/v1/jobs/{JOB}/{call}", ended)
    scripted.on("PATCH", f"/v1/jobs/{JOB}", _changed)
    scripted.on("DELETE", f"/v1/jobs/{JOB}", Answer(204, None))
    scripted.on("GET", "/v1/projects", {"projects": []})
    scripted.on("GET", "/v1/projects/team", problem(404, "no project"))
    scripted.on("PUT", "/v1/projects/team", problem(422, "no"))
    scripted.on("DELETE", "/v1/projects/team", Answer(404, {}))
    scripted.on("GET", "/v1/trace", Answer(200, b'{"end": {"jobs": 0, "active": 0, "unmeasured": 0}}\n'))
    return scripted


def _submitted(request: Request) -> Any:
    json.dumps(request.body, allow_nan=False)
    return problem(422, "no", ("priority", "bad"))


def _changed(request: Request) -> Any:
    json.dumps(request.body, allow_nan=False)
    return problem(422, "no", ("priority", "bad"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    """`serve` with flags that it accepts stops here: its port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def as_before() -> Iterator[None]:
    """`serve` sets up its process, which here is the test's."""
    handlers, level, mask = logging.getLogger().handlers[:], logging.getLogger().level, os.umask(0o077)
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    os.umask(mask)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("case", cases(), ids=lambda case: " ".join([*case[0], case[1]]))
def test_no_value_of_a_flag_makes_a_traceback(
    service: ScriptedService,
    taken_port: int,
    optimus: Optimus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
) -> None:
    words, flag = case
    monkeypatch.chdir(tmp_path)
    arguments = [*words, *ARGUMENTS.get(words, [JOB] if words[0] in WITH_A_JOB else [])]
    if words == ("serve",):
        arguments += ["--port", str(taken_port), "--data-directory", str(tmp_path / "data")]
    if words[0] in ("simulate", "study"):
        arguments += ["--trace", "no-such-trace", "--policy", "drf"] if words[0] == "simulate" else ["no-logs.csv"]
    if words[0] == "db":
        arguments += ["--data-directory", str(tmp_path / "data")]
    as_json = words not in (("serve",), ("stop",), ("project", "delete"), ("export-trace",))
    for value in UGLY:
        given = [*arguments, flag, value, *(["--json"] if as_json else [])]
        done = optimus(*given, env={} if flag == "--url" else {"OPTIMUS_URL": service.url})
        assert done.exit_code in (0, 1, 2), (given, done.output)
        if done.exit_code and done.stderr and as_json:
            said = json.loads(done.stderr.splitlines()[-1])["error"]
            assert said["exit_code"] == done.exit_code, given
            assert said["message"], given
