"""How a script writes its checkpoints, as it is seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from optimus_contract.readings.progress import Learned
from optimus_workers.script.checkpoints import LEAST_BYTES, Checkpoints, CheckpointWatch, with_children
from optimus_workers.script.samples import with_checkpoints

MIB = 2**20


def watched(*writes: tuple[float, float, int]) -> CheckpointWatch:
    """What was written from one time to another, by half seconds; times are multiples of that."""
    watch, at, end = CheckpointWatch(), 0.0, max(each[1] for each in writes) + 5.0
    while at < end:
        n_bytes = sum(size for begun, ended, size in writes if begun <= at < ended)
        watch.add(at, at + 0.5, n_bytes)
        at += 0.5
    return watch


def test_three_checkpoints_say_how_often_and_how_long() -> None:
    writes = [(60.0 * n, 60.0 * n + 2.0, 10 * MIB) for n in (1, 2, 3)]
    assert watched(*writes).found == Checkpoints(every_seconds=60.0, write_seconds=2.0)
    assert watched(*writes[:2]).found is None


def test_small_writes_between_are_no_checkpoints() -> None:
    writes = [(60.0 * n, 60.0 * n + 2.0, 10 * MIB) for n in (1, 2, 3)]
    logs = [(7.0 * n, 7.0 * n + 0.5, LEAST_BYTES // 2) for n in range(1, 20)]
    pictures = [(60.0 * n + 30.0, 60.0 * n + 30.5, MIB) for n in (1, 2, 3)]
    assert watched(*writes, *logs, *pictures).found == Checkpoints(every_seconds=60.0, write_seconds=2.0)


def test_a_script_that_always_writes_has_no_checkpoints() -> None:
    assert watched((1.0, 300.0, MIB)).found is None
    assert watched(*[(10.0 * n, 10.0 * n + 8.0, MIB) for n in range(1, 9)]).found is None


def test_what_real_processes_and_their_children_write_is_seen(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("what is written to memory is not counted")
    save = "open(f'c{n}', 'wb').write(bytes(2**20)); print('done', flush=True)"
    child = f"import sys\nfor n, _ in enumerate(sys.stdin): {save}"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        say = process.stdin
        print("begin", file=say, flush=True)
        process.stdout.readline()
        assert len(with_children([process.pid])) == 2
        watch, now = CheckpointWatch(), 1000.0
        watch.look([process.pid], now)
        for _ in range(4):
            print("save", file=say, flush=True)
            process.stdout.readline()
            watch.look([process.pid], now := now + 1.0)
            watch.look([process.pid], now := now + 1.0)
            watch.look([process.pid], now := now + 8.0)
        say.close()
    assert watch.found == Checkpoints(every_seconds=10.0, write_seconds=1.0)


def test_figures_that_hardly_changed_are_no_news() -> None:
    known = with_checkpoints(Learned(), Checkpoints(60.0, 2.0))
    assert (known.checkpoint_every_seconds, known.checkpoint_write_seconds) == (60.0, 2.0)
    assert with_checkpoints(known, Checkpoints(62.0, 1.9)) is known
    assert with_checkpoints(known, None) is known
    assert with_checkpoints(known, Checkpoints(60.0, 4.0)).checkpoint_write_seconds == 4.0
