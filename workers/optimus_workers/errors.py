"""What can go wrong in a task, by whose fault it is, and the exit codes of a task (docs/protocol.md, section 1).

WorkersError
├── EnvironmentProblem   the process was started without something it needs (fault of the cluster backend)
├── TaskError            the user's training code cannot be loaded or is not usable (exit code 3)
│   └── SpecificationError   the job's specification does not suit it
├── WireError            another task sent what the protocol does not allow, or does not know the job token
│   └── ConnectionOver   the other end of a connection is gone
└── ServiceProblem
    ├── ServiceAway      no answer, or the service is in trouble: try again later
    │   └── ServiceBusy  it has too much to do, and says when to try again
    └── ServiceRefused   the service understood and said no: repeating does not help
"""

from __future__ import annotations


class WorkersError(Exception):
    """Base of the expected failures of this package."""


class EnvironmentProblem(WorkersError):
    """A variable of docs/protocol.md, section 1, is missing or malformed; the message names it."""


class TaskError(WorkersError):
    """The user's training code cannot be used. Where their code raised, that exception is the cause."""


class SpecificationError(TaskError):
    """The job's specification does not suit its task: another attempt fails likewise. The message names the field."""


class ServiceProblem(WorkersError):
    """A call to the service did not succeed."""


class ServiceAway(ServiceProblem):
    """The service could not be reached or answered with a server error: the same call may succeed later."""


class ServiceBusy(ServiceAway):
    """The service has more to do than it can (429): the same call may succeed after `retry_after` seconds."""

    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(why)
        self.retry_after = retry_after


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
        """The body is wrong. Otherwise the job is: it has ended, is not known, or has another token."""
        return self.status in (400, 413, 422)


class WireError(WorkersError):
    """What arrived is not of the protocol. The connection is of no further use."""


class ConnectionOver(WireError):
    """The other end closed the connection, or the network did."""


# --- exit codes ------------------------------------------------------------------------------------------------------

LET_GO = 0
USER_CODE_FAILED = 3
COORDINATOR_GONE = 4
HUNG = 5
"""The training code gave no sign for too long (see `worker/watchdog.py`)."""
TERMINATED = 143

LEAVE_SECONDS = 20.0
"""After SIGTERM: how long the coordinator has to let a task go before it goes by itself (Kubernetes kills after 30)."""
