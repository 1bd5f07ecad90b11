"""Where the user's code is called, so that what it raises is told apart from what Optimus itself got wrong."""

from __future__ import annotations

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
