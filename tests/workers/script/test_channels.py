"""The channels that stock libraries open, with these libraries; and what is refused."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.mlflow import Unknown
from optimus_contract.readings.otlp import Otlp, points_of, unzipped
from optimus_contract.readings.progress import Progress
from optimus_contract.readings.reading import Channel, Reading
from optimus_workers.script.channels.listener import MAX_BODY_BYTES, BadRequest, Channels, report_readings
from optimus_workers.script.channels.runs import Mlflow


class Opened:
    """Open channels and what came through them."""

    def __init__(self, directory: Path) -> None:
        self.readings: list[Reading] = []
        self.channels = Channels(self.readings.append, directory)
        self.variables = self.channels.all_variables()
        self.token = Path(self.variables["OPTIMUS_REPORT_TOKEN_FILE"]).read_text()

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        address = urlsplit(self.variables["OPTIMUS_REPORT_URL"])
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        authorization = f"Bearer {self.token if token is None else token}"
        connection.request(method, path, content, {"Authorization": authorization})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.channels.close()


def test_what_the_client_reports_is_read(opened: Opened) -> None:
    body = {
        "rank": 0,
        "readings": [{"at": 5.0, "step": 7, "loss": math.nan, "examples": 64, "metrics": {"accuracy": 0.9}}],
        "total_steps": 1000,
        "stopped_at": 7,
        "resumes": True,
    }
    assert opened.call("POST", "/report", body) == (204, None)
    step, stopped = opened.readings
    assert (step.channel, step.step, step.at, step.examples, step.total_steps) == (Channel.CLIENT, 7, 5.0, 64, 1000)
    assert step.loss is not None
    assert math.isnan(step.loss)
    assert (stopped.step, stopped.stopped, stopped.resumes) == (7, True, True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "must be a JSON object"),
        (b"{", "Expecting"),
        ({"readings": 3}, "readings must be a list"),
        ({"readings": [3]}, "each reading must be an object"),
        ({"readings": [{"step": -1}]}, "step must be a whole number"),
        ({"readings": [{"step": True}]}, "step must be a whole number"),
        ({"readings": [{"loss": "low"}]}, "loss must be a number"),
        ({"stopped_at": 1.5}, "stopped_at must be a whole number"),
    ],
)
def test_a_wrong_report_is_refused_and_its_field_named(opened: Opened, body: Any, said: str) -> None:
    status, problem = opened.call("POST", "/report", body)
    assert status == 400
    assert said in problem["detail"]
    assert opened.readings == []


def test_nobody_reports_without_the_token(opened: Opened) -> None:
    for path in ("/report", "/kubeflow", "/api/2.0/mlflow/runs/create"):
        assert opened.call("POST", path, {"readings": []}, token="guessed")[0] == 401
    assert opened.call("GET", "/report")[0] == 404
    assert opened.readings == []
    mode = Path(opened.variables["OPTIMUS_REPORT_TOKEN_FILE"]).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_too_large_and_unfinished_requests_do_no_harm(opened: Opened) -> None:
    address = urlsplit(opened.variables["OPTIMUS_REPORT_URL"])
    lengths = (b"Content-Length: 99999999999", b"Content-Length: -5", b"Content-Length: x")
    for head in (*lengths, b"Transfer-Encoding: chunked"):
        with socket.create_connection((str(address.hostname), address.port or 0), timeout=10) as raw:
            raw.sendall(b"POST /report HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
            assert raw.recv(100).startswith((b"HTTP/1.1 411", b"HTTP/1.1 413"))
    for _ in range(200):
        with socket.create_connection((str(address.hostname), address.port or 0), timeout=10) as raw:
            raw.sendall(b"POST /report HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
    assert opened.call("POST", "/report", {"readings": []})[0] == 204


def test_transformers_own_callback_is_understood(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    integrations = pytest.importorskip("transformers.integrations.integration_utils")
    trainer_callback = pytest.importorskip("transformers.trainer_callback")
    for name in ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"):
        monkeypatch.setenv(name, opened.variables[name])
    callback = integrations.KubeflowCallback()
    callback._MIN_UPDATE_INTERVAL = 0.0
    state = trainer_callback.TrainerState(max_steps=100, global_step=0, is_world_process_zero=True)
    callback.on_train_begin(None, state, None)
    state.global_step = 60
    callback.on_log(None, state, None, logs={"loss": 0.5, "eval_accuracy": 0.75, "train_runtime": 3.0})
    callback.on_step_end(None, state, None)
    state.global_step = 61
    callback.on_step_end(None, state, None)
    begin, first, second = opened.readings
    assert (begin.step, begin.total_steps) == (None, 100)
    assert (first.step, first.total_steps, first.loss) == (60, 100, 0.5)
    assert dict(first.metrics) == {"eval_accuracy": 0.75}
    assert (second.step, second.loss) == (61, None), "an old loss is not one of this step"


def test_the_stock_client_of_mlflow_logs_a_run(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", opened.variables["MLFLOW_TRACKING_TOKEN"])
    mlflow.set_tracking_uri(opened.variables["MLFLOW_TRACKING_URI"])
    mlflow.set_experiment("translation")
    with mlflow.start_run(run_name="first"):
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"batch": 8, "depth": 2})
        mlflow.log_metric("train_loss", 0.5, step=1)
        mlflow.log_metrics({"train_loss": 0.4, "val_loss": 0.6, "epoch": 0.5}, step=2)
        mlflow.set_tag("who", "me")
    found = [(each.step, each.loss, dict(each.metrics)) for each in opened.readings]
    assert found == [(1, 0.5, {}), (2, 0.4, {"val_loss": 0.6})]
    assert opened.readings[-1].epoch == 0.5
    with pytest.raises(Exception, match="there is no run"):
        mlflow.get_run("nothing")


def test_the_stock_exporter_of_opentelemetry_is_understood(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="not installed")
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    for name, value in opened.variables.items():
        if name.startswith("OTEL_"):
            monkeypatch.setenv(name, value)
    for compression in ("none", "gzip"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", compression)
        reader = export.PeriodicExportingMetricReader(exporter.OTLPMetricExporter(), export_interval_millis=1e9)
        provider = metrics.MeterProvider(metric_readers=[reader])
        meter = provider.get_meter("training")
        meter.create_gauge("training.step").set(12)
        meter.create_gauge("training.loss").set(0.5)
        meter.create_counter("training.tokens").add(1000)
        meter.create_gauge("val_accuracy").set(0.75)
        provider.shutdown()
    assert len(opened.readings) == 2
    for reading in opened.readings:
        assert (reading.channel, reading.step, reading.loss) == (Channel.OTLP, 12, 0.5)
        assert dict(reading.metrics) == {"val_accuracy": 0.75}


def test_otlp_as_json_is_read_by_its_attribute() -> None:
    def gauge(name: str, value: float, step: int) -> dict[str, Any]:
        attributes = [{"key": "step", "value": {"intValue": str(step)}}]
        return {"name": name, "gauge": {"dataPoints": [{"asDouble": value, "attributes": attributes}]}}

    scope = {"metrics": [gauge("loss", 0.5, 3), gauge("loss", 0.4, 4), {"name": "other", "histogram": {}}]}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [scope]}]}).encode()
    found = Otlp().readings(points_of(body, "application/json; charset=utf-8"), 10.0)
    assert [(each.step, each.loss) for each in found] == [(3, 0.5), (4, 0.4)]


def test_a_packed_body_has_a_limit() -> None:
    assert unzipped(gzip.compress(b"{}"), 10) == b"{}"
    with pytest.raises(ValueError, match="not gzip"):
        unzipped(b"plain", 10)
    with pytest.raises(ValueError, match="more than"):
        unzipped(gzip.compress(b"0" * (MAX_BODY_BYTES + 1)), MAX_BODY_BYTES)
    assert unzipped(gzip.compress(b"0" * MAX_BODY_BYTES), MAX_BODY_BYTES) == b"0" * MAX_BODY_BYTES


@given(st.binary(max_size=200), st.data())
def test_a_packed_body_is_all_that_was_sent_or_refused(body: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(body)
    assert unzipped(packed, 200) == body
    with pytest.raises(ValueError, match="cut off"):
        unzipped(packed[: data.draw(st.integers(0, len(packed) - 1))], 200)
    with pytest.raises(ValueError, match="1 bytes follow"):
        unzipped(packed + b"x", 200)


@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/x-protobuf"]))
def test_any_export_is_read_or_refused(body: bytes, kind: str) -> None:
    with suppress(ValueError):
        Otlp().readings(points_of(body, kind), 1.0)


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["readings", "step", "metrics", "trainerStatus", "name", "value", "key", "run_id", "rank"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["readings", "rank", "total_steps", "planned_rates", "trainerStatus", "metrics", "run_id", "name"]),
    ANY_JSON,
    max_size=4,
)
CALLS = st.sampled_from(["experiments/create", "experiments/get", "runs/create", "runs/log-batch", "runs/get", "x"])


@given(DOCUMENTS, CALLS)
def test_any_document_is_read_or_refused(document: dict[str, Any], call: str) -> None:
    Kubeflow().reading(document, 1.0)
    with suppress(BadRequest):
        report_readings(document, 1.0)
    with suppress(Unknown, ValueError):
        Mlflow("file:///nowhere").call(call, document, 1.0)


def test_time_left_is_right_after_a_resume_where_the_callbacks_own_estimate_is_not(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of 1000 steps, 0.2 s each, goes on from step 500: at step 510 98 s are left."""
    integrations = pytest.importorskip("transformers.integrations.integration_utils")
    trainer_callback = pytest.importorskip("transformers.trainer_callback")
    for name in ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"):
        monkeypatch.setenv(name, opened.variables[name])
    sent: list[dict[str, Any]] = []
    callback = integrations.KubeflowCallback()
    update = callback._update_status

    def kept(**said: Any) -> Any:
        sent.append(said)
        return update(**said, force=True)

    monkeypatch.setattr(callback, "_update_status", lambda force=False, **said: kept(**said))
    clock = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    progress = Progress(clock[0], 500)
    state = trainer_callback.TrainerState(max_steps=1000, global_step=500, is_world_process_zero=True)
    callback.on_train_begin(None, state, None)
    for _ in range(10):
        clock[0] += 0.2
        state.global_step += 1
        callback.on_step_end(None, state, None)
    theirs = sent[-1]["estimated_time_remaining"]
    advances = [found for each in opened.readings for found in progress.add(each)]
    last = advances[-1]
    ours = (1000 - last.step) * sum(each.seconds for each in advances) / sum(each.n_steps for each in advances)
    assert last.step == 510
    assert ours == pytest.approx(98.0, rel=0.02)
    assert theirs < 3, "it divides the time since the resume by all steps"
