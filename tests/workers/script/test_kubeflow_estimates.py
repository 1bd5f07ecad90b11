"""Kubeflow's protocol as transformers speaks it: its own estimates of the end, beside what the counts say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.progress import Progress

SCRIPT = Path(__file__).parents[2] / "scripts" / "hf_trainer.py"
STEPS, STOP_AT = 60, 32
STEP_SECONDS = 0.25
BETWEEN_UPDATES = 20
"""Steps in the five seconds between two updates, at most."""


class Post(NamedTuple):
    """One status update."""

    at: float
    document: dict[str, Any]


class Posts:
    """The server of the protocol: it keeps what is sent."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posts.append(Post(time.time(), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def train(self, folder: Path, *more: str) -> list[Post]:
        """Run the script; its updates."""
        token = folder / "token"
        token.write_text("secret")
        ours = {"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{self.server.server_port}"}
        ours |= {"KUBEFLOW_TRAINER_SERVER_TOKEN": str(token), "TORCHELASTIC_RUN_ID": "x"}
        words = [
            str(SCRIPT),
            "--output-dir",
            str(folder / "out"),
            "--steps",
            str(STEPS),
            "--step-seconds",
            str(STEP_SECONDS),
        ]
        self.posts.clear()
        subprocess.run(
            [sys.executable, *words, *more], check=True, capture_output=True, timeout=250, env={**os.environ, **ours}
        )
        return list(self.posts)


@pytest.fixture
def kubeflow() -> Iterator[Posts]:
    found = Posts()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_the_end_is_right_after_a_stop_and_after_a_resume(kubeflow: Posts, tmp_path: Path) -> None:
    """A run stopped at 53 % says 100 % of itself, and one that was resumed forgets what was done before it: its own
    remaining seconds are too few. The counts, and the speed since the resume, are right in both cases."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    stopped = kubeflow.train(tmp_path, "--stop-at", str(STOP_AT))
    reader, progress = Kubeflow(), Progress(stopped[0].at, 0)
    for post in stopped:
        if (reading := reader.reading(post.document, post.at)) is not None:
            progress.add(reading)
    assert stopped[-1].document["trainerStatus"]["progressPercentage"] == 100, "their word"
    assert progress.learned.total_steps == STEPS
    assert progress.step is not None
    assert STOP_AT - BETWEEN_UPDATES <= progress.step <= STOP_AT, (
        "the last update may have been some steps before the end"
    )

    resumed = kubeflow.train(tmp_path)
    reader, progress, errors = Kubeflow(), Progress(resumed[0].at, STOP_AT), []
    for post in resumed:
        reading = reader.reading(post.document, post.at)
        advance = None if reading is None else next(iter(progress.add(reading)), None)
        theirs = post.document["trainerStatus"].get("estimatedRemainingSeconds")
        if advance is None or advance.n_steps < 2 or advance.step == STEPS or theirs is None:
            continue
        left = resumed[-1].at - post.at
        ours = (STEPS - advance.step) * advance.seconds / advance.n_steps
        errors.append((abs(ours - left), abs(theirs - left)))
    assert errors, "it tells its steps every five seconds"
    assert sum(ours for ours, _ in errors) < sum(theirs for _, theirs in errors)
