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
from tests.service.clusters.cluster_harness import wait_until

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
    assert shell("optimus stop --data-directory nowhere").returncode == 2


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


MISTAKES = {
    "--set widht=3": "Error: --set: got an unexpected keyword argument 'widht'; did you mean width?",
    "--batch-size 100000": "Error: --batch-size: is 100000 and the data has 1437 examples only",
    "--checkpoint-url no-such-store://x/y": "Error: --checkpoint-url: checkpoints cannot be kept there",
    "--workers-min 64 --workers-max 64": "Error: --workers-min: at least 64 asked for; the whole cluster has room for",
    "--priority nan": "--priority",
    "--worker-cpu 0": "--worker-cpu",
}
"""What a new user types wrongly, and how the answer begins or what it names."""


def test_a_first_day_of_mistakes_a_full_cluster_and_a_quota(shell: Shell) -> None:
    assert shell("OPTIMUS_SLOTS=4 OPTIMUS_ROUND_SECONDS=1 optimus serve --detach").returncode == 0
    submit = "optimus submit --task optimus_workers.zoo.digits:mlp --max-epochs 100000"
    for flags, told in MISTAKES.items():
        wrong = shell(f"{submit} {flags}")
        assert wrong.returncode == 2, flags
        assert told in wrong.stderr
        assert "Traceback" not in wrong.stderr
    assert json.loads(shell("optimus list --json").stdout) == {"jobs": []}
    assert shell("optimus project set small --cpu 2 --no-borrow").returncode == 0
    first = shell(f"{submit} --name first --project small --workers-max 3").stdout.strip()
    second = shell(f"{submit} --name second --project small").stdout.strip()

    def decided(job: str, reason: str) -> bool:
        return bool(json.loads(shell(f"optimus explain {job} --json").stdout)["reason"] == reason)

    def state_of(job: str) -> str:
        return str(json.loads(shell(f"optimus explain {job} --json").stdout)["state"])

    wait_until("the second waits", lambda: decided(second, "WaitingForQuota"))
    why = json.loads(shell(f"optimus explain {second} --json").stdout)
    assert why["message"] == "Waits: quotas leave no room now for 1 worker and 1 server of project small."
    assert why["expected"]["start_seconds"] != {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert "leave to borrow for project small" in why["what_would_change_it"]
    assert f"the end of first ({first})" in why["what_would_change_it"]
    big = shell(f"{submit} --name big --workers-min 3 --workers-max 3").stdout.strip()
    wait_until("the third waits", lambda: decided(big, "WaitingForResources"))
    why = json.loads(shell(f"optimus explain {big} --json").stdout)
    assert "there is no room for 3 workers and 1 server beside the jobs ahead of it." in why["message"]
    assert "`workers.min` of 1 (now 3)" in why["what_would_change_it"]
    assert shell(f"optimus cancel {first}").returncode == 0
    wait_until("it has ended", lambda: state_of(first) == "cancelled")
    told = json.loads(shell(f"optimus explain {first} --json").stdout)
    assert (told["reason"], told["message"]) == (None, "The job was cancelled.")
