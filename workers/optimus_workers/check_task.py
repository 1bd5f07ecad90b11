"""Would a worker find this training task? Answered without running the user's code and without torch.

    python -m optimus_workers.check_task package.module:name [--directory DIR]

prints one line of JSON, `{"ok": bool, "problem": str | null, "line": int | null}`. It looks for the module as Python
would (in DIR first) and reads its source for the name. What only running the code can show (errors in it, names made at
run time) gets the benefit of the doubt: the job itself will show it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.machinery
import json
import pkgutil
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

MAX_SUGGESTIONS = 3
MAX_LISTED = 8
"""So many names are shown where none is similar."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`problem` says what a worker would stumble over, and `line` where in the module's source, if it is there."""

    ok: bool
    problem: str | None = None
    line: int | None = None


FOUND = Answer(ok=True)


def check(import_path: str, directory: str | None = None) -> Answer:
    """Whether `module:name` can be found, looking in `directory` before the rest of this interpreter's path."""
    module_name, colon, name = import_path.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        return Answer(ok=False, problem=f"{import_path!r} is not of the form package.module:name")
    if module_name.endswith(".py"):
        return Answer(ok=False, problem=f"write {module_name.removesuffix('.py')}:{name}, without .py")
    search_path = [directory, *sys.path] if directory else list(sys.path)
    module = _find_module(module_name, search_path)
    if isinstance(module, Answer):
        top, _, _ = module_name.partition(".")
        return (
            module
            if _is_there(top, search_path)
            else replace(module, problem=f"{module.problem} ({_where(directory)})")
        )
    if module.origin is None and module.submodule_search_locations is not None:
        return Answer(ok=False, problem=f"{module_name} is a folder without code; say which module in it has {name!r}")
    if not isinstance(module.loader, importlib.machinery.SourceFileLoader) or module.origin is None:
        return FOUND  # compiled or from an archive: no source to read
    return _check_source(Path(module.origin), module_name, name)


def _is_there(top: str, locations: Sequence[str]) -> bool:
    return _find_one(top, locations, is_top_level=True) is not None


def _where(directory: str | None) -> str:
    """Where a module was looked for."""
    if directory:
        return f"looked in {directory} and among the installed packages"
    return "looked among the installed packages; working_directory (--working-directory) names where your own code is"


def _find_module(module_name: str, search_path: Sequence[str]) -> importlib.machinery.ModuleSpec | Answer:
    """Walk down the packages. `importlib.util.find_spec` would import, that is run, every parent on the way."""
    locations: Sequence[str] = search_path
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = _find_one(name, locations, is_top_level=depth == 1)
        if spec is None:
            return _no_module(name, locations)
        if depth == len(parts):
            return spec
        if spec.submodule_search_locations is None:
            return Answer(ok=False, problem=f"{name} is a module, not a package: there is no {module_name}")
        locations = list(spec.submodule_search_locations)
    raise AssertionError("a module name has at least one part")


def _find_one(name: str, locations: Sequence[str], *, is_top_level: bool) -> importlib.machinery.ModuleSpec | None:
    # Only the last part of the name: the path finder would look up the parents of a folder among the imported modules.
    spec = importlib.machinery.PathFinder.find_spec(name.rpartition(".")[2], locations)
    if spec is not None or not is_top_level:
        return spec
    # Editable installs and built-in modules are known to other finders.
    others = (finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder)
    found = (finder.find_spec(name, None) for finder in others)
    return next((spec for spec in found if spec is not None), None)


def _no_module(name: str, locations: Sequence[str]) -> Answer:
    parent, _, last = name.rpartition(".")
    of_python = frozenset() if parent else sys.stdlib_module_names  # not training code
    siblings = sorted({module.name for module in pkgutil.iter_modules(locations)} - of_python)
    where = f" in {parent}" if parent else ""
    hint = _hint(last, siblings, list_all=bool(parent))
    return Answer(ok=False, problem=f"there is no module {last!r}{where}{hint}")


def _check_source(path: Path, module_name: str, name: str) -> Answer:
    try:
        with tokenize.open(path) as source:
            tree = ast.parse(source.read(), filename=str(path))
    except SyntaxError as error:
        return Answer(ok=False, problem=f"{path}: {error.msg}", line=error.lineno)
    except (OSError, ValueError) as error:
        return Answer(ok=False, problem=f"{path}: {error}")
    names = dict(_top_level_names(tree.body))
    if name in names or "*" in names or "__getattr__" in names:
        return FOUND
    public = sorted((is_imported, other) for other, is_imported in names.items() if not other.startswith("_"))
    # A task is hardly ever imported: only a module without names of its own is told what else it has.
    own = [other for is_imported, other in public if not is_imported] or [other for _, other in public]
    return Answer(ok=False, problem=f"{module_name} ({path}) has no {name!r}{_hint(name, own, list_all=True)}")


def _top_level_names(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """What the module defines or imports, and whether it imports it; "*" for a star import, which could bring in any
    name."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name, False
            case ast.Import() | ast.ImportFrom():
                yield from (((alias.asname or alias.name).partition(".")[0], True) for alias in statement.names)
            case _:
                yield from ((each, False) for each in _assigned_names(statement))
                yield from _top_level_names(_nested(statement))


def _assigned_names(statement: ast.stmt) -> Iterator[str]:
    """The names that the statement itself sets, not those in the statements inside it."""
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.expr | ast.withitem):
            nodes = ast.walk(part)
            yield from (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _nested(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements inside an `if`, `try`, `with`, `for`, `while` or `match` of the module."""
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.stmt):
            yield part
        elif isinstance(part, ast.ExceptHandler | ast.match_case):
            yield from part.body


def _hint(name: str, candidates: Sequence[str], *, list_all: bool) -> str:
    close = difflib.get_close_matches(name, candidates, n=MAX_SUGGESTIONS)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    if not list_all or not candidates:
        return ""
    more = ", ..." if len(candidates) > MAX_LISTED else ""
    return f"; it has {', '.join(candidates[:MAX_LISTED])}{more}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer; the exit code is 0 whatever it is."""
    parser = argparse.ArgumentParser(prog="optimus_workers.check_task", description=__doc__.splitlines()[0])
    parser.add_argument("import_path", metavar="package.module:name")
    parser.add_argument("--directory", metavar="DIR", help="where the job's tasks import from first")
    options = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(asdict(check(options.import_path, options.directory))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
