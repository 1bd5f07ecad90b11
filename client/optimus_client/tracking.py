"""`track`: a training that runs anywhere, by its owner's own means, shown by the service like a job.

It is never disturbed: while the service is away reports wait in a bounded queue, and nothing here raises because of it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import reporting
from .calls import ApiError, OptimusError
from .client import Client
from .reporting import Reporter

__all__ = ["TrackedRun", "track", "tracked_spec"]

log = logging.getLogger("optimus_client")

EPOCH = 1
"""A tracked run has one membership, from its start to its end."""
ALIVE_SECONDS = 30.0
"""How often the service hears that the run goes on; it gives up one that it has not heard of for an hour."""
CLOSE_SECONDS = 5.0
"""How long the end of the run may wait for the service."""
RESUMED_STEPS = 1000
"""A run whose first report is beyond this step did not make all these steps itself."""
ROUNDED = 0.005
"""Passes over the data may be told with two decimals."""
MAX_COUNT = 2**53
MAX_ERROR = 8000


def tracked_spec(
    name: str | None = None,
    *,
    command: list[str] | None = None,
    project: str | None = None,
    workers: int = 1,
    gpus: int = 0,
    gpu_type: str | None = None,
) -> dict[str, Any]:
    """The specification of a job that is tracked. `workers`: processes that train together, each on `gpus` GPUs."""
    words = command or [word for word in sys.argv[:1] if word not in ("-c", "-m")]
    script = next((word for word in words if word.endswith(".py")), words[0] if words else "run")
    found: dict[str, Any] = {
        "name": name or _named(Path(script)),
        "tracked": True,
        "working_directory": str(Path.cwd()),
        "workers": {"min": workers, "max": workers, "resources": {"gpus": gpus}},
    }
    if command:
        found["command"] = list(command)
    if project is not None:
        found["project"] = project
    if gpu_type is not None:
        found["gpu_types"] = [gpu_type]
    return found


def _named(script: Path) -> str:
    """With a letter in it: `2.py` gives `2-py`."""
    stem, whole = (re.sub(r"[^a-z0-9]+", "-", part.lower())[:40].strip("-") for part in (script.stem, script.name))
    return next((each for each in (stem, stem and whole) if re.search("[a-z]", each)), "run")


class TrackedRun:
    """What `track` gives: the job under which the service shows the run."""

    def __init__(self, reporter: _Tracking | None) -> None:
        self._reporter = reporter

    @property
    def job_id(self) -> str | None:
        """None until the service has answered, inside a job of Optimus, and in processes other than the first."""
        return None if self._reporter is None else self._reporter.job_id

    def __repr__(self) -> str:
        return f"<TrackedRun {self.job_id}>"


@contextmanager
def track(
    name: str | None = None,
    *,
    project: str | None = None,
    workers: int | None = None,
    gpus: int = 0,
    gpu_type: str | None = None,
    total_steps: int | None = None,
    url: str | None = None,
    token: str | None = None,
) -> Iterator[TrackedRun]:
    """Show what `report` and the callbacks say in this block as a job that is watched and not scheduled.

    `name`: default, the script's. `workers`: processes that train together, default `WORLD_SIZE`, each on `gpus` GPUs
    of `gpu_type`. `total_steps`: after which the training ends. `url`, `token`: as of `Client`. Inside a job of
    Optimus, and in processes whose `RANK` is not 0, it does nothing.
    """
    rank = os.environ.get("RANK", "0")
    if os.environ.get("OPTIMUS_REPORT_URL") or rank not in ("", "0"):
        yield TrackedRun(None)
        return
    size = workers or int(os.environ.get("WORLD_SIZE") or 1)
    command = ["python", *sys.argv] if sys.argv[:1] and sys.argv[0].endswith(".py") else None
    spec = tracked_spec(name, command=command, project=project, workers=size, gpus=gpus, gpu_type=gpu_type)
    before, reporter = reporting._reporter, _Tracking(Client(url, token), spec, size)
    reporter.set_totals(total_steps, None)
    reporting._reporter = reporter
    try:
        yield TrackedRun(reporter)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            reporter.end("succeeded", None)
            raise
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        reporter.end("failed", text[-MAX_ERROR:])
        raise
    else:
        reporter.end("succeeded", None)
    finally:
        reporting._reporter = before


class _Tracking(Reporter):
    """Sends what is reported to the service itself, as the one worker of a job that it registers."""

    def __init__(self, client: Client, spec: Mapping[str, Any], n_workers: int) -> None:
        self.job_id: str | None = None
        self._client, self._spec, self._n_workers = client, dict(spec), n_workers
        self._key = os.urandom(16).hex()
        self._job_token: str | None = None
        self._refused = False
        self._begun_at = self._last_at = time.time()
        self._alive_at = float("-inf")
        self._last_step: int | None = None
        self._sequence = 0
        self._profile: dict[str, Any] = {}
        self._sent_profile: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}
        self._total_epochs: float | None = None
        self._tells_total = False
        """It says itself after how many steps it ends."""
        super().__init__("", None, 0)

    def end(self, outcome: str, error: str | None) -> None:
        """Report the end; waits for the service for some seconds at most."""
        self.flush(CLOSE_SECONDS if self.job_id is not None else reporting.FLUSH_SECONDS)
        result = {"outcome": outcome, "step": self._last_step or 0, "metrics": self._metrics, "permanent": True}
        if error is not None:
            result["error"] = error
        if self.job_id is None or not self._tell("POST", "result", result):
            log.warning("the end of this run could not be reported to %s", self._client.url)

    def _send_all(self) -> bool:
        done = super()._send_all()
        if not self._refused and time.monotonic() >= self._alive_at + ALIVE_SECONDS:
            return self._register() and done
        return done

    def _post(self, document: Mapping[str, Any]) -> bool:
        if self._refused:
            return True
        if not self._register():
            return False
        total, self._total_epochs = document.get("total_steps"), document.get("total_epochs")
        self._tells_total = bool(total)
        if total:
            self._profile["total_steps"] = total
        samples, state = [], (self._sequence, self._last_step, self._last_at)
        for reading in document["readings"]:
            self._metrics.update(
                {name: value for name, value in reading.get("metrics", {}).items() if math.isfinite(value)}
            )
            sample = self._sample(reading)
            if sample is not None:
                samples.append(sample)
        if samples and not self._tell("POST", "telemetry", {"samples": samples}):
            self._sequence, self._last_step, self._last_at = state
            return self._refused
        if samples:
            self._profile["learned_from"] = "client"
        if self._profile != self._sent_profile and self._tell("PUT", "profile", self._profile):
            self._sent_profile = dict(self._profile)
        return True

    def _sample(self, reading: Mapping[str, Any]) -> dict[str, Any] | None:
        """The steps since the last reading that named one."""
        step, before = reading.get("step"), self._last_step
        if step is None:
            if reading.get("loss") is None:
                return None
            step = (before or 0) + 1
        if step > MAX_COUNT or step <= (before or 0):
            return None
        if before is None and step > RESUMED_STEPS:
            before = step - 1
        n_steps = min(step - (before or 0), 10**6)
        seconds, self._last_at, self._last_step = max(0.0, reading["at"] - self._last_at), reading["at"], step
        epoch, each = reading.get("epoch"), self._profile.get("steps_per_epoch")
        if epoch and epoch > 0 and math.isfinite(epoch):
            each = self._profile["steps_per_epoch"] = step / epoch
            self._learn_total(step, epoch)
        sample = {
            "membership_epoch": EPOCH,
            "rank": 0,
            "sequence": self._sequence,
            "workers": self._n_workers,
            "servers": 0,
            "at": reading["at"],
            "step": step,
            "n_steps": n_steps,
            "data_epoch": step / each if each else 0.0,
            "n_examples": (reading.get("examples") or 0) * n_steps,
            "seconds": seconds,
        }
        if reading.get("loss") is not None:
            sample["loss"] = _written(reading["loss"])
        if reading.get("metrics"):
            sample["metrics"] = {name: _written(value) for name, value in reading["metrics"].items()}
        self._sequence += 1
        return sample

    def _learn_total(self, step: int, epoch: float) -> None:
        """After how many steps the run ends, where it tells after how many epochs, and is there at `step`."""
        epochs, known = self._total_epochs, self._profile.get("total_steps")
        if self._tells_total or not epochs or not epoch <= epochs < math.inf:
            return
        total = epochs / epoch * step
        if total <= MAX_COUNT and (known is None or abs(total - known) > 0.5 + total * ROUNDED / epoch):
            self._profile["total_steps"] = round(total)

    # --- the service -------------------------------------------------------------------------------------------------

    def _register(self) -> bool:
        """Whether the service knows the run, and has heard of it lately."""
        try:
            if self._job_token is None:
                self.job_id = self._client.submit(self._spec, idempotency_key=self._key).id
                self._job_token = self._client.issue_token(self.job_id)
                log.info("tracked as job %s of %s", self.job_id, self._client.url)
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                self._refuse(error)
            return False
        except OptimusError as error:
            log.debug("the service does not answer: %s", error)
            return False
        if time.monotonic() < self._alive_at + ALIVE_SECONDS:
            return True
        report = {
            "epoch": EPOCH,
            "generation": 0,
            "at": self._begun_at,
            "step": 0,
            "workers": [f"{self.job_id}-worker-{rank}-0" for rank in range(self._n_workers)],
            "servers": [],
            "cause": "start",
        }
        if self._tell("POST", "membership", report):
            self._alive_at = time.monotonic()
            return True
        return False

    def _tell(self, method: str, path: str, body: Mapping[str, Any]) -> bool:
        """Whether the service took it. One that has ended the job is not asked again."""
        if self._refused or self._job_token is None or self.job_id is None:
            return False
        try:
            self._client.report_as_job(self.job_id, self._job_token, method, path, body)
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                self._refuse(error)
            return False
        except OptimusError as error:
            log.debug("the service does not answer: %s", error)
            return False
        return True

    def _refuse(self, error: ApiError) -> None:
        self._refused = True
        log.warning("this run is not tracked any more: %s", error)


def _written(value: float) -> float | str:
    """As the service's JSON has numbers that JSON has none for."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
