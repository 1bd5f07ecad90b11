"""One HTTP server on loopback for the channels that stock libraries open by themselves."""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings import mlflow, otlp
from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.mlflow import Unknown
from optimus_contract.readings.reading import Channel, Reading
from optimus_workers.script.channels.runs import Mlflow

MAX_BODY_BYTES = 4 * 1024 * 1024
REQUEST_SECONDS = 10.0
"""A request that takes longer to arrive is cut off."""
MAX_CONNECTIONS = 64
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
TOKEN_VARIABLE = "OPTIMUS_REPORT_TOKEN_FILE"  # noqa: S105 - the name of a variable
KUBEFLOW_PATH = "/kubeflow"
OURS = "optimus"
"""What a user writes as the address of MLflow's server or of OpenTelemetry's collector, to have it read here."""


class Channels:
    """The listener of one agent. Every request needs the token, which only the script's processes can read."""

    def __init__(self, on_reading: Callable[[Reading], None], directory: Path) -> None:
        """`on_reading` is called on threads of the listener. The token is written to a file in `directory`."""
        self._token = secrets.token_urlsafe(32)
        self._token_file = directory / TOKEN_NAME
        descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._token)
        self._server = _Server(self._token, on_reading, (directory / "mlflow").as_uri())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="channels", daemon=True
        )
        self._thread.start()

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables by which a script finds the channels. Beside `environment`, the script's own: its runs and
        metrics go where that says, and here only if it says `optimus`."""
        found = self.all_variables()
        for asked, prefix in (("MLFLOW_TRACKING_URI", "MLFLOW_"), ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_")):
            if environment.get(asked) != OURS:
                found = {name: value for name, value in found.items() if not name.startswith(prefix)}
        if "KUBEFLOW_TRAINER_SERVER_URL" in environment:
            found = {name: value for name, value in found.items() if not name.startswith("KUBEFLOW_")}
        return found

    def are_told_to(self, process: int) -> bool:
        """Whether a process was started with the variables of this listener, by whomever."""
        with suppress(OSError):
            told = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            return os.fsencode(f"{TOKEN_VARIABLE}={self._token_file}") in told
        return False

    def all_variables(self) -> dict[str, str]:
        """The variables by which libraries find all channels."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "OPTIMUS_REPORT_URL": url,
            TOKEN_VARIABLE: str(self._token_file),
            "KUBEFLOW_TRAINER_SERVER_URL": f"{url}{KUBEFLOW_PATH}",
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self._token_file),
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{url}{otlp.PATH}",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": f"authorization=Bearer%20{self._token}",
            "MLFLOW_TRACKING_URI": url,
            "MLFLOW_TRACKING_TOKEN": self._token,
        }

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        with suppress(OSError):
            self._token_file.unlink()


class BadRequest(ValueError):
    """What was sent is not what this path takes."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, token: str, on_reading: Callable[[Reading], None], artifacts: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.on_reading = on_reading
        self.kubeflow = Kubeflow()
        self.mlflow = Mlflow(artifacts)
        self.otlp = otlp.Otlp()
        self.turn = threading.Lock()  # guards these two
        self.turns = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", "-1"))
        except ValueError:
            length = -1
        if length < 0 or length > MAX_BODY_BYTES or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._answer(413 if length > MAX_BODY_BYTES else 411, {"title": "give Content-Length, 4 MiB at most"})
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        if self.headers.get("Content-Encoding", "") == "gzip":
            try:
                body = otlp.unzipped(body, MAX_BODY_BYTES)
            except ValueError as error:
                self._answer(400, {"title": "not understood", "detail": str(error)})
                return
        if self.path.partition("?")[0] == otlp.PATH:
            self._serve(lambda: body)
        else:
            self._serve(lambda: json.loads(body or b"{}"))

    def do_GET(self) -> None:
        """MLflow asks with GET; what it asks for stands in the query."""
        query = parse_qs(self.path.partition("?")[2], max_num_fields=100)
        self._serve(lambda: {name: values[-1] for name, values in query.items()})

    def _serve(self, document: Callable[[], Any]) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self._answer(401, {"title": "the token of this job's processes is needed"})
            return
        try:
            readings, answer = self._take(self.path.partition("?")[0], document())
        except Unknown as error:
            self._answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": str(error), "title": str(error)})
            return
        except (BadRequest, ValueError, RecursionError) as error:
            why = str(error)[:300]
            code = "INVALID_PARAMETER_VALUE"
            self._answer(400, {"error_code": code, "message": why, "title": "not understood", "detail": why})
            return
        for reading in readings:
            self.server.on_reading(reading)
        self._answer(204 if answer is None else 200, answer)

    def _take(self, path: str, document: Any) -> tuple[list[Reading], dict[str, Any] | None]:
        """What was reported, and the answer; None: there is none."""
        now, is_post = time.time(), self.command == "POST"
        if isinstance(document, bytes):
            points = otlp.points_of(document, self.headers.get("Content-Type", ""))
            with self.server.turn:
                return self.server.otlp.readings(points, now), {}
        if not isinstance(document, dict):
            raise BadRequest("the body must be a JSON object")
        if is_post and path == "/report":
            return report_readings(document, now), None
        if is_post and path.startswith(KUBEFLOW_PATH):
            found = self.server.kubeflow.reading(document, now)
            return [] if found is None else [found], {}
        if path.startswith(mlflow.PREFIX):
            with self.server.turn:
                answer, readings = self.server.mlflow.call(path.removeprefix(mlflow.PREFIX), document, now)
            return readings, answer
        raise Unknown("there is nothing here")

    def _answer(self, status: int, document: Mapping[str, Any] | None) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        if body:
            kind = "application/json" if status == 200 else "application/problem+json"
            self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """The script's output is the task's log; requests are not."""


# --- what optimus_client reports -------------------------------------------------------------------------------------


def report_readings(document: Mapping[str, Any], now: float) -> list[Reading]:
    """The readings of one `POST /report`. Raises `BadRequest`, which names the field."""
    rank = _whole("rank", document.get("rank"))
    total_steps = _whole("total_steps", document.get("total_steps"))
    total_epochs = _number("total_epochs", document.get("total_epochs"))
    resumes = document.get("resumes") is True
    said = Reading(
        channel=Channel.CLIENT,
        at=now,
        total_steps=total_steps,
        total_epochs=total_epochs,
        resumes=resumes,
        load_seconds=_number("load_seconds", document.get("load_seconds")),
        rank=rank,
    )
    listed = document.get("readings") or []
    if not isinstance(listed, list) or len(listed) > 10_000:
        raise BadRequest("readings must be a list of 10,000 objects at most")
    found = [_report_reading(each, rank, total_steps, total_epochs, resumes, now) for each in listed]
    stopped_at = _whole("stopped_at", document.get("stopped_at"))
    plan = _planned_rates(document.get("planned_rates"))
    if plan:
        found.append(replace(said, planned_rates=plan))
    if stopped_at is not None:
        took = _number("save_seconds", document.get("save_seconds"))
        stop = replace(said, total_steps=None, total_epochs=None, step=stopped_at, stopped=True, save_seconds=took)
        found.append(stop)
    elif not found or said.load_seconds is not None:
        found.append(said)
    return found


def _planned_rates(value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of a step and its learning rate."""
    listed = value or []
    if not isinstance(listed, list) or len(listed) > 10_000:
        raise BadRequest("planned_rates must be a list of 10,000 pairs at most")
    found = []
    for each in listed:
        if not isinstance(each, list) or len(each) != 2:
            raise BadRequest("planned_rates must be pairs of a step and a learning rate")
        step, rate = _whole("planned_rates", each[0]), _number("planned_rates", each[1])
        if step is None or rate is None:
            raise BadRequest("planned_rates must be pairs of a step and a learning rate")
        found.append((step, rate))
    return tuple(found)


def _report_reading(
    each: Any, rank: int | None, total_steps: int | None, total_epochs: float | None, resumes: bool, now: float
) -> Reading:
    if not isinstance(each, dict):
        raise BadRequest("each reading must be an object")
    at = _number("at", each.get("at"))
    metrics = each.get("metrics") or {}
    if not isinstance(metrics, dict):
        raise BadRequest("metrics must be an object of numbers")
    return Reading(
        channel=Channel.CLIENT,
        at=at if at is not None and 0 <= at <= now + 60.0 else now,
        step=_whole("step", each.get("step")),
        total_steps=total_steps,
        epoch=_number("epoch", each.get("epoch")),
        total_epochs=total_epochs,
        loss=_number("loss", each.get("loss"), finite=False),
        learning_rate=_number("learning_rate", each.get("learning_rate"), finite=False),
        examples=_whole("examples", each.get("examples")),
        metrics={str(name): value for name, each in metrics.items() if (value := _number(str(name), each)) is not None},
        resumes=resumes,
        rank=rank,
    )


def _whole(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise BadRequest(f"{name} must be a whole number from 0")
    return value


def _number(name: str, value: Any, *, finite: bool = True) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number")
    found = float(value)
    return None if finite and not math.isfinite(found) else found
