"""The variables that a task sees: few, and none of the service's own secrets."""

from __future__ import annotations

from collections.abc import Mapping

_INHERITED = frozenset({"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"})
"""What a Python interpreter and its libraries need to find themselves."""
_TRUSTED = frozenset({"SSL_CERT_FILE", "SSL_CERT_DIR"})
"""The authorities that signed the service's certificate, if not public ones."""
_INHERITED_PREFIXES = ("PYTHON", "LC_")
_NEVER = frozenset({"OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL"})
"""They open the service itself; a task has its own narrow token."""


def inherited(service: Mapping[str, str]) -> dict[str, str]:
    """What is passed on of the service's own environment."""
    return {
        name: value
        for name, value in service.items()
        if name in _INHERITED | _TRUSTED or name.startswith(_INHERITED_PREFIXES)
    }


def task_environment(service: Mapping[str, str], launch: Mapping[str, str], cpu_limit: float | None) -> dict[str, str]:
    """The environment of one task: a little of the service's, then what the launch asks for."""
    found = inherited(service) | {name: value for name, value in launch.items() if name not in _NEVER}
    if cpu_limit is not None:
        found["OPTIMUS_CPU_LIMIT"] = f"{cpu_limit:g}"
    return found
