"""The part of MLflow's tracking API that its stock client needs to log a run, so that logged metrics are read. Pure.

Nothing is kept for MLflow's own pages: experiments are names, and of a run the newest figures are answered. Where runs
are kept is for the caller to say (`Runs`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.reading import Announced, Channel, Reading, moment, of_parameters

PREFIX = "/api/2.0/mlflow/"
MAX_METRICS = 1_000
"""Of one call, as MLflow's own server takes."""
MAX_TAGS = 200
_LOSS = frozenset({"loss", "train_loss", "train/loss", "training_loss", "train_loss_step"})
_RATE = frozenset({"learning_rate", "lr", "train/learning_rate"})
_EVALUATED = ("eval", "val", "test")
_SYSTEM = "system/"
"""Before the names of what MLflow's client measures of the machine: it counts these by themselves, a step each 10 s."""
_NOTHING = frozenset(
    {
        *("runs/set-tag", "runs/delete-tag", "runs/log-inputs", "runs/log-model", "runs/outputs", "experiments/update"),
        "experiments/set-experiment-tag",
    }
)
"""Calls that are answered and not kept."""
DEFAULT_ID = "0"
_DEFAULT_NAME = "Default"
_LONGEST_NAME = 46
"""Bytes of an experiment's name that its id can say: the client takes ids of 64 characters."""
_UNNAMED = "experiment"
"""What an experiment with a longer name is called."""

Json = dict[str, Any]


class Unknown(Exception):
    """What is asked for is not there."""


class Metric(NamedTuple):
    """A number that was logged."""

    name: str
    value: float
    step: int
    timestamp: float | None
    """Milliseconds since 1970, of the client's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that is to be made."""

    experiment: str
    """Its name."""
    experiment_id: str
    name: str
    user: str
    started_at: int | None
    """Milliseconds since 1970, of the client's clock."""
    tags: Mapping[str, str]
    digest: str
    """Of the whole request: a repetition has the same."""


class Runs(Protocol):
    """Where runs are kept. Each method raises `Unknown` for a run that is not there."""

    def create(self, new: NewRun) -> Json:
        """What is known of the new run: `info` and `data`."""

    def get(self, run_id: str) -> Json:
        """What is known of a run: `info` and `data`."""

    def update(self, run_id: str, changes: Mapping[str, Any]) -> Json:
        """The run's `info` after a change of `status`, `end_time` or `run_name`."""

    def log(self, run_id: str, metrics: Sequence[Metric], parameters: Mapping[str, str]) -> None:
        """Keep what was logged."""


def call(path: str, body: Mapping[str, Any], runs: Runs) -> Json:
    """The answer to one call below `PREFIX`.

    Raises:
        Unknown: there is no such call, experiment or run.
        ValueError: a field is missing or wrong; the message begins with its name.
    """
    match path:
        case "experiments/create":
            return {"experiment_id": experiment_id(_text(body, "name"))}
        case "experiments/get-by-name":
            return {"experiment": _experiment(_text(body, "experiment_name"))}
        case "experiments/get":
            return {"experiment": _experiment(experiment_name(_text(body, "experiment_id")))}
        case "experiments/search":
            return {"experiments": [_experiment(_DEFAULT_NAME)]}
        case "runs/create":
            return {"run": runs.create(_new_run(body))}
        case "runs/get":
            return {"run": runs.get(_run_id(body))}
        case "runs/search":
            return {"runs": []}
        case "runs/update":
            changes = {name: _text(body, name) for name in ("status", "run_name") if body.get(name) is not None}
            changes |= {"end_time": body["end_time"]} if "end_time" in body else {}
            return {"run_info": runs.update(_run_id(body), changes)}
        case "runs/log-parameter":
            runs.log(_run_id(body), [], _pairs([body]))
            return {}
        case "runs/log-metric":
            runs.log(_run_id(body), [_metric(body)], {})
            return {}
        case "runs/log-batch":
            metrics = [_metric(each) for each in _listed(body, "metrics", MAX_METRICS)]
            runs.log(_run_id(body), metrics, _pairs(_listed(body, "params", MAX_METRICS)))
            return {}
        case "metrics/get-history":
            name, known = _text(body, "metric_key"), runs.get(_run_id(body))["data"]["metrics"]
            return {"metrics": [each for each in known if each["key"] == name]}
    if path in _NOTHING:
        return {}
    raise Unknown(f"there is no call {path[:100]}: of MLflow, runs, parameters and metrics are taken here")


# --- experiments: their ids say their names --------------------------------------------------------------------------


def experiment_id(name: str) -> str:
    """The id of the experiment of this name: letters, digits, - and _, 64 at most."""
    if name == _DEFAULT_NAME:
        return DEFAULT_ID
    raw = name.encode("utf-8", "replace")
    if len(raw) > _LONGEST_NAME:
        return "h" + hashlib.sha256(raw).hexdigest()[:40]
    return "n" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def experiment_name(number: str) -> str:
    """The name that an id says. Raises `Unknown`: no experiment has this id."""
    if number == DEFAULT_ID:
        return _DEFAULT_NAME
    if number[:1] == "h" and len(number) == 41:
        return _UNNAMED
    try:
        raw = base64.b64decode(number[1:] + "=" * (-len(number[1:]) % 4), altchars=b"-_", validate=True)
        name = raw.decode()
    except (binascii.Error, ValueError):
        name = ""
    if not name or experiment_id(name) != number:
        raise Unknown(f"there is no experiment {number[:100]}")
    return name


def _experiment(name: str) -> Json:
    number = experiment_id(name)
    location = f"mlruns/{number}"
    return {"experiment_id": number, "name": name, "artifact_location": location, "lifecycle_stage": "active"}


# --- runs ------------------------------------------------------------------------------------------------------------


def _new_run(body: Mapping[str, Any]) -> NewRun:
    number = str(body.get("experiment_id") or DEFAULT_ID)
    started_at = body.get("start_time")
    if started_at is not None and (isinstance(started_at, bool) or not isinstance(started_at, int)):
        raise ValueError("start_time must be a whole number of milliseconds")
    return NewRun(
        experiment=experiment_name(number),
        experiment_id=number,
        name=str(body.get("run_name") or "run")[:500],
        user=str(body.get("user_id") or "")[:500],
        started_at=started_at,
        tags=_pairs(_listed(body, "tags", MAX_TAGS)),
        digest=hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest(),
    )


def run_body(
    run_id: str,
    new: NewRun,
    *,
    status: str = "RUNNING",
    artifacts: str,
    metrics: Sequence[Mapping[str, Any]] = (),
    parameters: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Json:
    """A run as MLflow's client reads it. `artifacts`: the URI of a folder for what the client stores beside metrics;
    `metrics`: the newest of each name."""
    info = {
        "run_id": run_id,
        "run_uuid": run_id,
        "run_name": new.name,
        "experiment_id": new.experiment_id,
        "user_id": new.user,
        "status": status,
        "start_time": new.started_at,
        "artifact_uri": artifacts,
        "lifecycle_stage": "active",
    }
    data = {
        "metrics": [dict(each) for each in metrics],
        "params": [{"key": key, "value": value} for key, value in (parameters or {}).items()],
        "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()],
    }
    return {"info": info, "data": data}


def metric_body(metric: Metric, at: float) -> Json:
    """A metric as MLflow's client reads it; `at`: POSIX seconds, for one that names no time."""
    shown = metric.value if math.isfinite(metric.value) else str(metric.value)
    when = int(at * 1000) if metric.timestamp is None else int(metric.timestamp)
    return {"key": metric.name, "value": shown, "step": metric.step, "timestamp": when}


# --- what was logged -------------------------------------------------------------------------------------------------


class LoggedRun:
    """What one run logs. MLflow's client says step 0 where its caller names none: a loss that comes for step 0 again,
    while the run has logged no step above, has none."""

    def __init__(self) -> None:
        self._at_zero: dict[str, Metric] = {}
        """The newest loss of each name that came for step 0."""
        self._has_steps = False
        self._lacks_steps = False

    def readings(self, metrics: Sequence[Metric], parameters: Mapping[str, str], at: float) -> list[Reading]:
        """What one call logged, by step. `at`: POSIX seconds when it came."""
        by_step: dict[int, list[Metric]] = {}
        for metric in metrics:
            if 0 <= metric.step <= MAX_COUNT and not metric.name.startswith(_SYSTEM):
                by_step.setdefault(metric.step, []).append(metric)
        at_zero = by_step.pop(0, [])
        self._has_steps |= bool(by_step)
        found = self._for_zero(at_zero, at)
        found += [_reading_of(step, listed, at) for step, listed in sorted(by_step.items())]
        total = of_parameters(parameters).total_steps  # of epochs it is not known how long each is
        if total is not None:
            found.insert(0, Reading(channel=Channel.MLFLOW, at=at, announced=Announced(total)))
        return found

    def _for_zero(self, metrics: Sequence[Metric], at: float) -> list[Reading]:
        if self._has_steps:
            return [_reading_of(0, metrics, at)] if metrics else []
        lacked, before = self._lacks_steps, list(self._at_zero.values())
        together: list[dict[str, Metric]] = []
        for metric in metrics:
            known = self._at_zero.get(metric.name)
            if known is not None and metric.timestamp is not None and metric.timestamp == known.timestamp:
                continue  # a request that is repeated
            if metric.name in _LOSS:
                self._lacks_steps |= known is not None
                self._at_zero[metric.name] = metric
            if not together or metric.name in together[-1]:
                together.append({})
            together[-1][metric.name] = metric
        listed = [list(each.values()) for each in together]
        if self._lacks_steps and not lacked and before:
            listed.insert(0, before)  # it was taken for that of step 0
        return [_reading_of(None if self._lacks_steps else 0, each, at) for each in listed]


def _reading_of(step: int | None, metrics: Sequence[Metric], at: float) -> Reading:
    times = [each.timestamp / 1000 for each in metrics if each.timestamp is not None]
    return reading(step, {each.name: each.value for each in metrics}, moment(max(times, default=None), at))


def reading(step: int | None, values: Mapping[str, float], at: float) -> Reading:
    """What metrics that were logged together say; `step`: for which, None where none was named."""
    return Reading(
        channel=Channel.MLFLOW,
        at=at,
        step=step,
        loss=next((value for name, value in values.items() if name in _LOSS), None),
        epoch=values.get("epoch"),
        learning_rate=next((value for name, value in values.items() if name in _RATE), None),
        gradient_norm=values.get("grad_norm"),
        metrics={name: value for name, value in values.items() if name.startswith(_EVALUATED) and math.isfinite(value)},
    )


def _metric(document: Mapping[str, Any]) -> Metric:
    name = _text(document, "key")
    try:
        value, step = float(document["value"]), int(document.get("step") or 0)
        timestamp = None if document.get("timestamp") is None else float(document["timestamp"])
    except (KeyError, TypeError, ValueError, OverflowError):
        what = "value must be a number, step and timestamp whole numbers"
        raise ValueError(f"metrics: {name[:100]}: {what}") from None
    return Metric(name, value, step, timestamp if timestamp is not None and math.isfinite(timestamp) else None)


def _run_id(body: Mapping[str, Any]) -> str:
    return _text(body, "run_uuid") if not body.get("run_id") else _text(body, "run_id")


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1_000:
        raise ValueError(f"{name} must be text of 1 to 1,000 characters")
    return value


def _listed(body: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    found = body.get(name) or []
    if not isinstance(found, list) or len(found) > most or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f"{name} must be a list of {most:,} objects at most")
    return found


def _pairs(listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {_text(each, "key"): str(each.get("value"))[:6_000] for each in listed}
