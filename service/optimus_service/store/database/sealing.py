"""Encryption of what owners give their jobs as variables: the database has it sealed, whoever reads a row has it open.

`environment` of a stored specification becomes one field, `environment_sealed`: a Fernet token (AES-128-CBC and
HMAC-SHA256, of the package `cryptography`) of names and values together. The column's type does it, so that no
statement can forget it. The keys belong to the engine: they come with it and are nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

SEALED = "environment_sealed"
"""The field of a stored specification; no specification that is submitted may have it."""
_REMEMBERED = 20_000
"""Tokens whose content is kept in memory: rounds read the jobs again and again, and opening one takes 30 us."""


class Keys:
    """The first key seals; all open. Thread-safe."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Keys as `Fernet.generate_key` makes them.

        Raises:
            ValueError: one is no such key, or there is none.
        """
        self._newest = Fernet(keys[0])
        self._all = MultiFernet([Fernet(key) for key in keys])
        self._opened = lru_cache(_REMEMBERED)(self._open)

    def seal(self, document: Any) -> Any:
        """The specification with its variables sealed; as it is where it has none, or where they are sealed."""
        environment = document.get("environment") if isinstance(document, dict) else None
        if not environment:
            return document
        token = self._newest.encrypt(json.dumps(environment).encode()).decode()
        return {name: value for name, value in document.items() if name != "environment"} | {SEALED: token}

    def open(self, document: Any) -> Any:
        """The inverse. Where no key fits it stays sealed: nothing can be started by it then."""
        token = document.get(SEALED) if isinstance(document, dict) else None
        environment = self._opened(token) if isinstance(token, str) else None
        if environment is None:
            return document
        return {name: value for name, value in document.items() if name != SEALED} | {
            "environment": json.loads(environment)
        }

    def is_current(self, document: Any) -> bool:
        """Whether nothing of it is in clear, or sealed with an older key."""
        if document.get("environment"):
            return False
        try:
            return SEALED not in document or bool(self._newest.decrypt(document[SEALED]))
        except InvalidToken:
            return False

    def _open(self, token: str) -> bytes | None:
        try:
            return self._all.decrypt(token)
        except InvalidToken:
            return None


def new_key() -> str:
    """A key, at random."""
    return Fernet.generate_key().decode()


def keys_of(dialect: Dialect) -> Keys | None:
    """The keys of this engine's dialect; None: it stores and reads as it is."""
    return getattr(dialect, "optimus_keys", None)


def give_keys(dialect: Dialect, keys: Keys | None) -> None:
    """See `keys_of`. A dialect belongs to one engine."""
    dialect.optimus_keys = keys  # type: ignore[attr-defined]  # ours; SQLAlchemy hands the dialect to types


class Specification(TypeDecorator[Any]):
    """A job's specification as JSON text, with its variables sealed."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        keys = keys_of(dialect)
        return as_text(value if keys is None else keys.seal(value)) if value is not None else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        keys, document = keys_of(dialect), None if value is None else json.loads(value)
        return document if keys is None else keys.open(document)


def as_text(document: Any) -> str:
    """As the column has it."""
    return json.dumps(document, separators=(",", ":"))
