"""Kubeflow's protocol as transformers speaks it: its own estimates of the end, beside what the counts say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.progress import Progress

STEPS, STOP_AT = 60, 32
STEP_SECONDS = 0.25
BETWEEN_UPDATES = 20
"""Steps in the five seconds between two updates."""


class Post(NamedTuple):
    """One status update."""

    at: float
    document: dict[str, Any]


class Posts:
    """The server of the protocol, which keeps what is sent, and the clock that trainings go by."""

    def __init__(self) -> None:
        self.now = 1.7e9
        self.posts: list[Post] = []
        posts = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                # The callback asks the machine for this one.
                document["trainerStatus"]["lastUpdatedTime"] = datetime.fromtimestamp(posts.now, UTC).isoformat()
                posts.posts.append(Post(posts.now, document))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def train(self, first: int, last: int) -> list[Post]:
        """What transformers' own callback posts in a training of the steps after `first` to `last`."""
        integrations = pytest.importorskip("transformers.integrations.integration_utils")
        trainer_callback = pytest.importorskip("transformers.trainer_callback")
        self.posts.clear()
        callback = integrations.KubeflowCallback()
        state = trainer_callback.TrainerState(max_steps=STEPS, global_step=first, is_world_process_zero=True)
        callback.on_train_begin(None, state, None)
        for step in range(first + 1, last + 1):
            self.now += STEP_SECONDS
            state.global_step = step
            callback.on_step_end(None, state, None)
        callback.on_train_end(None, state, None)
        return list(self.posts)


@pytest.fixture
def kubeflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Posts]:
    found = Posts()
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{found.server.server_port}")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    monkeypatch.setattr(time, "time", lambda: found.now)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    yield found
    monkeypatch.undo()
    found.server.shutdown()
    found.server.server_close()


def test_the_end_is_right_after_a_stop_and_after_a_resume(kubeflow: Posts) -> None:
    """A run stopped at 53 % says 100 % of itself, and one that was resumed forgets what was done before it: its own
    remaining seconds are too few. The counts, and the speed since the resume, are right in both cases."""
    stopped = kubeflow.train(0, STOP_AT)
    reader, progress = Kubeflow(), Progress(stopped[0].at, 0)
    for post in stopped:
        if (reading := reader.reading(post.document, post.at)) is not None:
            progress.add(reading)
    assert stopped[-1].document["trainerStatus"]["progressPercentage"] == 100, "their word"
    assert progress.learned.total_steps == STEPS
    assert progress.step == BETWEEN_UPDATES, "the last update is some steps before the end"

    resumed = kubeflow.train(STOP_AT, STEPS)
    reader, progress, errors = Kubeflow(), Progress(resumed[0].at, STOP_AT), list[tuple[float, float]]()
    for post in resumed:
        reading = reader.reading(post.document, post.at)
        advance = None if reading is None else next(iter(progress.add(reading)), None)
        theirs = post.document["trainerStatus"].get("estimatedRemainingSeconds")
        if advance is None or advance.step == STEPS or theirs is None:
            continue
        left = resumed[-1].at - post.at
        expected = (STEPS - advance.step) * advance.seconds / advance.n_steps
        errors.append((expected - left, theirs - left))
    ((ours, theirs),) = errors  # it tells its steps every five seconds
    assert ours == pytest.approx(0.0)
    assert theirs == -2.0
