"""What `--help` says: whole names on narrow terminals, the usual flags first, and a flag for every field."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from tests.cli.conftest import COMMAND, Optimus, all_commands

from optimus_cli.configuration import load_settings
from optimus_cli.errors import BadInput
from optimus_cli.job.flags import CHANGING, FLAGS, USUAL
from optimus_service.settings import Settings


def _command(path: tuple[str, ...]) -> Any:
    found = COMMAND
    for name in path:
        found = found.commands[name]
    return found


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
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


@pytest.mark.parametrize("command", ["describe", "explain", "cancel", "delete"])
def test_which_job_of_several_of_one_name_is_meant(command: str, optimus: Optimus) -> None:
    words = " ".join(re.sub(r"[│|]", " ", optimus(command, "--help").stdout).split())
    assert "its name (of several the newest active, else the newest)" in words


def test_what_is_left_out_of_a_change_has_no_default() -> None:
    assert [flag.name for flag in CHANGING if "default" in flag.option.help.lower()] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "--mode", "x"], "Invalid value for '--mode': 'x' is not one of 'sync', 'async'."),
        (["submit", "--workers-max", "1.5"], "Invalid value for '--workers-max': must be a whole number."),
        (["submit", "--max-epochs", "many"], "Invalid value for '--max-epochs': must be a number."),
        (["list", "--state", "x"], "Invalid value for '--state': 'x' is not one of 'queued'"),
        (["list", "--url", "localhost:8080"], "did you mean http://localhost:8080?"),
        (["serve", "--slots", "0"], "--slots 0: must be greater than or equal to 1"),
        (["serve", "--local-gpus", "h100"], "--local-gpus 'h100': expected TYPE=COUNT, such as a100=4"),
        (["serve", "--price-per-gpu-hour", "2"], "--price-per-gpu-hour '2': expected TYPE=PRICE"),
        (["project", "set", "vision", "--gpus", "4"], "--gpus '4': expected TYPE=COUNT, such as a100=4"),
        (["simulate", "--trace", "pollux"], "pollux: say which file, such as pollux:FILE"),
        (["serve", "--local-gpus", "h100=many"], "--local-gpus"),
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
    for path in all_commands():
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


def test_the_defaults_in_the_help_of_serve_are_those_of_the_service(
    optimus: Optimus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = " ".join(optimus("serve", "--help").stdout.split())
    for field, words in {
        "host": "{} by default",
        "port": "{} by default",
        "data_directory": "by default {}",
        "policy": "{} by default",
        "round_seconds": "scheduling rounds, {:g} by default",
        "learning_round_seconds": "being learned, {:g} by default",
        "debounce_seconds": "{:g} by default",
        "local_nodes": "spread over, {} by default",
        "drain_seconds": "to leave, {:g} by default",
        "max_task_failures": "fail a job, {} by default",
        "price_per_core_hour": "for an hour, {:g} by default",
    }.items():
        assert words.format(Settings.model_fields[field].default) in told


def test_a_variable_may_be_called_like_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIMUS_SLOTS", "3")
    assert load_settings({}).local_slots == 3
    assert load_settings({"local_slots": 5}).local_slots == 5, "a flag comes first"
    monkeypatch.setenv("OPTIMUS_LOCAL_SLOTS", "4")
    assert load_settings({}).local_slots == 4, "the setting's own name comes before its flag's"
    monkeypatch.delenv("OPTIMUS_LOCAL_SLOTS")
    monkeypatch.setenv("OPTIMUS_SLOTS", "none")
    with pytest.raises(BadInput, match="--slots"):
        load_settings({})
