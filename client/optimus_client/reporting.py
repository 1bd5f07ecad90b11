"""Reports of a training script to the agent that runs it: never in the way of the training.

A report is put into a bounded queue and sent by a thread; what cannot be sent waits, and the oldest is dropped when the
queue is full. Without the variable OPTIMUS_REPORT_URL, so outside Optimus, nothing happens at all.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import Any, Mapping, Optional

URL_VARIABLE = "OPTIMUS_REPORT_URL"
TOKEN_FILE_VARIABLE = "OPTIMUS_REPORT_TOKEN_FILE"  # noqa: S105 - the name of a variable
STOP_FILE_VARIABLE = "OPTIMUS_STOP_FILE"
MAX_WAITING = 10_000
"""Reports that wait while the agent does not answer."""
MAX_AT_ONCE = 1_000
PERIOD_SECONDS = 0.2
"""Reports are gathered for so long."""
RETRY_SECONDS = 1.0
EXIT_SECONDS = 3.0
"""How long the end of the process may be put off for the last reports."""
LOOK_SECONDS = 0.1
"""How often `stop_requested` looks at the file system."""
_REPORT_FIELDS = ("step", "loss", "examples", "epoch", "learning_rate")


def report(
    step: Optional[int] = None,
    loss: Any = None,
    examples: Optional[int] = None,
    epoch: Any = None,
    learning_rate: Any = None,
    metrics: Optional[Mapping[str, Any]] = None,
    total_steps: Optional[int] = None,
    total_epochs: Optional[float] = None,
) -> None:
    """Say how far the training is. Never blocks, never raises.

    Args:
        step: optimizer steps completed, counted over restarts.
        loss: training loss of this step; a number, or a tensor or array with one element (read by another thread, so
            that a GPU is not waited for).
        examples: training examples of one step over all processes.
        epoch: passes over the data so far; may be a fraction.
        learning_rate: of this step.
        metrics: figures of an evaluation, by name.
        total_steps: optimizer steps after which the script ends; to be said once.
        total_epochs: passes over the data after which it ends; to be said once.
    """
    reporter = _reporter()
    if reporter is None:
        return
    try:
        reading = {
            name: _detached(value)
            for name, value in zip(_REPORT_FIELDS, (step, loss, examples, epoch, learning_rate))
            if value is not None
        }
        if metrics:
            reading["metrics"] = {str(name): _detached(value) for name, value in metrics.items()}
        reporter.add(reading, total_steps, total_epochs)
    except Exception:  # noqa: BLE001 - a report must not end a training
        return


def resumes() -> None:
    """Say that this script goes on from a checkpoint of its own when it is started again, so that it may be resized."""
    reporter = _reporter()
    if reporter is not None:
        reporter.say(resumes=True)


def stopped(step: int) -> None:
    """Say that the training has been saved after `step` steps and ends now, as was asked."""
    reporter = _reporter()
    if reporter is not None:
        reporter.say(stopped_at=int(step))
        reporter.flush(EXIT_SECONDS)


_looked_at = float("-inf")
_found = False


def stop_requested() -> bool:
    """Whether this process should save at its next step boundary and end with exit code 0.

    Cheap: it looks at most ten times a second. Processes of one training see it at slightly different times; they have
    to agree on the step (`elastic` and the callbacks do).
    """
    global _looked_at, _found
    path = os.environ.get(STOP_FILE_VARIABLE)
    if not path or _found:
        return _found
    now = time.monotonic()
    if now >= _looked_at + LOOK_SECONDS:
        _looked_at = now
        _found = os.path.exists(path)
    return _found


class _Reporter:
    """The queue of one process and the thread that sends it."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/") + "/report"
        self._token = token
        self._rank = int(os.environ.get("RANK") or 0)
        self._waiting: "deque[dict[str, Any]]" = deque(maxlen=MAX_WAITING)
        self._said: "dict[str, Any]" = {}
        self._totals: "dict[str, Any]" = {}
        self._is_sending = False
        self._changed = threading.Condition()  # guards everything above
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        threading.Thread(target=self._run, name="optimus-report", daemon=True).start()
        atexit.register(self.flush, EXIT_SECONDS)

    def add(self, reading: "dict[str, Any]", total_steps: Optional[int], total_epochs: Optional[float]) -> None:
        reading["at"] = time.time()
        with self._changed:
            if total_steps is not None:
                self._totals["total_steps"] = int(total_steps)
            if total_epochs is not None:
                self._totals["total_epochs"] = float(total_epochs)
            self._waiting.append(reading)
            self._changed.notify_all()

    def say(self, **what: Any) -> None:
        with self._changed:
            self._said.update(what)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until everything is sent, for so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._said or self._is_sending), seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting or self._said))
                hurries = bool(self._said)
            if not hurries:
                time.sleep(PERIOD_SECONDS)
            with self._changed:
                readings = [self._waiting.popleft() for _ in range(min(MAX_AT_ONCE, len(self._waiting)))]
                said, self._said = self._said, {}
                self._is_sending = True
            is_sent = self._send(readings, said)
            with self._changed:
                self._is_sending = False
                if not is_sent:
                    said.update(self._said)
                    self._said = said
                    room = MAX_WAITING - len(self._waiting)
                    self._waiting.extendleft(reversed(readings[max(0, len(readings) - room) :]))
                self._changed.notify_all()
            if not is_sent:
                time.sleep(RETRY_SECONDS)

    def _send(self, readings: "list[dict[str, Any]]", said: "dict[str, Any]") -> bool:
        """Whether it need not be sent again."""
        document = {"rank": self._rank, "readings": [_plain(reading) for reading in readings], **self._totals, **said}
        request = urllib.request.Request(  # noqa: S310 - the agent's address
            self._url,
            data=json.dumps(document).encode(),
            headers={"Authorization": "Bearer " + self._token, "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=5):
                return True
        except urllib.error.HTTPError as error:
            return bool(400 <= error.code < 500)  # it is refused for good
        except Exception:  # noqa: BLE001 - the agent is away
            return False


_present: "tuple[int, Optional[_Reporter]]" = (0, None)
_making = threading.Lock()


def _reporter() -> "Optional[_Reporter]":
    """This process's reporter; None outside Optimus. A forked process makes its own."""
    global _present
    pid, found = _present
    if pid == os.getpid():
        return found
    with _making:
        if _present[0] != os.getpid():
            _present = (os.getpid(), _make())
    return _present[1]


def _make() -> "Optional[_Reporter]":
    url, token_file = os.environ.get(URL_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
    if not url or not token_file:
        return None
    try:
        with open(token_file, encoding="utf-8") as file:
            return _Reporter(url, file.read().strip())
    except (OSError, ValueError, RuntimeError):
        return None


def _detached(value: Any) -> Any:
    """The value without the graph that led to it; its number is read later."""
    return value.detach() if hasattr(value, "detach") else value


def _plain(reading: "Mapping[str, Any]") -> "dict[str, Any]":
    """The reading with numbers alone; what is no number is left out."""
    found: "dict[str, Any]" = {}
    for name, value in reading.items():
        if name == "metrics":
            found[name] = {each: number for each, text in value.items() if (number := _number(text)) is not None}
            continue
        number = _number(value)
        if number is not None:
            found[name] = int(number) if name in ("step", "examples") else number
    return found


def _number(value: Any) -> Optional[float]:
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - whatever a tensor raises
        return None
