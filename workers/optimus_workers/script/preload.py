"""Which libraries a Python script is going to import, as its text says."""

from __future__ import annotations

import ast
from pathlib import Path

OURS = "optimus_client"
LIBRARIES = frozenset(
    {"torch", "torchvision", "numpy", "pandas", "scipy", "sklearn", "transformers", "datasets", "accelerate"}
    | {"lightning", "pytorch_lightning"}
)
"""Libraries that take long to import and may be imported before a process is forked. Any other module may depend on
variables or start threads."""
MAX_SOURCE_BYTES = 4 * 1024 * 1024

Preloads = tuple[tuple[str, tuple[str, ...]], ...]
"""Module names, each with the members that are taken from it."""


def preloads(script: Path) -> Preloads:
    """The imports of `LIBRARIES` at the top level of a script; none of what cannot be read as Python."""
    try:
        if script.stat().st_size > MAX_SOURCE_BYTES:
            return ()
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: dict[str, list[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                found.setdefault(alias.name, [])
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.setdefault(statement.module, []).extend(alias.name for alias in statement.names if alias.name != "*")
    if any(name.partition(".")[0] == OURS for name in found):
        found[f"{OURS}.loop"] = []
    known = LIBRARIES | {OURS}
    return tuple((name, tuple(members)) for name, members in found.items() if name.partition(".")[0] in known)
