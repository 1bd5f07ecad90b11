"""The part of MLflow's tracking API that its stock client needs to log a run, so that logged metrics are read. Pure.

Experiments and runs live in memory, for as long as the agent does: nothing is kept for MLflow's own pages. So this
channel is for those who ask for it: scripts that log to a server or a folder of their own go on doing so.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optimus_contract.limits import MAX_COUNT
from optimus_workers.script.reading import Channel, Reading

PREFIX = "/api/2.0/mlflow/"
MAX_RUNS = 1_000
MAX_TEXTS = 2_000
"""Parameters and tags of one run."""
_LOSS = frozenset({"loss", "train_loss", "train/loss", "training_loss", "train_loss_step"})
_RATE = frozenset({"learning_rate", "lr", "train/learning_rate"})
_EVALUATED = ("eval", "val", "test")
_NOTHING = frozenset(
    {
        *("runs/set-tag", "runs/delete-tag", "runs/log-inputs", "runs/log-model", "runs/outputs", "experiments/update"),
        *("experiments/set-experiment-tag", "runs/delete", "runs/restore"),
    }
)
"""Calls that are answered and not kept."""

Json = dict[str, Any]


class Unknown(Exception):
    """What is asked for is not there."""


@dataclass(slots=True)
class _Run:
    info: Json
    metrics: dict[str, Json] = field(default_factory=dict)
    """The newest of each name."""
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def answer(self) -> Json:
        data = {
            "metrics": list(self.metrics.values()),
            "params": [{"key": key, "value": value} for key, value in self.params.items()],
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
        }
        return {"info": self.info, "data": data}


class Mlflow:
    """The experiments and runs of one agent."""

    def __init__(self, artifacts: str) -> None:
        """`artifacts`: the URI of a folder for what the client stores beside metrics."""
        self._artifacts = artifacts
        self._experiments: dict[str, str] = {"Default": "0"}
        self._runs: dict[str, _Run] = {}

    def call(self, path: str, body: Mapping[str, Any], at: float) -> tuple[Json, list[Reading]]:
        """The answer to one call below `PREFIX`, and what was logged. `at`: POSIX seconds.

        Raises:
            Unknown: there is no such call, experiment or run.
            ValueError: a field is missing or wrong; the message names it.
        """
        match path:
            case "experiments/create":
                return {"experiment_id": self._create_experiment(_text(body, "name"))}, []
            case "experiments/get-by-name":
                name = _text(body, "experiment_name")
                if name not in self._experiments:
                    raise Unknown(f"there is no experiment {name[:100]}")
                return {"experiment": self._experiment(name)}, []
            case "experiments/get":
                return {"experiment": self._experiment(self._name_of(_text(body, "experiment_id")))}, []
            case "experiments/search":
                return {"experiments": [self._experiment(name) for name in self._experiments]}, []
            case "runs/create":
                return {"run": self._create_run(body, at).answer()}, []
            case "runs/get":
                return {"run": self._run(body).answer()}, []
            case "runs/search":
                return {"runs": [run.answer() for run in self._runs.values()]}, []
            case "runs/update":
                run = self._run(body)
                run.info |= {name: body[name] for name in ("status", "end_time", "run_name") if name in body}
                return {"run_info": run.info}, []
            case "runs/log-parameter":
                _keep(self._run(body).params, body)
                return {}, []
            case "runs/log-metric":
                return {}, self._log(self._run(body), [body], at)
            case "runs/log-batch":
                run = self._run(body)
                for parameter in _listed(body, "params"):
                    _keep(run.params, parameter)
                return {}, self._log(run, _listed(body, "metrics"), at)
            case "metrics/get-history":
                newest = self._run(body).metrics.get(_text(body, "metric_key"))
                return {"metrics": [] if newest is None else [newest]}, []
        if path in _NOTHING:
            return {}, []
        raise Unknown(f"there is no call {path[:100]}")

    # --- experiments and runs ----------------------------------------------------------------------------------------

    def _create_experiment(self, name: str) -> str:
        if name not in self._experiments and len(self._experiments) >= MAX_RUNS:
            raise ValueError(f"there are {MAX_RUNS} experiments already")
        return self._experiments.setdefault(name, str(len(self._experiments)))

    def _experiment(self, name: str) -> Json:
        number = self._experiments[name]
        location = f"{self._artifacts}/{number}"
        return {"experiment_id": number, "name": name, "artifact_location": location, "lifecycle_stage": "active"}

    def _name_of(self, number: str) -> str:
        found = next((name for name, each in self._experiments.items() if each == number), None)
        if found is None:
            raise Unknown(f"there is no experiment {number[:100]}")
        return found

    def _create_run(self, body: Mapping[str, Any], at: float) -> _Run:
        number = str(body.get("experiment_id") or "0")
        self._name_of(number)
        if len(self._runs) >= MAX_RUNS:
            self._runs.pop(next(iter(self._runs)))
        run_id = uuid.uuid4().hex
        info = {
            "run_id": run_id,
            "run_uuid": run_id,
            "run_name": str(body.get("run_name") or "run")[:500],
            "experiment_id": number,
            "user_id": str(body.get("user_id") or "")[:500],
            "status": "RUNNING",
            "start_time": body.get("start_time") or int(at * 1000),
            "artifact_uri": f"{self._artifacts}/{number}/{run_id}",
            "lifecycle_stage": "active",
        }
        run = self._runs[run_id] = _Run(info)
        for tag in _listed(body, "tags"):
            _keep(run.tags, tag)
        return run

    def _run(self, body: Mapping[str, Any]) -> _Run:
        run_id = str(body.get("run_id") or body.get("run_uuid") or "")
        if run_id not in self._runs:
            raise Unknown(f"there is no run {run_id[:100]}")
        return self._runs[run_id]

    # --- metrics -----------------------------------------------------------------------------------------------------

    def _log(self, run: _Run, metrics: list[Mapping[str, Any]], at: float) -> list[Reading]:
        """Keep the newest of each, and read them, by step."""
        by_step: dict[int, dict[str, float]] = {}
        for metric in metrics:
            name, step = _text(metric, "key"), metric.get("step") or 0
            try:
                value, number = float(metric["value"]), int(step)
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"metric {name[:100]}: value must be a number, and step a whole number") from None
            if name in run.metrics or len(run.metrics) < MAX_TEXTS:
                shown = value if math.isfinite(value) else str(value)
                run.metrics[name] = {
                    "key": name,
                    "value": shown,
                    "step": number,
                    "timestamp": metric.get("timestamp") or int(at * 1000),
                }
            by_step.setdefault(number, {})[name] = value
        return [reading(step, values, at) for step, values in sorted(by_step.items()) if 0 <= step <= MAX_COUNT]


def reading(step: int, values: Mapping[str, float], at: float) -> Reading:
    """What metrics that were logged for one step say."""
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


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1_000:
        raise ValueError(f"{name} must be text of 1 to 1,000 characters")
    return value


def _listed(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f"{name} must be a list of objects")
    return found


def _keep(kept: dict[str, str], pair: Mapping[str, Any]) -> None:
    name = _text(pair, "key")
    if name in kept or len(kept) < MAX_TEXTS:
        kept[name] = str(pair.get("value"))[:6_000]
