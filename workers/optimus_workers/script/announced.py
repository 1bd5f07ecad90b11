"""How long a training is meant to last, as its command and its script's text say: `--epochs 10`, `max_iters = 5000`.

Many scripts print their steps and never how many there are. What is found here counts only where the training itself
does not say, and no longer than its steps agree with it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.reading import EPOCHS, STEPS, Announced

MAX_SOURCE_BYTES = 1024 * 1024
_STEPS_OF_A_COMMAND = frozenset({"steps", "iters", "num_steps", "n_steps"})
"""In a text these may be anything, such as the length of a sequence; beside a number of epochs they may be of each."""
_OPTION = re.compile(r"(?:--?|\+)?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


def announced(command: Sequence[str], directory: Path) -> Announced:
    """What a command that runs in `directory` says, else the text of the scripts that it names."""
    words = list(command)
    for name in command[:3]:
        if name.endswith(".sh"):
            with suppress(OSError, ValueError):
                words = [*shlex.split(_text(directory / name), comments=True), *words]
    found = of_command(words)
    for path, arguments in reversed(list(_scripts(words, directory))):
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            found = found.over(of_text(_text(path), arguments))
    return found


def of_command(words: Sequence[str]) -> Announced:
    """What options such as `--epochs 10`, `--max-steps=500` and `trainer.max_epochs=10` say; the last one of a kind."""
    steps = epochs = other_steps = None
    for word, after in zip(words, [*words[1:], ""], strict=False):
        match = _OPTION.fullmatch(word)
        if match is None or (match[2] is None and not word.startswith("-")):
            continue
        name = match[1].rpartition(".")[2].replace("-", "_").lower()
        value = _whole(after if match[2] is None else match[2])
        if name in STEPS:
            steps = value or steps
        elif name in _STEPS_OF_A_COMMAND:
            other_steps = value or other_steps
        elif name in EPOCHS:
            epochs = value or epochs
    return Announced(steps or (other_steps if epochs is None else None), epochs)


def of_text(text: str, arguments: Sequence[str] = ()) -> Announced:
    """What constants, arguments and defaults of options in a Python text say, if all of a kind say the same.

    `arguments`: what the command gives the script; what it takes by place (`add_argument("epochs")`) is among them.

    Raises:
        SyntaxError, ValueError, RecursionError: it is no Python.
    """
    steps, epochs = set[int](), set[int]()
    tree = ast.parse(text)
    placed = zip(_places(tree), takewhile(lambda word: not word.startswith("-"), arguments), strict=False)
    by_place = [(name, _whole(word)) for name, word in placed]
    for name, value in [*by_place, *((name, _constant(node)) for name, node in _named(tree))]:
        if value is not None and name.lower() in STEPS:
            steps.add(value)
        elif value is not None and name.lower() in EPOCHS:
            epochs.add(value)
    return Announced(_only(steps), _only(epochs))


def _places(tree: ast.AST) -> list[str]:
    """The arguments that a script takes by their place, as it names them."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    added = [
        call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    ]
    names = [each.value for each in added if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [name for name in names if not name.startswith("-")]


def _named(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield _name(node.targets[0]), node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield _name(node.target), node.value
        elif isinstance(node, ast.Call):
            yield from _arguments(node)
        elif isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else "" for key in node.keys]
            yield from ((key, value) for key, value in zip(keys, node.values, strict=True) if isinstance(key, str))
        elif isinstance(node, ast.arguments):
            names = [each.arg for each in (*node.posonlyargs, *node.args)]
            yield from zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True)


def _arguments(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Those with names; of a call that makes an option (`add_argument("--epochs", default=3)`) its default."""
    options = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    for keyword in call.keywords:
        if keyword.arg == "default":
            for option in options:
                yield option.lstrip("-").replace("-", "_"), keyword.value
        elif keyword.arg is not None:
            yield keyword.arg, keyword.value


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def _constant(node: ast.expr) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT else None


def _only(values: set[int]) -> int | None:
    return values.pop() if len(values) == 1 else None


def _whole(text: str) -> int | None:
    text = text.replace("_", "")
    return int(text) if text.isdecimal() and len(text) < 16 and 0 < int(text) <= MAX_COUNT else None


def _scripts(words: Sequence[str], directory: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """The Python files that a command names, each with the words after it."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            yield directory / word, words[index + 1 :]
        elif index and words[index - 1] == "-m":
            path = directory.joinpath(*word.split("."))
            file = path / "__main__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
            yield file, words[index + 1 :]


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_SOURCE_BYTES:
        raise ValueError(f"{path} is too large")
    return path.read_text(encoding="utf-8")
