"""Job tokens: what a job's tasks show to the service. Derived from one secret, never stored.

token = "optimus-job-" + HMAC-SHA256(secret, job id and the job's nonce), in hexadecimal. Whoever reads the database
(where the nonce is) cannot make one; a restarted service that has the secret can make the same one again.
See docs/decisions/0003-derived-job-tokens.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from optimus_service.process.data_directory import CannotStart, refusing
from optimus_service.settings import Settings

PREFIX = "optimus-job-"
"""Makes a job token recognisable, so that it can be refused where users' tokens are expected."""
SECRET_BYTES = 32
"""As long as the hash: more adds nothing."""
NONCE_BYTES = 16
"""Unique among all jobs for all practical purposes (2^128)."""


class JobTokens:
    """Issues and verifies the tokens of all jobs. Thread-safe: it holds nothing but secrets.

    A job keeps its token when the secret is replaced, for its tasks know each other by it: the nonce names the secret
    that the job was submitted under, and the previous secret makes the tokens of those jobs on.
    """

    def __init__(self, secret: bytes, previous: bytes | None = None) -> None:
        secrets_known = (secret,) if previous is None else (secret, previous)
        assert all(secrets_known), "an empty secret would let everybody make tokens"
        self._newest, self._oldest = secret, secrets_known[-1]
        self._by_name = {_name_of(each): each for each in secrets_known}

    def new_nonce(self) -> str:
        """What to store as a new job's `token_nonce`."""
        return f"{_name_of(self._newest)}.{secrets.token_hex(NONCE_BYTES)}"

    def issue(self, job_id: str, nonce: str) -> str:
        """The token of a job: the same whenever it is asked for, as long as the secret it began with is known."""
        # The separator occurs in no job id, so no two (id, nonce) pairs give the same message.
        message = f"{job_id}\0{nonce}".encode()
        return PREFIX + hmac.new(self._secret_of(nonce), message, hashlib.sha256).hexdigest()

    def _secret_of(self, nonce: str) -> bytes:
        name, named, _ = nonce.partition(".")
        if not named:  # of an earlier release: the secret was not replaced before this one
            return self._oldest
        return self._by_name.get(name, self._newest)

    def verify(self, token: str, job_id: str, nonce: str) -> bool:
        """Whether `token` is this job's; takes the same time whatever is wrong with it."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.issue(job_id, nonce).encode())


def _name_of(secret: bytes) -> str:
    """Tells two secrets apart, and nothing of them: 32 bits of a hash."""
    return hmac.new(secret, b"optimus name of the secret", hashlib.sha256).hexdigest()[:8]


def is_job_token(token: str) -> bool:
    """Whether `token` has the form of a job token (not whether it is valid)."""
    return token.startswith(PREFIX)


def job_tokens_of(settings: Settings) -> JobTokens:
    """With the secret in force, and the one before it.

    Raises:
        CannotStart: see `load_secret`.
    """
    previous = settings.previous_secret
    return JobTokens(load_secret(settings), None if previous is None else previous.get_secret_value().encode())


def load_secret(settings: Settings) -> bytes:
    """The secret in force: `OPTIMUS_SECRET`, or the file `secret.key` of the data directory, made once (mode 0600).

    Raises:
        CannotStart: the file can be neither read nor made, or is shorter than what was written into it, as after a copy
            that was interrupted.
    """
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    path = settings.data_directory / "secret.key"
    with refusing("the key of job tokens can be neither read nor made"):
        if not path.exists():
            _make_secret(path)
        secret = path.read_bytes()
    if len(secret) < 2 * SECRET_BYTES:
        raise CannotStart(
            f"{path} has {len(secret)} bytes instead of {2 * SECRET_BYTES}: bring it back from a backup, or delete it "
            "(the tasks that run now are then refused, and their jobs go on from their last checkpoints)"
        )
    return secret


def _make_secret(path: Path) -> None:
    """Write a new secret to `path` unless another process was faster. Nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes files of mode 0600; link, unlike rename, fails when the target exists.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".secret-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(SECRET_BYTES).encode())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
