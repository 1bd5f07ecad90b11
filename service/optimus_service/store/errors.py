"""What can go wrong in the store.

::

    StoreError
    ├── DatabaseNotAvailable     the database cannot be reached, is too busy or not upgraded; nothing was written
    ├── NewerDatabase            a newer version of Optimus has upgraded the database
    ├── InvalidDatabaseUrl       the URL is malformed or names a database that is not supported
    ├── InvalidValue             a value does not fit its column (an integer beyond 64 bits)
    ├── InvalidCursor            a page cursor that this listing did not hand out
    ├── JobNotFound              no job has this id
    ├── ProjectNotFound          no project of this name has a quota
    ├── UserNotFound             no user has this name
    ├── UserExists               a user has this name
    ├── TokenNotFound            no token has this id
    ├── JobIsActive              the job has not ended
    ├── JobIdTaken               another job has this id; make a new one and try again
    ├── IdempotencyConflict      the idempotency key was used for a different request
    └── StaleLeader              the writer's lease has passed to somebody else; its plan must not be applied

`optimus_scheduler.lifecycle.InvalidTransition` passes through `Jobs.advance` unchanged. Errors of the
database driver are mapped in one place (`optimus_service.store.database.dialects`), with the original as cause.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything that the store raises on purpose."""


class DatabaseNotAvailable(StoreError):
    """The database cannot be reached, did not answer in time, or was not upgraded. The transaction was rolled back."""

    def __init__(
        self, why: str, for_users: str = "the database cannot be reached right now", sqlite_code: int | None = None
    ) -> None:
        """`why` is for the log, `for_users` for users: it has nothing of what the driver says.

        `sqlite_code`: SQLite's primary result code.
        """
        self.for_users = for_users
        self.sqlite_code = sqlite_code
        super().__init__(why)


class NewerDatabase(StoreError):
    """A newer version of Optimus has upgraded the database; this one cannot read it."""

    def __init__(self, found: str, newest: str) -> None:
        self.found = found
        super().__init__(
            f"the database is at revision {found}, and this version of Optimus knows revisions up to {newest}: a newer "
            "version has upgraded the database. Run that version, or restore the backup from before the upgrade"
        )


class InvalidDatabaseUrl(StoreError):
    """The database URL is malformed or names a database that is not supported."""


class InvalidValue(StoreError):
    """A value does not fit its column."""


class InvalidCursor(StoreError):
    """A page cursor that this listing did not hand out."""


class JobNotFound(StoreError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job has the id {job_id!r}")


class JobIsActive(StoreError):
    """The job has not ended."""

    def __init__(self, job_id: str, state: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"the job is {state}: cancel it first (`optimus cancel {job_id}`), and delete it when it has ended"
        )


class ProjectNotFound(StoreError):
    """No project of this name has a quota."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"project {name!r} has no quota")


class UserNotFound(StoreError):
    """No user has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no user has the name {name!r}")


class UserExists(StoreError):
    """A user has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a user has the name {name!r} already")


class TokenNotFound(StoreError):
    """No token has this id."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token has the id {token_id!r}")


class JobIdTaken(StoreError):
    """Another job has this id."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"the job id {job_id!r} is taken")


class IdempotencyConflict(StoreError):
    """The idempotency key was used for a different request."""

    def __init__(self, key: str, job_id: str | None) -> None:
        self.key = key
        self.job_id = job_id
        """The job that the first request with this key made; None: the caller may not know."""
        sent = key.rpartition(" ")[2]  # what is stored may have its user's name before it
        made = "" if job_id is None else f" (job {job_id})"
        super().__init__(f"the idempotency key {sent!r} was used for a different request{made}")


class StaleLeader(StoreError):
    """The writer's lease has passed to somebody else, or was not renewed in time."""

    def __init__(self, fence: int, token: int | None) -> None:
        self.fence = fence
        self.token = token
        """The token of the lease in force; None if there is none."""
        why = "it was not renewed in time" if token == fence else f"the one in force is {token or '(none)'}"
        super().__init__(f"the lease with token {fence} is over: {why}")
