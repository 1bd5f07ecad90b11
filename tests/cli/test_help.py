"""What `--help` says: whole names on narrow terminals, the usual flags first, and a flag for every field."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from tests.cli.conftest import Optimus

from optimus_cli.app import app
from optimus_cli.flags import FLAGS, USUAL

_ROOT: Any = typer.main.get_command(app)


def _command(path: tuple[str, ...]) -> Any:
    found = _ROOT
    for name in path:
        found = found.commands[name]
    return found


def _commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = getattr(command, "commands", {})
    return [path, *(found for name, each in inner.items() for found in _commands(each, (*path, name)))]


@pytest.mark.parametrize("path", _commands(_ROOT), ids=" ".join)
def test_help_cuts_no_name_at_80_columns(
    path: tuple[str, ...], optimus: Optimus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = optimus(*path, "--help-all" if path == ("submit",) else "--help")
    assert done.exit_code == 0
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def _flags(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))


def test_the_usual_flags_come_first_and_the_rest_on_request(optimus: Optimus) -> None:
    assert _flags(optimus("submit", "--help").stdout) == set(USUAL)
    assert _flags(optimus("submit", "--help-all").stdout) > {flag.name for flag in FLAGS} | set(USUAL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "--mode", "x"], "Invalid value for '--mode': 'x' is not one of 'sync', 'async'."),
        (["submit", "--workers-max", "1.5"], "Invalid value for '--workers-max': must be a whole number."),
        (["submit", "--max-epochs", "many"], "Invalid value for '--max-epochs': must be a number."),
        (["list", "--state", "x"], "Invalid value for '--state': 'x' is not one of 'queued'"),
        (["list", "--url", "localhost:8080"], "did you mean http://localhost:8080?"),
        (["serve", "--slots", "0"], "--slots 0: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_named_in_plain_words(arguments: list[str], said: str, optimus: Optimus) -> None:
    done = optimus(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Value error" not in done.stderr
    assert "Input should" not in done.stderr


def _option(record: tuple[str, str] | None) -> tuple[str, str]:
    """The longest name and the type in a line of help such as `--seed <int>`."""
    match = re.search(r"(--[a-z-]+) <(\w+)>", record[0] if record else "")
    return (match[1], match[2]) if match else ("", "")


def _numbers() -> list[tuple[tuple[str, ...], str]]:
    """Each option of each command that takes a number."""
    found = []
    for path in _commands(_ROOT):
        command = _command(path)
        shown = [each.get_help_record(typer.Context(command)) for each in command.params]
        found += [(path, name) for name, of in (_option(record) for record in shown) if of in ("int", "float")]
    return found


@pytest.mark.parametrize(
    ("path", "option"), _numbers(), ids=lambda each: each if isinstance(each, str) else " ".join(each)
)
@pytest.mark.parametrize("wrong", ["nan", "inf", "1e400", "", "x", "½"])
def test_what_is_no_number_is_refused_with_the_flag(
    path: tuple[str, ...], option: str, wrong: str, optimus: Optimus
) -> None:
    needed = ["a" for each in _command(path).params if each.required]
    done = optimus(*path, *needed, option, wrong)
    assert done.exit_code == 2, done.stderr
    assert option in done.stderr
    assert "Traceback" not in done.stderr
