"""How long a training is meant to last, as its command and its text say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.readings.reading import NOTHING, Announced
from optimus_workers.script.announced import announced, of_command, of_text


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --epochs 10", Announced(total_epochs=10)),
        ("torchrun --nproc-per-node 2 train.py --max_steps=500 --num-train-epochs 3", Announced(500, 3)),
        ("python train.py trainer.max_epochs=7 model.lr=0.1", Announced(total_epochs=7)),
        ("python train.py --steps 5 --steps 9", Announced(9)),
        ("python train.py --epochs 10 --steps 100", Announced(total_epochs=10)),
        ("python train.py --max-steps -1 --epochs many --log-every 10", NOTHING),
        ("python train.py steps", NOTHING),
        ("python train.py --epochs", NOTHING),
    ],
)
def test_options_of_a_command(command: str, expected: Announced) -> None:
    assert of_command(command.split()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_iters = 5000  # of the optimizer", Announced(5000)),
        ("p.add_argument('--epochs', type=int, default=14, metavar='N')", Announced(total_epochs=14)),
        ("@click.option('--max-steps', default=100)\ndef main(max_steps): ...", Announced(100)),
        ("trainer = Trainer(max_epochs=6)\ntrainer.fit(model)", Announced(total_epochs=6)),
        ("config = {'lr': 2e-5, 'num_epochs': 3}", Announced(total_epochs=3)),
        ("def main(lr, epochs=8): ...", Announced(total_epochs=8)),
        ("class C:\n    max_iters: int = 10", Announced(10)),
        ("epochs = 3\nwarmup(epochs=1)", NOTHING),
        ("epochs = int(argv[1])\nsteps = 9\nmax_steps = -1\nmax_epochs = True", NOTHING),
    ],
)
def test_what_a_text_says(text: str, expected: Announced) -> None:
    assert of_text(text) == expected


def test_arguments_by_place() -> None:
    text = "p.add_argument('total_epochs', type=int)\np.add_argument('save_every')\np.add_argument('--lr')"
    assert of_text(text, ["6", "2", "--lr", "0.1"]) == Announced(total_epochs=6)
    assert of_text(text, ["--lr", "6"]) == NOTHING


def test_a_command_is_believed_over_its_scripts_and_the_last_script_over_the_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("max_iters = 600000\nepochs = 5")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.py").write_text("max_iters = 5000")
    (tmp_path / "run.sh").write_text('#!/bin/sh\n# epochs: see --epochs\npython train.py --epochs 2 "$@"\n')
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("num_epochs = 4")
    assert announced(["python", "train.py", "config/small.py"], tmp_path) == Announced(5000, 5)
    assert announced(["python", "train.py", "--max_iters=7"], tmp_path) == Announced(7, 5)
    assert announced(["bash", "run.sh"], tmp_path) == Announced(600000, 2)
    assert announced(["python", "-m", "pkg.train"], tmp_path) == Announced(total_epochs=4)
    assert announced(["python", "missing.py"], tmp_path) == NOTHING


@given(st.text(max_size=200), st.lists(st.text(max_size=12), max_size=6))
def test_any_text_and_any_words(text: str, words: list[str]) -> None:
    of_command(words)
    try:
        of_text(text, words)
    except (SyntaxError, ValueError, RecursionError):
        return
