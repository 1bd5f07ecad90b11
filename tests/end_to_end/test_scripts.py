"""A user's own script as a job: submitted by its command, resized, learned; and what is said about mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.test_first_steps import Shell

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One service for all tests here: what is refused leaves nothing behind."""
    found = Shell(tmp_path_factory.mktemp("served"))
    shutil.copy(SCRIPTS / "ddp_train.py", found.directory / "train.py")
    started = found("optimus serve --detach --slots 4")
    assert started.returncode == 0, started.stderr
    yield found
    found("optimus stop --tasks")


def test_a_stock_script_runs_is_learned_and_resized(served: Shell) -> None:
    command = "torchrun train.py --steps 400 --step-seconds 0.1 --snapshot snapshot.pt"
    done = served(f"optimus submit --resumes --workers-max 3 --watch -- {command}")
    assert done.returncode == 0, done.stdout + done.stderr
    job = json.loads(served("optimus describe train --json").stdout)
    assert (job["state"], job["step"], job["spec"]["architecture"]) == ("succeeded", 400, "script")
    assert job["profile"]["total_steps"] == 400
    assert job["profile"]["learned_from"] == "printed"
    assert job["rescales"] >= 1, "its speed was learned at more than one size"
    assert (served.directory / "snapshot.pt").is_file(), "it ran where it was submitted"
    shown = served("optimus describe train").stdout
    assert "torchrun train.py" in shown
    assert "its command ends" in shown
    assert "what it prints" in shown
    assert "None" not in shown
    logged = served("optimus logs train").stdout
    assert "step 400/400" in logged


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-- torchrn train.py", "torchrn: command not found"),
        ("-- torchrun trian.py", "trian.py is no file in"),
        ("--max-epochs 3 -- torchrun train.py", "--max-epochs: a script has an argument of its own"),
        ("--python /nowhere/python -- python train.py", "--python: /nowhere/python is no program"),
        ("--progress-pattern 'step (\\d+' -- python train.py", "is not a regular expression"),
        ("--progress-pattern 'step' -- python train.py", "names no value"),
        ("--architecture ps -- python train.py", "command is for scripts"),
        ("--servers-min 1 --servers-max 2 -- python train.py", "a script has no servers"),
        ("-- torchrun --nproc-per-nod 2 train.py", "torchrun option --nproc-per-nod is not known"),
    ],
)
def test_mistakes_are_refused_with_their_place(served: Shell, arguments: str, said: str) -> None:
    done = served(f"optimus submit {arguments}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert {job["state"] for job in json.loads(served("optimus list --all --json").stdout)["jobs"]} <= {"succeeded"}
