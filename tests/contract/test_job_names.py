"""What a job is called by the text that a shell runs for it: by a program or a script of the text, or by the shell."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optimus_contract.command import title_of
from optimus_contract.job_name import MAX_NAME, name_for, told_name
from optimus_contract.shell_text import UNKNOWN, commands_of

SCRIPTS = ("train.py", "a/b_c.py", "2.py", "Größe1.py")
PROGRAMS = ("./own", "nvidia-smi", "x264", "/opt/p", "Ünder")
SAYS_NOTHING = ("''", "2", "7.5", "'1 2'", "$X", "опыт", '"$@"', "*")
"""Words that no job can be named after."""
REDIRECTIONS = (
    ">x",
    "2>&1",
    "<in",
    ">> log",
    "2>/dev/null",
    "&>all",
    ">|y",
    "10<&0",
    "2>&-",
    "<<<word",
    "{fd}>z",
    '>"a b"',
    ">$LOG.py",
    "< <(cat q)",
)
ARGUMENTS = (
    "--lr",
    "1",
    "'a;b'",
    '"x $((1+2)) y"',
    "$(date)",
    "\\\n",
    "é",
    '"${A:-it is}"',
    "a\\ b",
    "`date`",
    "[x]",
    "{1,2}",
)
ASSIGNMENTS = ("A=1", "B='x y.py'", "C+=2", "D=$(date)", "E=$((1+2))", "F[0]=x", "G=(p.py q)", "H=")
AROUND = (
    "{a} {c}",
    "( {a} {c} )",
    "{{ {a} {c}\n}}",
    "if true; then {a} {c}; fi",
    "for i in 1 '2 3'; do {a} {c}; done",
    "while read x; do {a} {c}\ndone <in",
    "case $X in (a|2.py) {a} {c};; b) ;; esac",
    "f() {{ {a} {c}; }}; f",
    "function g {{ {a} {c}; }}\ng 2",
    "time -p {a} {c}",
    "! {a} {c}",
    "[[ a < b.py ]] && {a} {c}",
    "for ((i=0; i<3; i++)); do {a} {c}; done",
    "(( i++ )); {a} {c}",
    ": <<A\nv.py\nA\n{a} {c}",
    "{a} {c} <<'E' ;\npython w.py\nE\n",
    "{a} {c} <<-E\n\tw.py\n\tE\n",
    "# python r.py\n{a} {c}",
    "export A=b.py; {a} {c}",
)
STARTS = (
    "{a} exec {c}",
    "{a} exec -a 3.py {c}",
    "{a} exec -cl {c}",
    "{a} command -p {c}",
    "command -v q.py; {a} {c}",
    "cd x && {a} {c}",
)
"""Where bash tells of no program, or goes on without one."""


def name(text: str) -> str:
    return name_for(title_of(["sh", "-c", text]))


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, str]:
    """A command with redirections at any place, and its only word that a job may be named after; it may have none."""
    means = draw(st.sampled_from((*SCRIPTS, *PROGRAMS, "")))
    if means in SCRIPTS:
        words = [draw(st.sampled_from(("python", "$PYTHON", "torchrun", "bash"))), means]
    else:
        words = [means or draw(st.sampled_from(SAYS_NOTHING))]
    words += draw(st.lists(st.sampled_from(ARGUMENTS), max_size=2))
    for redirection in draw(st.lists(st.sampled_from(REDIRECTIONS), max_size=3)):
        words.insert(draw(st.integers(0, len(words))), redirection)
    return " ".join(words), means


@st.composite
def texts(draw: st.DrawFn, around: tuple[str, ...]) -> tuple[str, list[str]]:
    """A text of some commands, and the words of it that a job may be named after."""
    pieces, meant = [], list[str]()
    for _ in range(draw(st.integers(1, 3))):
        command, means = draw(commands())
        assignments = " ".join(draw(st.lists(st.sampled_from(ASSIGNMENTS), max_size=2)))
        pieces.append(draw(st.sampled_from(around)).format(a=assignments, c=command))
        meant += [means] if means else []
    return "\n".join(pieces), meant


@given(texts((*AROUND, *STARTS)))
def test_a_name_is_a_program_or_script_of_the_text_or_the_shells_own(told: tuple[str, list[str]]) -> None:
    text, meant = told
    assert name(text) in {"sh", *(name_for(each) for each in meant)}


PREPARING = (
    "set -e",
    "cd x",
    "source venv/bin/activate",
    "export A=1 B=b.py",
    "mkdir -p out",
    "cp c.py out/",
    "nvidia-smi | tee gpu.py",
    "pip install -r requirements.txt",
    "conda activate y",
    "[ -f d.py ] || ./fetch --to d.py >e.py 2>&1",
    "[[ -n $X ]]",
    "python -c 'import f.py'",
    "# python g.py \\",
    "",
)
TRAINING = (
    "python train.py",
    "python3 -u ~/code/train.py",
    '"$PYTHON" "$HOME/my code/train.py"',
    "python -m pkg.train",
    "torchrun --nproc 2 train.py",
    "mpirun -np 4 python train.py",
    "bash ./train.sh",
)
LEADING = (
    "",
    "A=1 B='x y.py' ",
    "exec ",
    "time ",
    "env A=$X ",
    "nohup ",
    "CUDA_VISIBLE_DEVICES=0 exec nohup env -u A nice ",
)
FOLLOWING = ("", " --lr 1", " --out 'a;b' \\\n  --seed=$((1 + $X))", " {1,2} x\\ y", " --at $(date +%F) # h.py")
ENDS = ("", "\n", " >log 2>&1", " 2>&1 | tee log.py", " &\nwait", "\ncp i.py out/; ./own")
COMPOUND = (
    "{}",
    "({}\n)",
    "{{ {}\n}}",
    "for i in 1 j.py; do\n{}\ndone",
    "while read x; do {}\ndone <k.py",
    "if [ -f l.py ]; then\n{}\nfi",
)


@given(
    st.lists(st.tuples(st.sampled_from(PREPARING), st.sampled_from((" && ", "; ", "\n", " || "))), max_size=3),
    st.tuples(*(st.sampled_from(each) for each in (LEADING, TRAINING, FOLLOWING, ENDS))),
    st.sampled_from(COMPOUND),
)
def test_a_simple_text_is_called_after_its_script(
    before: list[tuple[str, str]], training: tuple[str, ...], compound: str
) -> None:
    prepared = "".join(command + ("\n" if command[:1] in ("", "#") else end) for command, end in before)
    for text in (prepared + compound.format("".join(training)), compound.format(prepared + "".join(training))):
        assert name(text) == "train", text


ANY = st.one_of(
    st.text(),
    st.text("py2.<>&|;()$`'\"\\ \n#=[]{}éa-", max_size=40),
    st.lists(st.sampled_from((*AROUND, *STARTS, *REDIRECTIONS, *ARGUMENTS, *ASSIGNMENTS, *TRAINING)), max_size=6).map(
        "".join
    ),
)


@given(ANY)
def test_each_text_has_a_name(text: str) -> None:
    found = name(text)
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", found)
    assert re.search("[a-z]", found)


@pytest.mark.parametrize(
    "text",
    [
        "2>&1 <in >x",
        "echo $((1+",
        "2 >x",
        "2> x",
        "<in.py",
        ">a.py 2>b.py",
        "A=1 B=x.py >y",
        "[[ -f x.py ]]",
        "[[ a < b.py ]]",
        "exec 2>&1",
        "exec -a a.py",
        "command -v python",
        "# python a.py",
        "mkdir -m 755 out",
        "7 8",
        "тренировка",
        "*.py",
        "t{1,2}.py",
        "python a.py 'cut",
        'python a.py "cut',
        "python a.py $(cut",
        "python a.py ${cut",
        "python a.py `cut",
        "python a.py >",
        "$(" * 5000,
        "${a:-" * 5000,
        "! " * 20_000,
        '"$a' * 20_000,
    ],
)
def test_where_nothing_of_a_text_is_a_program_it_is_called_after_the_shell(text: str) -> None:
    assert name(text) == "sh"
    assert name_for(title_of(["env", "A=1", "/bin/bash", "-lc", text])) == "bash"


@pytest.mark.parametrize(
    "text",
    [
        "python - <<'E'\nimport b.py\nE",
        "cat >x <<E\npython b.py\nE\npython a.py",
        "python a.py <<<b.py",
        "f() { python b.py; }\npython a.py",
        "function f { python b.py; }; python a.py",
        "case $X in a) python a.py;; b) python b.py;; esac",
        "case $X in\na) python a.py\nesac",
        "A=(b.py c); python a.py",
        "coproc P { python b.py; }; python a.py",
        "[[ -f a && b.py ]]; python a.py",
        "((x++)); python a.py",
        "for ((i=0; i<3; i++)); do python a.py; done",
        "python a.py `date`",
        "python a.py $(cat $(ls b.py))",
        "python a.py $(date; python b.py)",
        "diff <(python b.py) y; python a.py",
        "python a.py $'b.py'",
    ],
)
def test_a_text_that_is_not_read_is_called_after_the_shell(text: str) -> None:
    assert name(text) == "sh"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (">log 2>&1 python train.py <in", "train"),
        ('python "${HOME}/$X.py"', "python"),
        ("python prepare.py && torchrun train.py && python evaluate.py", "train"),
        ("python prepare.py && python train.py", "train"),
        ("python train.py; python -c 'print(1)'; ./own", "train"),
        ("bash -c 'exit 1' && python train.py", "train"),
        ("bash -c './a; python b.py'", "b"),
        ("python3 2.py", "2-py"),
        ("if [[ $A < 2 ]]; then ./x; fi", "x"),
        ("./x 2>&1 | tee log", "x"),
        ("./a#b.py # c", "a-b"),
        ("echo ';' ./a; ./b", "b"),
        ("torchrun $SCRIPT", "torchrun"),
    ],
)
def test_what_a_text_runs(text: str, expected: str) -> None:
    assert name(text) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "2.py"], "2-py"),
        (["python", "2"], "python"),
        (["node", "train.mjs"], "train"),
        (["bash", "7"], "bash"),
        (["env", "python", "опыт.py"], "python"),
        (["./1"], "job"),
        (["sh", "-c", ""], "sh"),
    ],
)
def test_a_number_is_no_name(command: list[str], expected: str) -> None:
    assert name_for(title_of(command)) == expected


@given(st.text())
def test_a_name_that_is_told_is_valid(trains: str) -> None:
    told = told_name(trains)
    assert told is None or (re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", told) and re.search("[a-z]", told))
    assert told is None or len(told) <= MAX_NAME


BASH = shutil.which("bash")
BUILTINS = frozenset(("true", "read", "export", ":"))


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_what_bash_does_itself_is_no_program() -> None:
    told = subprocess.run([str(BASH), "-c", "compgen -b; compgen -k"], capture_output=True, text=True, check=True)
    for word in told.stdout.split():
        assert name(f"{word} x") in ("sh", "x"), word  # `exec x`, `if x`


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@settings(max_examples=60)
@given(texts(AROUND))
def test_bash_starts_the_programs_that_are_found(told: tuple[str, list[str]]) -> None:
    """Where it finds no program, bash tells which one it looked for."""
    text = told[0].replace("/", "_")
    assume('"$@"' not in text and "*" not in text.split())
    handle = 'command_not_found_handle() { builtin printf "%s\\n" "$1" >>"$TOLD"; }\n'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "in").write_text("1\n")
        told_in = Path(folder) / "told"
        told_in.touch()
        values = {"PATH": folder, "TOLD": str(told_in), "PYTHON": "$PYTHON", "X": "a", "LOG": "log"}
        command = [str(BASH), "-c", handle + text]
        subprocess.run(command, cwd=folder, env=values, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        started = set(told_in.read_text().splitlines())
    started -= {"", "a", "$PYTHON"}
    found = {each[0] for each in commands_of(text) if UNKNOWN not in each[0]} - BUILTINS - {""}
    assert found <= started, text
    if commands_of(text):
        assert started - found <= {"date"}, "of `$(...)` nothing is told"
