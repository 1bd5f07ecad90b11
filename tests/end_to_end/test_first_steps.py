"""The first minutes of a user: the README's block as it stands, the service in the background, mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimus_cli import background

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""Twice as long as `serve --detach` waits at most."""
BLOCK_SECONDS = 840.0
"""For the README's block, which trains a job to its end: half a minute, and many times that on a busy machine."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Shell:
    """A user's shell in an empty directory, with the `optimus` of this interpreter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        ours = {"OPTIMUS_PORT": str(self.port), "OPTIMUS_URL": f"http://127.0.0.1:{self.port}"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environment = {**kept, **ours, "PATH": path, "MPLBACKEND": "agg"}

    def __call__(self, command: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Run it to its end, `seconds` at most.

        What it leaves in the background must not keep its output open, or this waits.
        """
        return subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found("optimus stop --tasks")


def readme_block() -> str:
    """The commands of the README's section "Use it"."""
    section = (ROOT / "README.md").read_text().partition("\n## Use it\n")[2]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1]


@pytest.mark.timeout(900)
def test_the_readmes_block_works_when_it_is_pasted(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples", shell.directory / "examples")
    (shell.directory / ".venv" / "bin").mkdir(parents=True)
    activate = shell.directory / ".venv" / "bin" / "activate"
    activate.write_text("")  # the shell has the test's own interpreter already
    done = shell(readme_block(), BLOCK_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "digits-mlp" in done.stdout
    assert (shell.directory / "prediction.png").stat().st_size > 0
    assert background.find(shell.directory / "optimus-data") is None, "the block ends with what stops everything"
    assert shell("optimus list").returncode == 1


def test_a_service_in_the_background_is_ready_told_and_stopped(shell: Shell) -> None:
    started = shell("optimus serve --detach")
    assert started.returncode == 0, started.stderr
    assert f"http://127.0.0.1:{shell.port}" in started.stdout
    assert "service.log" in started.stdout
    assert "optimus stop" in started.stdout
    assert shell("optimus list --json").returncode == 0
    again = shell("optimus serve --detach")
    assert again.returncode == 2
    assert "another service is running on the data directory" in again.stderr
    assert f"http://127.0.0.1:{shell.port}" in again.stderr
    elsewhere = shell("optimus serve --detach --data-directory other")
    assert elsewhere.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {shell.port}" in elsewhere.stderr
    assert "--port" in elsewhere.stderr
    assert "Traceback" not in again.stderr + elsewhere.stderr
    stopped = shell("optimus stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "has stopped" in stopped.stdout
    assert "No service runs" in shell("optimus stop").stdout
    assert shell("optimus stop --data-directory nowhere").returncode == 1


def test_a_service_that_cannot_start_says_why(shell: Shell) -> None:
    (shell.directory / "optimus-data").mkdir()
    (shell.directory / "optimus-data" / "optimus.db").write_text("this is no database, " * 100)
    done = shell("optimus serve --detach")
    assert done.returncode == 2
    assert "not a database" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_wait_for_a_service_that_is_starting(shell: Shell) -> None:
    done = shell("optimus serve > serve.txt 2>&1 & optimus list --json; optimus stop")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.rpartition("}")[0] + "}") == {"jobs": []}
