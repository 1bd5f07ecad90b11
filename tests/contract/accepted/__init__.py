"""What release 0.1.0 accepted, as its users wrote it: bodies for REST, job files, flags, an object of Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[2]
REQUESTS: dict[str, dict[str, Any]]
"""Bodies of `POST /v1/jobs`, by what they are called here."""
FILES: dict[str, str]
"""Job files by name."""
OBJECT: str
"""A TrainingJob."""
FLAGS: list[str]
"""What followed `optimus submit`."""
_found = json.loads((Path(__file__).parent / "requests-0.1.0.json").read_text(encoding="utf-8"))
REQUESTS, FILES, OBJECT, FLAGS = (_found[name] for name in ("requests", "files", "object", "flags"))
STORED: dict[str, dict[str, Any]] = json.loads(
    (_TESTS / "service" / "loop" / "stored" / "specifications-0.1.0.json").read_text(encoding="utf-8")
)
"""What release 0.1.0 made of some of them."""


def says(now: Any, before: Any) -> bool:
    """Whether `now` says all that `before` said; it may say more."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(name in now and says(now[name], each) for name, each in before.items())
    return bool(now == before)
