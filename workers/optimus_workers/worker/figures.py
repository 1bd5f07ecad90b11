"""What a user's `evaluate` may return: what the job's result can hold."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_workers.errors import TaskError

MAX_FIGURES = 100
"""The service takes no more in a result."""
MAX_NAME_CHARACTERS = 1000
"""So that a hundred of them fit one control message (1 MiB) however they are escaped."""
_LISTED = 5
"""Names in an error."""


def checked_figures(found: object) -> dict[str, float]:
    """The figures as numbers.

    Raises `TaskError`, which says what is wrong: a result that the service refuses would be lost.
    """
    if not isinstance(found, Mapping):
        raise TaskError(f"evaluate must return a dict of numbers by name, not {type(found).__name__}")
    if len(found) > MAX_FIGURES:
        names = ", ".join(str(name)[:MAX_NAME_CHARACTERS] for name in list(found)[:_LISTED])
        raise TaskError(f"evaluate must return at most {MAX_FIGURES} metrics; it returned {len(found)}: {names}, ...")
    return {_checked_name(name): _number(name, value) for name, value in found.items()}


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TaskError(f"the names of evaluate's metrics must be strings, not {type(name).__name__} ({name!r})")
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise TaskError(f"the name of a metric must have 1 to {MAX_NAME_CHARACTERS} characters: {name[:100]!r}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name):
        raise TaskError(f"the name of a metric must be text that can be stored, without NUL and surrogates: {name!r}")
    return name


def _number(name: object, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a number, a tensor of one number, ...
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TaskError(f"the metric {name!r} must be a number: {error}") from error
