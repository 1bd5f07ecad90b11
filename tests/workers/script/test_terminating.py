"""Processes of a script are asked to end only if nothing has begun meanwhile: real processes that are signalled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.client.agent import wait_until

from optimus_workers.script.processes import Process, Starter, ended_by_itself, how_it_ended, terminate_if

SCRIPT = """
import time
while True:
    print("on", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    (tmp_path / "train.py").write_text(SCRIPT)
    started = Starter([sys.executable, "train.py"], tmp_path, dict(os.environ))
    yield started
    started.close()


def states(groups: Sequence[int]) -> list[str]:
    """Of the first processes of these groups: R and S go on, T is stopped by a signal."""
    return [Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0] for group in groups]


def test_processes_stand_still_while_it_is_looked_whether_they_may_end(starter: Starter) -> None:
    printed = bytearray()
    processes: list[Process] = [starter.start(rank, {}, lambda _, data: printed.extend(data)) for rank in range(2)]
    wait_until(lambda: len(printed) > 0)
    seen: list[Sequence[str]] = []

    def stand_still(groups: Sequence[int]) -> bool:
        assert list(groups) == [process.pid for process in processes]
        wait_until(lambda: states(groups) == ["T", "T"])
        seen.append(states(groups))
        return len(seen) > 1

    assert not terminate_if(processes, stand_still), "a checkpoint has begun"
    before = len(printed)
    wait_until(lambda: len(printed) > before)  # they go on
    assert [process.poll() for process in processes] == [None, None]
    assert terminate_if(processes, stand_still)
    wait_until(lambda: None not in [process.poll() for process in processes])
    assert [process.exit_code for process in processes] == [128 + 15, 128 + 15]


@pytest.mark.parametrize(
    ("code", "how"),
    [(1, "exit code 1"), (128, "exit code 128"), (137, "signal 9"), (143, "signal 15"), (255, "exit code 255")],
)
def test_only_a_code_of_a_signal_that_there_is_tells_one(code: int, how: str) -> None:
    """`sys.exit(-1)` ends with 255."""
    assert (how_it_ended(code), ended_by_itself(code)) == (how, how.startswith("exit"))
