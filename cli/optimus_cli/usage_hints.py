"""What typer says of a wrong command line, with what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from optimus_cli import hints

_FEW = 10
"""Options that are all named where none is near."""
_LISTS = ("List", "Show")
"""How the help of commands begins that show what they are called after."""


def explain_unknown(error: Any, ctx: Any, words: Sequence[str]) -> None:
    """Of a group's usage error: which command is meant. `words`: what follows the group, options left out."""
    inner = [*_path(ctx), *words]
    error.message = f"No such command '{words[0]}'."
    if f"--{words[0]}" in _options(ctx.command, ctx):
        error.message += f" Did you mean `{ctx.command_path} --{words[0]}`?"
    elif found := hints.meant(inner, commands_of(ctx)):
        error.message += f" {hints.sentence(found)}"
    elif ctx.parent is not None:
        error.message += f" `{ctx.command_path}` has {', '.join(ctx.command.list_commands(ctx))}."


def explain(error: Any, ctx: Any, words: Sequence[str]) -> None:
    """Of a usage error of a command that was given `words`: what it takes instead, or which option is meant."""
    if "unexpected extra argument" in error.message:
        error.message = f"{error.message}. {_instead(ctx, words)}"
    elif error.message.startswith("No such option"):
        _explain_option(error, ctx, words)


def commands_of(ctx: Any) -> hints.Commands:
    """All commands of the program."""
    paths: list[hints.Path] = []
    about_jobs, lists = set[str](), set[str]()
    for name, command in ctx.find_root().command.commands.items():
        inner = getattr(command, "commands", None)
        if inner is not None:
            paths += [(name, each) for each in inner]
            continue
        paths.append((name,))
        if getattr(command, "rich_help_panel", None) == hints.JOBS_PANEL:
            about_jobs.add(name)
        if (command.help or "").startswith(_LISTS) and not _arguments(command):
            lists.add(name)
    return hints.Commands(paths, about_jobs, lists)


def _path(ctx: Any) -> hints.Path:
    """The words of a command, without `optimus`."""
    return () if ctx.parent is None else (*_path(ctx.parent), ctx.info_name)


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def _options(command: Any, ctx: Any) -> list[str]:
    return [name for each in command.get_params(ctx) if each.param_type_name == "option" for name in each.opts]


def _instead(ctx: Any, words: Sequence[str]) -> str:
    """What would be right where a command has no place for some of its words."""
    path, command = _path(ctx), ctx.command
    values, extra, _ = command.make_parser(ctx).parse_args(args=list(words))
    given = [values[each.name] for each in _arguments(command) if values.get(each.name)]
    if extra[0] == "help":
        return f"`{ctx.command_path} -h` shows what it takes."
    said = [*given, *extra]
    found = hints.rather(path, said, commands_of(ctx))
    if found == [path]:
        return f"Leave out '{said[0]}': `{ctx.command_path}`{' is enough.' if len(said) == 1 else ' takes the rest.'}"
    if found:
        return hints.sentence(found)
    choice = next((name for name, choices in _choices(command, ctx) if extra[0] in choices), None)
    if choice is not None:
        return f"Did you mean {choice} {extra[0]}?"
    others = ctx.find_root().command.commands if len(path) == 1 and not _arguments(command) else {}
    plain = [name for name, each in others.items() if name != path[0] and getattr(each, "commands", None) is None]
    alike = [(name,) for name in plain if hints.alike(name, path[0])]
    return hints.sentence(alike) if alike else _takes(ctx)


def _choices(command: Any, ctx: Any) -> Iterator[tuple[str, list[str]]]:
    """The options that take one of some words, by the line of help about them, which all versions of typer have."""
    for option in command.get_params(ctx):
        record = option.get_help_record(ctx) if option.param_type_name == "option" else None
        listed = re.search(r"[<\[]([\w-]+(?:\|[\w-]+)+)[>\]]", record[0]) if record else None
        if listed:
            yield option.opts[0], listed[1].split("|")


def _takes(ctx: Any) -> str:
    """What a command takes."""
    arguments = [each.metavar or each.name for each in _arguments(ctx.command)]
    if arguments:
        options = _named(_options(ctx.command, ctx), ", and ")
        return f"`{ctx.command_path}` takes one {arguments[0].strip('[].')}{options}."
    return f"`{ctx.command_path}` takes no words, only options{_named(_options(ctx.command, ctx), ': ')}."


def _named(options: Sequence[str], before: str) -> str:
    """The options, where they are few."""
    long = [name for name in options if name.startswith("--") and name != "--help"]
    return f"{before}{', '.join(long)}" if 0 < len(long) <= _FEW else ""


def _explain_option(error: Any, ctx: Any, words: Sequence[str]) -> None:
    known = _options(ctx.command, ctx)
    # Of `-help` typer says that there is no `-e`.
    long = (word for word in words if len(word) > 2 and word[0] == "-" and f"-{word}" in known)
    typed = next(long, error.option_name)
    follows = [name for name, each in getattr(ctx.command, "commands", {}).items() if typed in _options(each, ctx)]
    near = hints.near_options(typed, known)
    error.possibilities = None  # typer words those, each version in its way
    if follows:
        name = next((word for word in words if word in follows), follows[0])
        error.message = f"{typed} follows a command: `{ctx.command_path} {name} {typed}`."
    elif near:
        error.message = f"No such option: {typed}. Did you mean {' or '.join(near)}?"
    else:
        error.message = f"No such option: {typed}{_named(known, '; there are ')}."
