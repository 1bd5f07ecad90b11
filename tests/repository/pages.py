"""The pages of the documentation as tests see them: blocks of code, commands, names of files."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(
        path
        for pattern in ("*.md", "docs/**/*.md", "*/README.md")
        for path in ROOT.glob(pattern)
        if path.name != "CHANGELOG.md"
    )
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\s*(?:\$ )?((?:optimus|python -m) [^|]*.*)$")
_INLINE = re.compile(r"`((?:optimus|python -m) [^`]+)`")


@dataclass(frozen=True)
class Example:
    """A piece of code on a page."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"


def examples(language: str) -> list[Example]:
    """All blocks in this language."""
    return [
        Example(str(page.relative_to(ROOT)), language, textwrap.dedent(text))
        for page in PAGES
        for _, found, text in _FENCE.findall(page.read_text())
        if found == language
    ]


def commands(program: str) -> list[Example]:
    """All command lines that begin with `program`, in blocks and in sentences, without what follows in a shell."""
    found = [
        Example(str(page.relative_to(ROOT)), "sh", _one_command(line))
        for page in PAGES
        for line in _lines(page.read_text())
        if line.startswith(program)
    ]
    return list(dict.fromkeys(found))


def tracked_files() -> list[str]:
    """What the repository has, those that are not committed yet included."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def _lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        command = _COMMAND.match(line) if re.match(r"(    |\s*\$ |optimus |python -m |\s+optimus )", line) else None
        if command and not _is_prose(line):
            yield command[1]
        else:
            yield from (" ".join(inline.split()) for inline in _INLINE.findall(line))


def _is_prose(line: str) -> bool:
    return "`" in line and line.count("`") % 2 == 0


def _one_command(line: str) -> str:
    """Without comments, redirections and what is said beside it."""
    return re.split(r"\s{2,}|\s#\s|\s[>&](?:\s|$)|; ", line.strip())[0].strip()
