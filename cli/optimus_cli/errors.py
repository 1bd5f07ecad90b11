"""What can go wrong on the way, and the exit code of each.

    CliError                 exit code 1: the operation failed
    ├── Unreachable          nothing answers at the service's address
    ├── Refused              the service answered with an error (exit code 2 where the input was at fault)
    ├── NoSuchJob            no job has this id, name or prefix
    ├── MissingPart          a part of Optimus that the command needs is not installed
    ├── DemoFailed           the demo could not start, or one of its jobs did not succeed
    └── BadInput             exit code 2: what the user gave cannot be used
        └── AmbiguousJob     several jobs answer to the name or prefix

Every one of them is shown as one message on stderr, without a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

BAD_INPUT_STATUSES = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""Answers that say that what was sent is wrong, as opposed to that it cannot be done."""


class CliError(Exception):
    """Base of all expected failures; the message is meant for the user."""

    exit_code = 1
    fields: Sequence[FieldError] = ()
    """What is wrong with single fields, where that is known."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that the service refused."""

    field: str
    """Path in the request body, such as `workers.max`."""
    message: str


NO_FLAGS: Mapping[str, str] = MappingProxyType({})


def _flag(error: FieldError, flags: Mapping[str, str]) -> str:
    name = error.field.rpartition(".")[2]
    return flags.get(name) or flags.get(name.removesuffix("_bytes")) or error.field


class Unreachable(CliError):
    """Nothing that speaks the API answers at the address."""


class NoSuchJob(CliError):
    """No job has this id, name or prefix."""


class MissingPart(CliError):
    """A part of Optimus that this command needs is not installed."""


class DemoFailed(CliError):
    """The demo could not start, or one of its jobs did not succeed."""


class BadInput(CliError):
    """What the user gave cannot be used."""

    exit_code = 2

    def __init__(self, message: str, fields: Sequence[FieldError] = ()) -> None:
        super().__init__(message)
        self.fields = tuple(fields)


class AmbiguousJob(BadInput):
    """Several jobs answer to the name or prefix."""


class Refused(CliError):
    """The service answered with a problem document (RFC 9457)."""

    def __init__(
        self, status: int, detail: str, errors: Sequence[FieldError] = (), flags: Mapping[str, str] = NO_FLAGS
    ) -> None:
        """`flags`: of the command that asked, by the field that each sets; messages name them."""
        self.status = status
        self.detail = detail
        self.errors = self.fields = tuple(errors)
        named = {f"{error.field}: {error.message}": f"{_flag(error, flags)}: {error.message}" for error in self.errors}
        more = [f"  {words}" for field, words in named.items() if field != detail]
        super().__init__("\n".join([named.get(detail, detail), *more]))

    def naming(self, flags: Mapping[str, str]) -> Refused:
        """The same, in terms of these flags."""
        return Refused(self.status, self.detail, self.errors, flags)

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return 2 if self.status in BAD_INPUT_STATUSES else 1
