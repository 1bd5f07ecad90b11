"""A training script as an agent runs it, for tests: its environment, and what it reports."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from optimus_contract.readings.reading import Channel, Reading
from optimus_workers.script import processes
from optimus_workers.script.channels.listener import Channels
from optimus_workers.wire.ports import reserve_port

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SECONDS = 60.0
SCRIPTS = {
    "transformers": "transformers_script.py",
    "lightning": "lightning_script.py",
    "torch": "elastic_script.py",
}
"""Libraries, and a script that imports what the examples of the pages import of them."""


class Agent:
    """The agent's channels, with a place for the script's files."""

    def __init__(self, directory: Path) -> None:
        self.readings: list[Reading] = []
        self.stop_file = directory / "stop"
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)
        self._channels = Channels(self._hear, directory)
        self.variables = {
            **self._channels.all_variables(),
            "OPTIMUS_JOB": "job",
            "OPTIMUS_STOP_FILE": str(self.stop_file),
            "OPTIMUS_CHECKPOINT_DIRECTORY": str(self.checkpoints),
        }

    def _hear(self, reading: Reading) -> None:
        if reading.channel is Channel.CLIENT:  # transformers speaks Kubeflow's protocol besides
            self.readings.append(reading)

    def close(self) -> None:
        self._channels.close()

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


def check_rates(heard: Agent) -> None:
    """Each step of rank 0 tells its learning rate, which is what the processes planned when they began."""
    plan: dict[int, float] = {}
    told: dict[int, float] = {}
    for each in heard.readings:
        plan |= dict(each.planned_rates)
        if each.step is not None and each.learning_rate is not None:
            told[each.step - 1] = each.learning_rate
    assert sorted(told) == sorted(plan) == list(range(max(heard.steps)))
    assert told == pytest.approx(plan, rel=1e-6, abs=1e-12)
    assert len(set(told.values())) > 10, "the rate changes"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Of a script: this process's own without what concerns Optimus, and the client."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    return {**own, "PYTHONPATH": str(ROOT / "client"), "OMP_NUM_THREADS": "1", **variables}


@cache
def _starter(name: str) -> processes.Starter:
    """What agents start scripts with: it has imported the libraries of this script before it forks."""
    command = [sys.executable, str(HERE / name)]
    found = processes.Starter(command, Path.cwd(), environment({}))
    found._lease_seconds = 3600.0
    atexit.register(found.close)
    return found


def _started(name: str, script: Path, rank: int, arguments: Sequence[str], variables: Mapping[str, str]) -> Started:
    """A process of `script`, forked where the libraries of the script `name` are imported."""
    starter, printed = _starter(name), list[bytes]()
    words = (str(script), *arguments)
    starter._directory = Path.cwd()
    starter._python = processes.PythonCommand(sys.executable, str(script), None, words)
    return Started(starter.start(rank, variables, lambda _, data: printed.append(data)), printed)


@dataclass(frozen=True)
class Started:
    """A process that was started by a starter."""

    process: processes.Process
    _printed: list[bytes]

    def end(self, seconds: float = 120.0) -> tuple[int, str]:
        """Wait for it. Its exit code, and what it printed."""
        wait_until(lambda: self.process.poll() is not None, seconds)
        self.process.finish_reading(SECONDS)
        assert self.process.exit_code is not None
        return self.process.exit_code, b"".join(self._printed).decode()


def run(code: str, variables: Mapping[str, str], seconds: float = SECONDS) -> str:
    """What a script prints. It must end with exit code 0."""
    like = next((each for library, each in SCRIPTS.items() if re.search(rf"\b{library}\b", code)), None)
    if like is not None:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.py"
            script.write_text(code)
            exit_code, printed = _started(like, script, 0, [], variables).end(seconds)
            assert exit_code == 0, printed
            return printed
    command = [sys.executable, "-c", code]
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


class Script:
    """The processes of one start of a script in this folder, each on a worker of its own."""

    def __init__(
        self, name: str, heard: Agent, n_processes: int, *arguments: str, variables: dict[str, str] | None = None
    ) -> None:
        port = reserve_port("127.0.0.1")
        self.processes: list[Started] = []
        for rank in range(n_processes):
            own = {**heard.variables, "RANK": str(rank), "WORLD_SIZE": str(n_processes), "GROUP_RANK": str(rank)}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            own |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job", **(variables or {})}
            self.processes.append(_started(name, HERE / name, rank, arguments, own))

    def wait(self) -> None:
        for each in self.processes:
            exit_code, printed = each.end()
            assert exit_code == 0, printed

    def kill(self) -> None:
        for each in self.processes:
            processes.signal_group(each.process, signal.SIGKILL)
            each.end()


def stop_after(heard: Agent, script: Script, step: int) -> int:
    """Ask for a stop once `step` is reported; the step at which all have stopped."""
    wait_until(lambda: bool(heard.steps) and heard.steps[-1] >= step)
    heard.stop_file.touch()
    script.wait()
    heard.stop_file.unlink()
    stopped_at = heard.stopped_at[-1]
    assert stopped_at is not None
    return stopped_at


def assert_same(directory: Path, other: Path) -> None:
    """The same parameters came out, but for the order of sums."""
    for name, tensor in _parameters(directory).items():
        torch.testing.assert_close(tensor, _parameters(other)[name], rtol=1e-4, atol=1e-5)


def _parameters(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(directory / "final.pt", weights_only=True)
    return found
