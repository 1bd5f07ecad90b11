"""Processes that train together stop at one step, whichever of them is asked first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.forks import Forks, forks

from optimus_workers.wire.ports import reserve_port


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    """What the processes are forked from: each would take a second to import PyTorch."""
    with forks("torch.distributed", "optimus_client") as found:
        yield found


@contextmanager
def training(forked: Forks, step_seconds: float, *variables: dict[str, str]) -> Iterator[Sequence[IO[str]]]:
    """What the processes print, one for each of the `variables`, once they train. They are at their end after it."""
    port = str(reserve_port("127.0.0.1"))
    together = {"WORLD_SIZE": str(len(variables)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ExitStack() as stack:
        processes, printed = [], []
        for rank, own in enumerate(variables):
            reads, writes = os.pipe()
            printed.append(stack.enter_context(os.fdopen(reads)))
            place = {**together, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            processes.append(
                forked.start(
                    [str(step_seconds)],
                    module="tests.client.agreeing",
                    variables={**os.environ, **place, **own},
                    out=writes,
                    errors=sys.__stderr__.fileno(),  # type: ignore[union-attr]
                )
            )
            os.close(writes)
        assert [each.readline() for each in printed] == ["trains\n"] * len(printed)
        yield printed
        assert [each.wait(120) for each in processes] == [0] * len(processes)


def test_all_processes_stop_at_the_same_step_though_one_alone_is_asked(forked: Forks, tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    asked.touch()
    files = [{"OPTIMUS_STOP_FILE": str(each)} for each in (tmp_path / "not there", asked)]
    with training(forked, 0.002, *files) as printed:
        steps = [each.read().strip() for each in printed]
    assert steps[0] == steps[1] != ""


@pytest.mark.parametrize(("first", "then", "last"), [("40", "90", 90), ("100000", "60", 60), ("", "70", 70)])
def test_all_processes_end_at_the_step_of_a_limit_that_is_changed_meanwhile(
    forked: Forks, tmp_path: Path, first: str, then: str, last: int
) -> None:
    """One agent tells its processes after the other."""
    files = [tmp_path / f"stop-at-{rank}" for rank in range(2)]
    variables = [{"OPTIMUS_STOP_AT_STEP": first, "OPTIMUS_STOP_AT_STEP_FILE": str(file)} for file in files]
    with training(forked, 0.02, *variables) as printed:
        for file in files:
            file.write_text(then)
        steps = [each.read().strip() for each in printed]
    assert steps == [str(last)] * 2
