"""Where the user's code is called, so that what it raises is told apart from what Optimus itself got wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from optimus_workers.wire.errors import ConnectionOver

T = TypeVar("T")


class UserCodeFailed(Exception):
    """The user's code raised; its exception is the cause."""


def users(call: Callable[[], T]) -> T:
    """The result of the user's code. What it raises becomes `UserCodeFailed`."""
    try:
        return call()
    except ConnectionOver:  # interrupted, or to be repeated: nothing that the user's code did wrong
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeFailed(str(error)) from error


def explained(error: UserCodeFailed | SystemExit) -> str:
    """The traceback of what the user's code raised, for the job's failure."""
    cause = error.__cause__ or error
    text = "".join(traceback.format_exception(cause))
    return text + _EXITED if "\nSystemExit" in text else text  # maybe as the cause, or in the prefetching process


_EXITED = (
    "The training code called sys.exit(); "
    "a worker trains until its job has ended. To end the job as failed, raise an error instead.\n"
)
