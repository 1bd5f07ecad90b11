"""The simple commands of a text that a shell runs, where plain rules can read all of it. Pure.

Read are words with quotes, parted by `;`, `&`, `&&`, `||`, `|` and ends of lines; comments, assignments and
redirections to files; groups and subshells, `if`, `while`, `until` and `for`. A parameter or a plain `$(...)` in a word
is something unknown. A text with anything else (here-documents, functions, `case`, arrays, backquotes, nested
substitutions) is not read at all: nothing is told of it rather than something wrong.
"""

from __future__ import annotations

import re
import shlex
from itertools import dropwhile

UNKNOWN = "\0"
"""Stands in a word for what an expansion or a pattern of file names gives. No word of a command can have it."""

_PLAIN = r"""[^()"'`\\#<;\n]*+"""
"""One command, or arithmetic, without quotes: its end is plain to see."""
_EXPANSION = rf"""\$(?:\w++|[@*#?$!-]|\{{[^{{}}"'`\\$]*+\}}|\(\({_PLAIN}\)\)|\({_PLAIN}\))"""
_PIECE = rf"""(?:'[^']*+'|"(?:[^"\\$`]|\\.|{_EXPANSION})*+"|\\[^\n]|{_EXPANSION}|[^\s'"\\$`;&|<>()])"""
"""Of a word."""
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\n)++|#[^\n]*+)"
    rf"|(?P<redirection>(?:&>>?|(?:\{{\w++\}}|\d*+)(?:>>|>\||[<>]&?))[ \t]*+{_PIECE}++)"
    rf"|(?P<word>{_PIECE}++)"
    r"|(?P<separator>&&|\|[|&]?|&|;(?![;&])|\n|\((?!\()|\))",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(rf"[A-Za-z_]\w*(?:{UNKNOWN}[^=]*\])?\+?=")
_RESERVED = ("!", "{", "}", "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "time")
_BEFORE = frozenset((*_RESERVED, "exec", "command", "builtin", "nohup", "-p"))
"""What may stand before a command, or by itself; after other options than `-p` (of `time`) nobody knows its begin."""
_NO_COMMAND = frozenset(("for", "select", "[["))
_NOT_READ = frozenset(("case", "esac", "function", "coproc"))


def commands_of(text: str) -> tuple[tuple[str, ...], ...]:
    """The words of each command, as they are written from first to last, without quotes, assignments, redirections and
    what only stands before a command (`then`, `exec`); none of a text that is not read."""
    commands: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["separator"] == "(" and commands[-1]):
            return ()
        at = token.end()
        if token["word"]:
            commands[-1].append(_value(token["word"]))
        elif token["separator"]:
            commands.append([])
    started = [words for each in commands if (words := _started(each))]
    if any(words[0] in _NOT_READ or (words[0] == "[[" and words[-1] != "]]") for words in started):
        return ()
    return tuple(tuple(words) for words in started if words[0] not in _NO_COMMAND and not words[0].startswith("-"))


def _value(word: str) -> str:
    """Without its quotes, with `UNKNOWN` for what is not known."""
    known = re.sub(_EXPANSION, UNKNOWN, word)
    if known not in ("[", "[[", "{"):
        known = re.sub(r"[*?\[{]", UNKNOWN, known)  # what file names are made from
    return "".join(shlex.split(known))


def _started(words: list[str]) -> list[str]:
    return list(dropwhile(lambda word: word in _BEFORE or _ASSIGNMENT.match(word), words))
