"""A service that answers as a test says, over real HTTP, and the command line to call it with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer.main
from tests.cli import builders
from typer.testing import CliRunner, Result

from optimus_cli.app import app


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any


Handler = Callable[[Request], Any]


@dataclass
class ScriptedService:
    """Answers `(method, path)` by a value, an `Answer`, or a function of the request; everything else by 404."""

    url: str
    routes: dict[tuple[str, str], Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, answer: Any) -> None:
        self.routes[method, path] = answer

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        found = self.routes.get((request.method, request.path))
        if found is None:
            return problem(404, f"no {request.path}")
        answer = found(request) if callable(found) else found
        return answer if isinstance(answer, Answer) else Answer(200, answer)

    def has_job(self, job: Any) -> None:
        """Serve one job with all that belongs to it."""
        base = f"/v1/jobs/{job['id']}"
        self.on("GET", "/v1/jobs", {"jobs": [job], "next_cursor": None})
        self.on("GET", base, job)
        self.on("GET", f"{base}/allocations", {"allocations": [builders.allocation(1, 1, 1)]})
        self.on("GET", f"{base}/tasks", {"tasks": [builders.task("worker"), builders.task("server", usage=None)]})
        self.on("GET", f"{base}/events", {"events": [], "next_cursor": None})
        self.on("GET", f"{base}/decisions", {"decisions": [builders.decision()], "next_cursor": None})
        self.on("GET", f"{base}/predictions", builders.predictions())
        self.on("GET", f"{base}/explanation", builders.explanation(state=job["state"]))
        self.on("GET", f"{base}/logs", {"logs": [{"task": f"{job['id']}-worker-0-0", "text": "one\ntwo\n"}]})
        self.on("GET", "/v1/cluster", builders.cluster())
        self.on("GET", "/v1/promises", {"scores": [], "tasks": []})
        self.on("GET", "/v1/queue", {"jobs": [builders.queued_job()], "waiting": 3, "next_cursor": None})
        self.on("GET", "/v1/usage", builders.usage())
        self.on("GET", "/v1/nodes", {"nodes": [builders.node()]})
        self.on("GET", "/v1/whoami", {"name": "local", "role": "administrator", "projects": None})


def problem(status: int, detail: str, *errors: tuple[str, str]) -> Answer:
    named = [{"field": field, "message": message} for field, message in errors]
    return Answer(status, {"type": "x", "title": "t", "status": status, "detail": detail, "errors": named})


def _handler(service: ScriptedService) -> type[BaseHTTPRequestHandler]:
    class Handling(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
            answer = service.answer(request)
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond  # noqa: N815 -- the names that http.server calls

        def log_message(self, *args: Any) -> None:
            """Tests look at `ScriptedService.requests` instead."""

    return Handling


@pytest.fixture
def scripted() -> Iterator[ScriptedService]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    service = ScriptedService(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = _handler(service)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


Optimus = Callable[..., Result]
COMMAND: Any = typer.main.get_command(app)
"""Of a process that makes many calls; for each of them typer would make it anew, which takes longer than most calls."""


def all_commands(command: Any = COMMAND, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group by its words; the first is `optimus` itself, which has none."""
    inner = getattr(command, "commands", {})
    return [path, *(found for name, each in inner.items() for found in all_commands(each, (*path, name)))]


@pytest.fixture
def optimus(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Optimus:
    """Call the command line, which has no bugs: those are told on stderr with the traceback in a file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    for name in ("OPTIMUS_URL", "OPTIMUS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND)

    def call(*arguments: str, **options: Any) -> Result:
        done = CliRunner(env={"COLUMNS": "160", "TERM": "dumb"}).invoke(
            app, list(arguments), catch_exceptions=False, **options
        )
        assert "This is a bug in Optimus" not in done.stderr, done.stderr
        return done

    return call
