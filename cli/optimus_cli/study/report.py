"""The report: sections of text, tables and pictures, as one HTML file or as Markdown with PNG files beside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from optimus_cli.errors import BadInput, CliError


class Table(NamedTuple):
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Picture(NamedTuple):
    name: str
    alternative: str
    png: bytes


Part = str | Table | Picture
"""A paragraph, a table or a picture."""


class Section(NamedTuple):
    title: str
    parts: list[Part]


class Document(NamedTuple):
    title: str
    sections: list[Section]


def write(document: Document, path: Path) -> list[Path]:
    """Write `path` (.html or .md) and give the files written. Raises `BadInput`, `CliError`."""
    if path.suffix not in (".html", ".md"):
        raise BadInput(f"--output {path}: expected a name that ends in .html or .md")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            path.write_text(as_html(document), encoding="utf-8")
            return [path]
        pictures = _write_pictures(document, path)
        path.write_text(as_markdown(document, f"{path.stem}-pictures"), encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    return [path, *pictures]


def _write_pictures(document: Document, path: Path) -> list[Path]:
    folder = path.parent / f"{path.stem}-pictures"
    folder.mkdir(exist_ok=True)
    written = []
    for picture in _pictures(document):
        written.append(folder / f"{picture.name}.png")
        written[-1].write_bytes(picture.png)
    return written


def _pictures(document: Document) -> list[Picture]:
    return [part for section in document.sections for part in section.parts if isinstance(part, Picture)]


# --- Markdown --------------------------------------------------------------------------------------------------------


def as_markdown(document: Document, folder: str) -> str:
    """Pictures are looked for in `folder`."""
    blocks = [f"# {document.title}"]
    for section in document.sections:
        blocks.append(f"## {section.title}")
        blocks += [_markdown(part, folder) for part in section.parts]
    return "\n\n".join(blocks) + "\n"


def _markdown(part: Part, folder: str) -> str:
    if isinstance(part, Table):
        rule = tuple("---" for _ in part.header)
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _lines(part, rule)
        )
    if isinstance(part, Picture):
        return f"![{part.alternative}]({folder}/{part.name}.png)"
    return part


def _lines(table: Table, rule: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    return [table.header, rule, *table.rows]


# --- HTML ------------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
h2 { margin-top: 2.5rem }
"""


def as_html(document: Document) -> str:
    """Self-contained: pictures are inside."""
    body = [f"<h1>{html.escape(document.title)}</h1>"]
    for section in document.sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [_html(part) for part in section.parts]
    title = html.escape(document.title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    content = "\n".join(body)
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def _html(part: Part) -> str:
    if isinstance(part, Table):
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in part.header)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in part.rows
        )
        return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
    if isinstance(part, Picture):
        data = base64.b64encode(part.png).decode("ascii")
        return f'<img alt="{html.escape(part.alternative)}" src="data:image/png;base64,{data}">'
    return f"<p>{html.escape(part)}</p>"
