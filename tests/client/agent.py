"""A training script as an agent runs it, for tests: its environment, and what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.reading import Reading

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


class Agent:
    """The agent's door, with a place for the script's files."""

    def __init__(self, directory: Path) -> None:
        self.readings: list[Reading] = []
        self.stop_file = directory / "stop"
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)
        self._doors = Channels(self.readings.append, directory)
        self.variables = {
            **self._doors.variables(),
            "OPTIMUS_JOB": "job",
            "OPTIMUS_STOP_FILE": str(self.stop_file),
            "OPTIMUS_CHECKPOINT_DIRECTORY": str(self.checkpoints),
        }

    def close(self) -> None:
        self._doors.close()

    @property
    def steps(self) -> list[int]:
        """Of rank 0, those that completed; not what an evaluation or a stop says."""
        return [each.step for each in self.readings if each.step is not None and not each.stopped and not each.rank]

    @property
    def stopped_at(self) -> list[int | None]:
        return [each.step for each in self.readings if each.stopped]


@contextmanager
def agent(directory: Path) -> Iterator[Agent]:
    found = Agent(directory)
    try:
        yield found
    finally:
        found.close()


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Of a script: this process's own without what concerns Optimus, and the client."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    return {**own, "PYTHONPATH": str(ROOT / "client"), "OMP_NUM_THREADS": "1", **variables}


def run(code: str, variables: Mapping[str, str], seconds: float = SECONDS) -> str:
    """What a script prints. It must end with exit code 0."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(
        command, env=environment(variables), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(is_so: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
