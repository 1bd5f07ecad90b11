"""The MLflow runs of one agent, in its memory."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimus_contract.readings import mlflow
from optimus_contract.readings.mlflow import Json, LoggedRun, Metric, NewRun, Unknown
from optimus_contract.readings.reading import Reading

MAX_RUNS = 1_000
MAX_NAMES = 2_000
"""Parameters, and names of metrics, of one run."""


@dataclass(slots=True)
class _Run:
    id: str
    new: NewRun
    artifacts: str
    changes: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Json] = field(default_factory=dict)
    """The newest of each name."""
    parameters: dict[str, str] = field(default_factory=dict)
    logged: LoggedRun = field(default_factory=LoggedRun)

    def body(self) -> Json:
        found = mlflow.run_body(
            self.id,
            self.new,
            artifacts=self.artifacts,
            metrics=list(self.metrics.values()),
            parameters=self.parameters,
            tags=self.new.tags,
        )
        found["info"] |= self.changes
        return found


class Mlflow:
    """Answers MLflow's client. Nothing is kept for MLflow's own pages, and nothing for longer than the agent lives: so
    this is for scripts that ask for it, and those that log to a server or a folder of their own go on doing so."""

    def __init__(self, artifacts: str) -> None:
        """`artifacts`: the URI of a folder for what the client stores beside metrics."""
        self._artifacts = artifacts
        self._runs: dict[str, _Run] = {}
        self._at = 0.0
        self._read: list[Reading] = []

    def call(self, path: str, body: Mapping[str, Any], at: float) -> tuple[Json, list[Reading]]:
        """The answer to one call, and what was logged. `at`: POSIX seconds. Raises as `mlflow.call` does."""
        self._at, self._read = at, []
        return mlflow.call(path, body, self), self._read

    def create(self, new: NewRun) -> Json:
        """See `Runs`."""
        if len(self._runs) >= MAX_RUNS:
            self._runs.pop(next(iter(self._runs)))
        run_id = uuid.uuid4().hex
        run = self._runs[run_id] = _Run(run_id, new, f"{self._artifacts}/{run_id}")
        run.changes["start_time"] = int(self._at * 1000) if new.started_at is None else new.started_at
        return run.body()

    def get(self, run_id: str) -> Json:
        """See `Runs`."""
        return self._run(run_id).body()

    def update(self, run_id: str, changes: Mapping[str, Any]) -> Json:
        """See `Runs`."""
        run = self._run(run_id)
        run.changes |= changes
        info: Json = run.body()["info"]
        return info

    def log(self, run_id: str, metrics: Sequence[Metric], parameters: Mapping[str, str]) -> None:
        """See `Runs`."""
        run = self._run(run_id)
        for metric in metrics:
            if metric.name in run.metrics or len(run.metrics) < MAX_NAMES:
                run.metrics[metric.name] = mlflow.metric_body(metric, self._at)
        for name, value in parameters.items():
            if name in run.parameters or len(run.parameters) < MAX_NAMES:
                run.parameters[name] = value
        self._read += run.logged.readings(metrics, parameters, self._at)

    def _run(self, run_id: str) -> _Run:
        if run_id not in self._runs:
            raise Unknown(f"there is no run {run_id[:100]}")
        return self._runs[run_id]
