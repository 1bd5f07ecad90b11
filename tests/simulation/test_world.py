"""The control plane under faults: fixed seeds and those of the present code, and that a seed says it all."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from optimus_world import world
from optimus_world.__main__ import main, reproduction
from optimus_world.shrink import shrunk
from optimus_world.users import Act
from optimus_world.world import Script, run

N_FRESH = 3
"""Worlds of an hour that nobody has seen before. A number and not a time, so that a state of the code is judged by the
same ones on every machine."""


@pytest.mark.parametrize(
    ("seed", "hours"),
    [
        (2, 2.0),  # a worker once got the place of a server whose job had just ended, and that had not left yet
        (831112663, 1.0),  # and of tasks that were let go while their job's coordinator was replaced
    ],
)
def test_no_invariant_is_broken(seed: int, hours: float) -> None:
    outcome = run(Script.drawn(seed, hours))
    assert outcome.violation is None, "\n".join([*outcome.story[-40:], reproduction(outcome)])
    assert outcome.n_samples > 100


def test_no_invariant_is_broken_where_many_ask_for_more_than_there_is() -> None:
    """Deadlines, gangs, priorities: with these a round once failed again and again, until a job had ended."""
    outcome = run(Script.drawn(101, 0.5, is_crowded=True))
    assert outcome.violation is None, "\n".join([*outcome.story[-40:], reproduction(outcome)])
    assert "--crowded" in reproduction(outcome)
    assert len(outcome.script.acts) > 8


@pytest.mark.parametrize(
    "arguments",
    [
        # Its owner paused a job, and resumed it after its `max_seconds`: it had tasks, and no coordinator to end it.
        "--seed 22 --hours 4 --only a3,a6",
    ],
)
def test_what_was_found_is_mended(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 0, capsys.readouterr().out


def seeds_of_this_code() -> Iterator[int]:
    """Others for each state of the code, and the same for one: a failure is that state's, and does not come and go.
    `make world` draws new ones each time."""
    digest = hashlib.sha256()
    for package in ("optimus_scheduler", "optimus_service", "optimus_workers", "optimus_world"):
        (directory,) = importlib.import_module(package).__path__
        for path in sorted(Path(directory).rglob("*.py")):
            digest.update(path.read_bytes())
    chance = random.Random(digest.digest())
    while True:
        yield chance.randrange(10**9)


def test_fresh_seeds() -> None:
    for seed in islice(seeds_of_this_code(), N_FRESH):
        outcome = run(Script.drawn(seed, 1.0))
        assert outcome.violation is None, "\n".join([*outcome.story, reproduction(outcome)])


def test_the_same_seed_gives_the_same_history_in_every_process() -> None:
    command = [sys.executable, "-c", _DIGEST]
    found = {
        subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": hashes}
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(found) == 1


_DIGEST = "from optimus_world.world import Script, run; print(run(Script.drawn(5, 0.5)).digest)"


def test_a_world_without_accidents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--hours", "0.3", "--only", "a0,a1"]) == 0
    assert '"broken": null' in capsys.readouterr().out


def test_a_short_history_ends_its_accidents_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(world, "LIVELY_SECONDS", 60.0)  # no job ends as soon as that
    found = shrunk(run(Script(7, 0.3, (), (Act(0, 5.0, "submit", 0),))), 60.0)
    assert found.violation is not None
    assert found.violation.at < 400.0
    assert main(reproduction(found).split()[3:]) == 1
    assert found.violation.what in capsys.readouterr().out
