"""What a command runs, by its words: jobs that run the same are of one task."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.command import script_of, title_of, work_of

WORDS = (
    "sh",
    "cd x && python a.py",
    "python",
    "bash",
    "env",
    "perl",
    "-c",
    "-m",
    "-e",
    "-",
    "",
    "-lc",
    "a.py",
    "x",
    "--",
)


@pytest.mark.parametrize(
    ("command", "name", "arguments"),
    [
        ("python train.py --lr 1", "train.py", "--lr 1"),
        ("python -u train.py -c x", "train.py", "-c x"),
        ("/usr/bin/python3.11 -X dev train.py", "train.py", ""),
        ("torchrun --nproc-per-node 2 train.py -m x", "train.py", "-m x"),
        ("torchrun -m pkg.train --lr 1", "pkg.train", "--lr 1"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py", ""),
        ("python -m coverage run train.py --lr 1", "train.py", "--lr 1"),
        ("accelerate launch train.py", "train.py", ""),
        ("./train --lr 1", "./train", "--lr 1"),
        ("bash train.sh -c 1", "train.sh", "-c 1"),
        ("bash -x train.sh -c 1", "train.sh", "-c 1"),
        ("/bin/bash --rcfile rc -euo pipefail -- a.sh x.py", "a.sh", "x.py"),
        ("env A=1 zsh ./b.sh", "./b.sh", ""),
        ("dash -e b.sh", "b.sh", ""),
        ("perl train.pl -e 1", "train.pl", "-e 1"),
        ("Rscript --vanilla train.R", "train.R", ""),
        ("julia -t 4 -- train.jl 1", "train.jl", "1"),
        ("python -u train --config x.py", "train", "--config x.py"),
        ("own -c x", "own", "-c x"),
        ("python -m pkg.train --lr 1", "pkg.train", "--lr 1"),
        ("python -um pkg.train --lr 1", "pkg.train", "--lr 1"),
        ("python -mpkg.train", "pkg.train", ""),
    ],
)
def test_a_script_a_module_or_a_program_is_called_what_it_is(command: str, name: str, arguments: str) -> None:
    found = work_of(shlex.split(command))
    assert found == (name, tuple(shlex.split(arguments)), False)


@pytest.mark.parametrize(
    ("command", "name", "arguments"),
    [
        ("python -c {}", "python -c", ""),
        ("python -c {} --lr 1", "python -c", "--lr 1"),
        ("/opt/env/bin/python3 -u -W ignore -c {} train.py", "python3 -c", "train.py"),
        ("python -uc {}", "python -c", ""),
        ("python -c{}", "python -c", ""),
        ("env A=1 nohup python -c {}", "python -c", ""),
        ("uv run --with torch python -c {}", "python -c", ""),
        ("sh -c {} a b", "sh -c", "a b"),
        ("bash -lc {}", "bash -c", ""),
        ("/bin/bash --login -euo pipefail -c {}", "bash -c", ""),
        ("bash -c -e {}", "bash -c", ""),
        ("perl -MList::Util -lane {} a", "perl -e", "a"),
        ("ruby -e {}", "ruby -e", ""),
        ("node --eval={}", "node -e", ""),
        ("Rscript --vanilla -e {}", "Rscript -e", ""),
        ("julia -t 4 -e {}", "julia -e", ""),
    ],
)
def test_code_in_a_command_is_told_from_other_code(command: str, name: str, arguments: str) -> None:
    def work(code: str) -> tuple[str, tuple[str, ...], bool]:
        return work_of(shlex.split(command.format(shlex.quote(code))))

    one, again, other = (work(code) for code in ("print(1)", "print(1)", "exec python train.py"))
    assert one == again
    assert one[1:] == (tuple(shlex.split(arguments)), False)
    assert one[0] != other[0], "other code is another task"
    for each in (one, other):
        assert each[0].rpartition(" ")[0] == name
        assert len(each[0]) == len(name) + 9, "short enough to be read"


@pytest.mark.parametrize(
    "command", ["python", "python - --lr 1", "python -u -", "bash", "bash -s x", "sh -l", "perl -", "env A=1 python -"]
)
def test_of_code_that_comes_through_the_input_nobody_knows_which(command: str) -> None:
    assert work_of(shlex.split(command)).reads_code


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ("cd x && python train.py --a", "train.py"),
        (
            "set -e; mkdir -p out; python3 -m pip install y; A=1 torchrun src/tune.py >log 2>&1",
            "src/tune.py",
        ),
        ("source env/bin/activate\npython -m pkg.main --x 1", "pkg.main"),
        ("for i in 1 2; do python loop.py $i; done", "loop.py"),
        ("if [ -f a ]; then exec python b.py; fi", "b.py"),
        ("nvidia-smi && python train.py | tee log", "train.py"),
        ("$PYTHON train.py", "train.py"),
        ("bash -c 'python deep.py'", "deep.py"),
        ("bash runs/all.sh", "runs/all.sh"),
        ("./train --lr 1", "./train"),
    ],
)
def test_text_that_a_shell_runs_is_called_what_it_runs(code: str, title: str) -> None:
    for shell in (["sh", "-c"], ["/bin/bash", "-euo", "pipefail", "-c"], ["env", "A=1", "bash", "-lc"]):
        assert title_of([*shell, code]) == title
        assert work_of([*shell, code]).name == script_of([*shell, code]) != title, "other code is another task"


@pytest.mark.parametrize("code", ["exit 1", "", ";;", "it's", '"$@"', "$PROGRAM x", "read x; echo $x"])
def test_text_of_which_that_cannot_be_told_is_called_after_the_shell(code: str) -> None:
    assert title_of(["sh", "-c", code]) == script_of(["sh", "-c", code])


@pytest.mark.parametrize(
    "command", ["python train.py", "bash a.sh x", "python -c x.py", "torchrun t.py", "./run", "sh"]
)
def test_any_other_command_is_called_what_it_runs(command: str) -> None:
    assert title_of(command.split()) == script_of(command.split())


@given(st.lists(st.sampled_from(WORDS), min_size=1))
def test_each_command_has_a_name_and_the_rest_of_its_words(command: list[str]) -> None:
    found = work_of(command)
    assert found.name == script_of(command)
    assert isinstance(title_of(command), str)
    assert found.name or not command[0], "a job is of no task without a name"
    assert found.arguments == tuple(command[len(command) - len(found.arguments) :])
