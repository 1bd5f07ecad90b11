"""Read a job file (YAML or JSON) and remember where in it every field stands.

The service decides whether a specification is valid; it names fields. Positions turn that into file:line:column.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from optimus_cli.errors import BadInput

MAX_FILE_BYTES = 1_048_576
"""As much as the service accepts in one body."""
MAX_POSITIONS = 10_000
"""Aliases can make a small YAML file unfold into an enormous document; a job has a few dozen fields."""

_SCRIPTS = {".py": "python", ".sh": "bash"}

_TASK = re.compile(r"[\w.]+:\w+")

STRING_TAG = "tag:yaml.org,2002:str"
FLOAT_TAG = "tag:yaml.org,2002:float"

FieldPath = tuple[str, ...]
"""Where a value is in the document: the keys (and list indices, as text) that lead to it."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text file; both count from 1."""

    line: int
    column: int


class BadJobFile(BadInput):
    """The file cannot be used; the message begins with file:line:column where that is known."""

    def __init__(self, path: Path, position: Position | None, message: str) -> None:
        where = str(path) if position is None else f"{path}:{position.line}:{position.column}"
        super().__init__(f"{where}: {message}")


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file's content, and the position of each field in it."""

    path: Path
    document: dict[str, Any]
    positions: Mapping[FieldPath, Position]

    def position(self, field: FieldPath) -> Position | None:
        """Where `field` stands; for a field that is missing, where the mapping around it stands."""
        while field:
            if field in self.positions:
                return self.positions[field]
            field = field[:-1]
        return None


class _Loader(yaml.SafeLoader):
    """Plain data only. Dates stay text: JSON has none, and no field is one."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- overrides PyYAML's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


# YAML 1.1, which PyYAML reads, takes 1e-3 for text. Everybody who writes a learning rate means a number.
_Loader.add_implicit_resolver(
    FLOAT_TAG, re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def read_job_file(path: Path) -> JobFile:
    """Read and parse `path`. Raises `BadJobFile` with the place of the first thing that is wrong."""
    text = _read(path)
    if (program := _SCRIPTS.get(path.suffix.lower())) is not None:
        command = f"{program} {shlex.quote(str(path))}"
        raise BadJobFile(path, None, f"a job file is YAML or JSON; to run a script: optimus submit -- {command}")
    if path.suffix.lower() == ".json":
        document = _load_json(path, text)
        # A JSON document is YAML as well, except for tabs between tokens (inside strings JSON forbids them).
        node = _compose(path, text.replace("\t", " "))
    else:
        node = _compose(path, text)
        document = _construct(path, node)
    if not isinstance(node, yaml.MappingNode) or not isinstance(document, dict):
        raise BadJobFile(path, Position(1, 1), "expected a mapping of fields (name: ..., task: ...)")
    return JobFile(path, document, dict(_positions(path, node)))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        is_task = isinstance(error, FileNotFoundError) and _TASK.fullmatch(str(path)) is not None
        meant = f"; is it a task? optimus submit --task {path}" if is_task else ""
        raise BadInput(f"{path}: {error.strerror or error}{meant}") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadJobFile(path, None, f"larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise BadJobFile(path, Position(line, column), "not UTF-8 text") from error


def _load_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadJobFile(path, Position(error.lineno, error.colno), error.msg) from error
    except RecursionError as error:
        raise BadJobFile(path, None, "nested too deeply") from error


def _compose(path: Path, text: str) -> yaml.Node | None:
    """The tree of YAML nodes, which know their places; None for an empty file."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise BadJobFile(path, Position(line, column), f"{error.reason} (#x{error.character:04x})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadJobFile(path, _error_position(error), _error_text(error)) from error


def _construct(path: Path, node: yaml.Node | None) -> Any:
    if node is None:
        return None
    try:
        return _Loader("").construct_document(node)
    except (yaml.YAMLError, RecursionError) as error:
        raise BadJobFile(path, _error_position(error), _error_text(error)) from error


def _error_position(error: Exception) -> Position | None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return None if mark is None else Position(mark.line + 1, mark.column + 1)


def _error_text(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    return ", ".join(part for part in parts if part) or str(error)


def _positions(path: Path, root: yaml.Node) -> Iterator[tuple[FieldPath, Position]]:
    """Every field with its position; refuses what JSON cannot say (with its place in the file)."""
    pending: list[tuple[FieldPath, yaml.Node]] = [((), root)]
    count = 0
    while pending:
        prefix, node = pending.pop()
        for key, name_node, value_node in _children(path, node):
            count += 1
            if count > MAX_POSITIONS:
                raise BadJobFile(path, None, f"more than {MAX_POSITIONS} fields")
            _check_value(path, value_node)
            # A scalar is pointed at itself; a mapping by its name, because it begins on the next line.
            shown = value_node if isinstance(value_node, yaml.ScalarNode) else name_node
            yield (*prefix, key), _position(shown)
            pending.append(((*prefix, key), value_node))


def _children(path: Path, node: yaml.Node) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(key, the node that names it, the node of its value) for each entry of a mapping or list."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield str(index), item, item
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            yield _key(path, key_node, seen), key_node, value_node


def _key(path: Path, node: yaml.Node, seen: set[str]) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != STRING_TAG:
        raise BadJobFile(path, _position(node), "field names must be text; put quotes around this one")
    if node.value in seen:
        raise BadJobFile(path, _position(node), f"{node.value!r} is given twice")
    seen.add(node.value)
    return str(node.value)


def _check_value(path: Path, node: yaml.Node) -> None:
    """Refuse what YAML, or Python's JSON, can say and JSON cannot."""
    if node.tag in ("tag:yaml.org,2002:binary", "tag:yaml.org,2002:set"):
        raise BadJobFile(path, _position(node), "only text, numbers, true/false, lists and mappings are possible here")
    if isinstance(node, yaml.ScalarNode) and _is_infinite(node):
        raise BadJobFile(path, _position(node), f"{node.value} is not a finite number")


def _is_infinite(node: yaml.ScalarNode) -> bool:
    if node.tag == FLOAT_TAG:
        return not math.isfinite(_Loader("").construct_yaml_float(node))
    # Python's JSON reads these words as numbers when they stand without quotes.
    return node.style is None and node.value in ("NaN", "Infinity", "-Infinity")


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
