"""Reports of a training process to its agent, and the request to stop that comes back.

`report` puts a tuple into a bounded queue. A daemon thread turns it into numbers and posts it, so that a call costs
about a microsecond, whatever the agent does. Nothing here raises because of the agent or of the values.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Optional
from urllib.parse import urlsplit

__all__ = ["flush", "loaded", "report", "report_schedule", "resumes", "stop_requested", "stopped"]

log = logging.getLogger("optimus_client")

CAPACITY = 10_000
"""Reports kept while the agent is away; then the oldest are dropped."""
BATCH = 1_000
"""Reports of one request; below what the agent takes."""
POST_SECONDS = 0.5
"""Between two requests."""
RETRY_SECONDS = 5.0
"""Most time between two attempts while the agent is away."""
REQUEST_SECONDS = 2.0
FLUSH_SECONDS = 2.0
"""How long the end of the process may wait for the last reports."""
LOOK_SECONDS = 0.1
"""Between two looks at the stop file."""

Number = Any
"""A number or what `float()` takes: a tensor with one element, a numpy scalar."""
Held = Any
"""A number, or a function that waits for it; called on the reporting thread."""
Record = tuple[float, Held, Held, Held, Held, Held, Optional[dict[str, Held]]]
"""POSIX seconds, step, loss, examples, epoch, learning rate, metrics."""

_NO_NUMBER = (ValueError, TypeError, RuntimeError, OverflowError, AttributeError)
"""What turning a value into a number may raise."""


def report(
    *,
    step: Number = None,
    loss: Number = None,
    examples: Number = None,
    epoch: Number = None,
    learning_rate: Number = None,
    metrics: Mapping[str, Number] | None = None,
    total_steps: int | None = None,
    total_epochs: float | None = None,
) -> None:
    """Report where the training is. Does nothing outside Optimus; never waits, never raises.

    `step`: optimizer steps completed. `loss`: of the training, a mean per example. `examples`: of one step over all
    processes. `epoch`: passes over the data so far, such as 1.25. `metrics`: figures of an evaluation. `total_steps`,
    `total_epochs`: after which the training ends. Values may be tensors with one element: those on a GPU are copied
    behind the work that computes them, without waiting for it. Every process may call it; the loss, the learning
    rate and the metrics of rank 0 count.
    """
    reporter = _reporter or _start()
    if reporter is None:
        return
    if type(step) is int and is_at_limit(step):
        _stop_at_limit()
    if reporter.rank:
        loss = learning_rate = metrics = None
    if total_steps is not None or total_epochs is not None:
        reporter.set_totals(total_steps, total_epochs)
    reporter.queue.append(
        (
            time.time(),
            _held(step),
            _held(loss),
            _held(examples),
            _held(epoch),
            _held(learning_rate),
            _held_metrics(metrics) if metrics else None,
        )
    )


def report_schedule(
    scheduler: Any, *, total_steps: int, step: int = 0, calls: int = 1, per_steps: int = 1, begun: int = 0
) -> None:
    """Report the learning rates that a scheduler of torch plans for the optimizer steps from `step` to `total_steps`.

    The loss falls where rates are lowered, so that the end can be predicted before. The training calls
    `scheduler.step()` `calls` times after every `per_steps` optimizer steps, of which `begun` are done already. The
    scheduler stays as it is. Does nothing outside Optimus, and for schedules that depend on the loss
    (`ReduceLROnPlateau`); never raises. Call it again when the plan has changed.
    """
    reporter = _reporter or _start()
    if reporter is None or reporter.rank:
        return
    from .schedules import planned_rates

    plan = planned_rates(scheduler, step=step, total_steps=total_steps, calls=calls, per_steps=per_steps, begun=begun)
    if plan:
        reporter.plan = plan
        reporter.wake.set()


def resumes() -> None:
    """Say that this script goes on from its checkpoint when it is started again: Optimus may resize its job."""
    reporter = _reporter or _start()
    if reporter is not None:
        reporter.head["resumes"] = True
        reporter.is_announced = False
        reporter.wake.set()


def loaded(seconds: float) -> None:
    """Say for how long the script has loaded its checkpoint: a part of what a change of size costs."""
    reporter = _reporter or _start()
    if reporter is not None:
        reporter.head["load_seconds"] = float(seconds)
        reporter.is_announced = False


def stopped(step: int, save_seconds: float | None = None) -> None:
    """Say that the script has saved (for `save_seconds`) and stops as asked, after `step` optimizer steps; waits 2 s
    for that at most."""
    reporter = _reporter or _start()
    if reporter is not None:
        if save_seconds is not None:
            reporter.head["save_seconds"] = float(save_seconds)
        reporter.stopped_at = int(step)
        flush()


def flush(timeout: float = FLUSH_SECONDS) -> bool:
    """Wait until all reports so far are sent, `timeout` seconds at most; whether they are."""
    return _reporter is None or _reporter.flush(timeout)


def step_limit(*, newest: bool = False) -> float:
    """Steps after which the job is to end at the latest (`--max-steps`), inf without a limit. Its owner may change it:
    looked at ten times a second at most, unless the `newest` is asked for."""
    global _limit, _look_at_limit_at
    now = time.monotonic()
    if newest or now >= _look_at_limit_at:
        _look_at_limit_at = now + LOOK_SECONDS
        limit = os.environ.get("OPTIMUS_STOP_AT_STEP", "")
        with suppress(KeyError, OSError):
            limit = Path(os.environ["OPTIMUS_STOP_AT_STEP_FILE"]).read_text()
        _limit = int(limit) if limit.isdigit() else float("inf")
    return _limit


def is_at_limit(step: int) -> bool:
    """Whether the job is to end after `step` steps at the latest."""
    return step >= step_limit() and step >= step_limit(newest=True)


def _stop_at_limit() -> None:
    global _look_at, _is_stop_requested
    _is_stop_requested, _look_at = True, float("inf")


def stop_requested() -> bool:
    """Whether the script should save its state and end with exit code 0 at its next step boundary: it was asked to, or
    has reported the step with which its job ends (`--max-steps`).

    Looks at a file ten times a second at most, so it may be asked at every step. Processes may see it at different
    steps: those that train together must agree on one, as the integrations do.
    """
    global _look_at, _is_stop_requested
    now = time.monotonic()
    if now >= _look_at:
        path = os.environ.get("OPTIMUS_STOP_FILE")
        _is_stop_requested = path is not None and os.path.exists(path)  # noqa: PTH110 - half the time of Path
        _look_at = now + LOOK_SECONDS
    return _is_stop_requested


# --- values ----------------------------------------------------------------------------------------------------------


def _held(value: Number) -> Held:
    """The value as it is now, without waiting for a device: a number, or a function that waits for it."""
    kind = type(value)
    if value is None or kind is float or kind is int:
        return value
    try:
        if hasattr(value, "is_cuda"):
            return _held_tensor(value.detach())
        if hasattr(value, "block_until_ready"):  # an array of JAX never changes
            return lambda: float(value)
        return float(value)
    except _NO_NUMBER as error:
        log.debug("not reported, for it is no number: %s", error)
        return None


def _held_metrics(metrics: Mapping[str, Number]) -> dict[str, Held] | None:
    try:
        return {str(name): _held(value) for name, value in metrics.items()}
    except _NO_NUMBER as error:
        log.debug("not reported, for they are no mapping: %s", error)
        return None


def _held_tensor(tensor: Any) -> Held:
    if hasattr(tensor, "placements"):  # of several processes: a sum that waits for the others would wait for ever
        if not all(placement.is_replicate() for placement in tensor.placements):
            return None
        tensor = tensor.to_local()
    if tensor.device.type == "cpu":
        return float(tensor)
    if not tensor.is_cuda:
        copy = tensor.clone()  # the script may change it in place
        return lambda: float(copy)
    # Into pinned memory, behind what computes it on the same stream: the caller does not wait for the device.
    cuda = sys.modules["torch"].cuda
    with cuda.device(tensor.device):
        copy = tensor.to("cpu", non_blocking=True)
        done = cuda.Event()
        done.record()

    def wait() -> float:
        done.synchronize()
        return float(copy)

    return wait


def _number(held: Held) -> float | None:
    try:
        return float(held()) if callable(held) else held
    except _NO_NUMBER as error:
        log.debug("not reported, for it is no number: %s", error)
        return None


def _whole(held: Held) -> int | None:
    number = _number(held)
    with suppress(ValueError, OverflowError):  # NaN and infinity
        return None if number is None or number < 0 else int(number)
    return None


def _reading(record: Record) -> dict[str, Any]:
    at, step, loss, examples, epoch, learning_rate, metrics = record
    found: dict[str, Any] = {
        "at": at,
        "step": _whole(step),
        "loss": _number(loss),
        "examples": _whole(examples),
        "epoch": _number(epoch),
        "learning_rate": _number(learning_rate),
    }
    found = {name: value for name, value in found.items() if value is not None}
    if metrics:
        numbers = {name: _number(value) for name, value in metrics.items()}
        found["metrics"] = {name: value for name, value in numbers.items() if value is not None}
    return found


# --- the thread ------------------------------------------------------------------------------------------------------


class Reporter:
    """The queue and the thread of one process."""

    def __init__(self, url: str, token_file: str | None, rank: int) -> None:
        self.rank = rank
        self.queue: deque[Record] = deque(maxlen=CAPACITY)
        self.head: dict[str, Any] = {"rank": rank}
        """What every request says."""
        self.is_announced = True
        """There is nothing in `head` that no request has said."""
        self.stopped_at: int | None = None
        self.plan: list[tuple[int, float]] | None = None
        """Learning rates that no request has told yet."""
        self.wake = threading.Event()
        self._url, self._token_file = url, token_file
        self._pending: deque[dict[str, Any]] = deque(maxlen=CAPACITY)
        self._idle = threading.Condition()
        self._rounds = 0
        """How often everything that was in the queue when a round began was sent."""
        self._connection: Any = None
        self._thread = threading.Thread(target=self._run, name="optimus-report", daemon=True)
        self._thread.start()

    def set_totals(self, steps: int | None, epochs: float | None) -> None:
        """Where the training ends."""
        with suppress(*_NO_NUMBER):
            if steps is not None:
                self.head["total_steps"] = int(steps)
            if epochs is not None:
                self.head["total_epochs"] = float(epochs)

    def flush(self, timeout: float) -> bool:
        """Wait for a round that begins from now on."""
        with self._idle:
            target = self._rounds + 2  # a round that is under way may have missed the newest
            deadline = time.monotonic() + timeout
            while self._rounds < target:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self.wake.set()
                self._idle.wait(min(left, 0.05))
        return True

    def _run(self) -> None:
        wait = POST_SECONDS
        while True:
            self.wake.wait(wait)
            self.wake.clear()
            if self._send_all():
                wait = POST_SECONDS
                with self._idle:
                    self._rounds += 1
                    self._idle.notify_all()
            else:
                wait = min(2 * wait, RETRY_SECONDS)

    def _send_all(self) -> bool:
        """Whether nothing is left."""
        while True:
            while self.queue:  # first turn all into numbers: they hold memory of the device
                self._pending.append(_reading(self.queue.popleft()))
            if not self._pending and self.is_announced and self.stopped_at is None and self.plan is None:
                return True
            readings = [self._pending[index] for index in range(min(BATCH, len(self._pending)))]
            is_last = len(readings) == len(self._pending)
            stopped_at = self.stopped_at if is_last else None
            announced, self.is_announced = self.is_announced, True
            document = {**self.head, "readings": readings, "stopped_at": stopped_at}
            plan = self.plan
            if plan is not None:
                document["planned_rates"] = plan
            if not self._post(document):
                self.is_announced = announced
                return False
            for _ in readings:
                self._pending.popleft()
            if self.plan is plan:
                self.plan = None
            if stopped_at is not None:
                self.stopped_at = None

    def _post(self, document: Mapping[str, Any]) -> bool:
        """Whether the agent has it, or will never take it."""
        import http.client

        parts = urlsplit(self._url)
        try:
            token = Path(self._token_file).read_text().strip() if self._token_file else ""
            if self._connection is None:
                kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
                self._connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=REQUEST_SECONDS)
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            self._connection.request("POST", f"{parts.path.rstrip('/')}/report", json.dumps(document), headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.debug("the agent does not answer: %s", error)
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return False
        if answer.status in (400, 413, 422):
            log.warning("the agent refuses %d reports (status %d)", len(document["readings"]), answer.status)
            return True
        return bool(answer.status < 300)


_reporter: Reporter | None = None
_look_at = _look_at_limit_at = 0.0
_limit = float("inf")
_is_stop_requested = False


def _start() -> Reporter | None:
    """The reporter of this process; None outside Optimus."""
    global _reporter
    url = os.environ.get("OPTIMUS_REPORT_URL")
    if not url:
        return None
    rank = os.environ.get("RANK", "")
    with _starting:
        if _reporter is None:
            with suppress(RuntimeError):  # threads cannot be started while the interpreter ends
                _reporter = Reporter(
                    url, os.environ.get("OPTIMUS_REPORT_TOKEN_FILE"), int(rank) if rank.isdigit() else 0
                )
    return _reporter


def _forget() -> None:
    """In a child after fork: the thread is the parent's, and so are the reports."""
    global _reporter, _starting
    _reporter, _starting = None, threading.RLock()


_starting = threading.RLock()
"""A signal handler may report, too."""
_register_at_fork: Callable[..., None] = getattr(os, "register_at_fork", lambda **_: None)
_register_at_fork(after_in_child=_forget)
atexit.register(flush)
