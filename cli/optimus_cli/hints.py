"""What was meant by words that are no command, or by an option that a command does not have. Pure.

Everything is found from the commands that there are. A command is about something and does something: `node drain` and
`nodes`, which lists nodes, are about nodes, and `list` and `cancel` are about jobs. What was typed is read as a thing
and what to do with it, in both orders, in the singular and the plural, and by the words that other programs use.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

Path = tuple[str, ...]
"""A command by its words, without `optimus`: `("node", "drain")`."""

MOST = 4
"""Commands that one hint names."""
JOB, LIST, SHOW, CREATE = "job", "list", "describe", "create"
JOBS_PANEL = "Jobs"
"""The heading, in `optimus -h`, of commands that are about jobs."""

_ALIKE = tuple(
    frozenset(word if len(word) < 4 else word.removesuffix("s") for word in words.split())
    for words in (
        "list ls ps squeue qstat all",
        "describe show get info inspect status event view detail display",
        "create submit add new make run start launch sbatch qsub",
        "delete remove rm del drop revoke erase",
        "cancel kill abort stop scancel qdel terminate",
        "set update edit change modify patch scale",
        "serve server service start up",
        "log tail output",
        "node sinfo cluster machine host",
        "cordon close disable",
        "uncordon open enable",
        "upgrade migrate",
        "pause suspend hold",
        "resume unpause continue release",
        "retry rerun restart requeue",
        "db database",
        "secret encryption",
        "user people",
        "project quota",
        "cpu core vcpu processor",
        "memory mem ram",
        "name title",
    )
)
"""Words, in the singular, that are said for the same."""
_INSTEAD = {SHOW: LIST, CREATE: "set", LIST: SHOW}
"""What does nearly that, where nothing does it: `project set` makes a project that is not there."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands that there are."""

    paths: Sequence[Path]
    about_jobs: Collection[str]
    """Those of one word that are about jobs ..."""
    lists: Collection[str]
    """... and those that list what they are called after: `nodes`, `queue`."""

    @property
    def groups(self) -> list[str]:
        """What has commands of its own."""
        return list(dict.fromkeys(path[0] for path in self.paths if len(path) > 1))

    def readings(self, path: Path) -> Iterator[tuple[str, str]]:
        """What a command is about, and what it does."""
        if len(path) > 1:
            yield path[0], path[1]
            return
        (word,) = path
        if word in self.about_jobs:
            yield JOB, word
        if word in self.lists:
            yield word, LIST


def meant(typed: Sequence[str], commands: Commands) -> list[Path]:
    """The commands that may be meant, the likeliest first; empty: nothing is like it.

    `typed`: what stands after `optimus`, of which no command begins with the first word, or none of that group is
    called like the second.
    """
    words = [word.lower().replace("_", "-") for word in typed]
    first, second = words[0], words[1] if len(words) > 1 else None
    if first in commands.groups and second is not None:
        return _of(commands, first, second) or _near_of(commands, first, second)
    if second is not None:
        found = _of(commands, first, second) or _in_other_order(commands, first, second)
        if found:
            return found
    about = _about(commands, first)
    if about:
        shown = [] if second is None else _of(commands, first, SHOW, instead=False)
        return shown or _of(commands, first, LIST) or about
    return (_by_what_they_do(commands, first) or _near_all(commands, words))[:MOST]


def rather(path: Path, words: Sequence[str], commands: Commands) -> list[Path]:
    """Which command is meant by one that exists with `words` after it that it has no place for: `nodes drain x`,
    `list projects`. It is `path` itself where a word says what that says: `nodes list`."""
    if len(path) != 1 or not words:
        return []
    word = words[0].lower()
    return _of(commands, path[0], word, instead=False) or _in_other_order(commands, path[0], word)


def alike(one: str, other: str) -> bool:
    """Whether two words are said for the same: in the singular or plural, or by other programs."""
    one, other = _singular(one), _singular(other)
    return one == other or any(one in words and other in words for words in _ALIKE)


def near_options(typed: str, known: Iterable[str]) -> list[str]:
    """The options that may be meant by one that is not known: `-help`, `--states`, `-a` for `--all`."""
    known, word = list(known), typed.lstrip("-").lower()
    long = [name for name in known if name.startswith("--")]
    if not typed.startswith("--"):
        return [name for name in long if name == f"--{word}" or (len(word) == 1 and name[2] == word)]
    if same := [name for name in long if _is_of_like_words(name[2:], word)]:
        return same
    begin = [name for name in long if len(word) > 1 and (name[2:].startswith(word) or word.startswith(name[2:]))]
    near = difflib.get_close_matches(word, [name[2:] for name in long if name != "--help"])
    return sorted({*begin, *(f"--{each}" for each in near or difflib.get_close_matches(word, ["help"], cutoff=0.75))})


def _is_of_like_words(option: str, word: str) -> bool:
    """Whether an option says the same as `word` by other words, in their order: `worker-cpu` and `workers-cores`."""
    own, others = option.split("-"), word.split("-")
    return len(own) == len(others) and all(map(alike, own, others))


def sentence(found: Sequence[Path]) -> str:
    """`Did you mean ...?`"""
    names = [f"`{' '.join(('optimus', *path))}`" for path in found]
    return f"Did you mean {' or '.join([', '.join(names[:-1]), names[-1]] if len(names) > 1 else names)}?"


def _about(commands: Commands, word: str) -> list[Path]:
    """The groups that are called so."""
    named: list[Path] = [(group,) for group in commands.groups if alike(group, word)]
    return named or ([(JOB,)] if alike(word, JOB) else [])


def _of(commands: Commands, thing: str, what: str, *, instead: bool = True) -> list[Path]:
    """The commands that do this with the thing: under its very name, one that means the same, or nearly that."""
    read = [(path, does) for path in commands.paths for about, does in commands.readings(path) if alike(about, thing)]
    named = [path for path, does in read if _singular(does) == _singular(what)]
    found = named or [path for path, does in read if alike(does, what)]
    other = next((other for name, other in _INSTEAD.items() if alike(name, what)), None)
    if found or not instead or other is None:
        return list(dict.fromkeys(found))
    return _of(commands, thing, other, instead=False)


def _in_other_order(commands: Commands, what: str, thing: str) -> list[Path]:
    """`get nodes`, `create user`; who asks to be shown several things wants a list of them."""
    shows = alike(what, SHOW)
    if not (shows or alike(what, LIST) or _about(commands, thing)):
        return []
    return _of(commands, thing, LIST if shows and _singular(thing) != thing else what)


def _by_what_they_do(commands: Commands, word: str) -> list[Path]:
    """The commands of one word that mean the same, and those of groups under this very name, or else alike."""
    inner = [path for path in commands.paths if len(path) > 1]
    found: list[Path] = [path for path in commands.paths if len(path) == 1 and alike(path[0], word)]
    found += [path for path in inner if path[1] == word]
    return found or [path for path in inner if alike(path[1], word)]


def _near_of(commands: Commands, group: str, word: str) -> list[Path]:
    """Of one group, by a slip of the keyboard."""
    read = {does: path for path in commands.paths for about, does in commands.readings(path) if alike(about, group)}
    return [read[does] for does in _near(word, list(read))]


def _near_all(commands: Commands, words: Sequence[str]) -> list[Path]:
    """What is written nearly so; of groups, those that have the second word, where any has it."""
    found = _near(words[0], list(dict.fromkeys(path[0] for path in commands.paths)))
    whole: list[Path] = [(name, each) for each in words[1:2] for name in found if (name, each) in commands.paths]
    return whole or [(name,) for name in found]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _near(word: str, names: Sequence[str]) -> list[str]:
    """Those that begin with the word, or have it as a part; else those that are written nearly so."""
    begin = [name for name in names if len(word) > 1 and (name.startswith(word) or word in name.split("-"))]
    return begin or difflib.get_close_matches(word, names)
