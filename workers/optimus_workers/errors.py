"""What can go wrong in a task, by whose fault it is.

WorkersError
├── EnvironmentProblem   the process was started without something it needs (fault of who started it)
├── TaskError            the user's training code cannot be loaded or is not usable (exit code 3)
└── ServiceProblem
    ├── ServiceAway      no answer, or the service is in trouble: try again later
    └── ServiceRefused   the service understood and said no: repeating does not help
"""

from __future__ import annotations


class WorkersError(Exception):
    """Base of the expected failures of this package."""


class EnvironmentProblem(WorkersError):
    """A variable of docs/protocol.md, section 1, is missing or malformed; the message names it."""


class TaskError(WorkersError):
    """The user's training code cannot be used. Where their code raised, that exception is the cause."""


class ServiceProblem(WorkersError):
    """A call to the service did not succeed."""


class ServiceAway(ServiceProblem):
    """The service could not be reached or answered with a server error: the same call may succeed later."""


class ServiceRefused(ServiceProblem):
    """The service refused the call (4xx).

    `status` is the HTTP status; `detail` the problem document's explanation.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the service refused ({status}): {detail}")
        self.status = status
        self.detail = detail

    @property
    def is_about_the_body(self) -> bool:
        """What was said is wrong. Otherwise who says it: the job has ended, is not known, or has another token."""
        return self.status in (400, 413, 422)
