"""Users' tokens: what people and programs show to the service. Random; only their hashes are stored.

token = "optimus-user-" + the token's id (12 hexadecimal digits) + "-" + 256 random bits in hexadecimal
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

PREFIX = "optimus-user-"
"""Makes a user's token recognisable, here and in logs."""
_ID_BYTES = 6
_SECRET_BYTES = 32
"""256 random bits cannot be guessed, so that a fast hash without salt keeps them."""
_FORM = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})-[0-9a-f]{{{2 * _SECRET_BYTES}}}")


def new_token() -> tuple[str, str]:
    """Id and secret of a new token; the secret, which has the id in it, is what callers send."""
    token_id = secrets.token_hex(_ID_BYTES)
    return token_id, f"{PREFIX}{token_id}-{secrets.token_hex(_SECRET_BYTES)}"


def is_user_token(secret: str) -> bool:
    """Whether it is meant to be one (not whether it is good)."""
    return secret.startswith(PREFIX)


def id_in(secret: str) -> str | None:
    """The id in what a caller sent; None: it has not the form of a user's token."""
    match = _FORM.fullmatch(secret)
    return None if match is None else match[1]


def hash_of(secret: str) -> str:
    """What is stored of a token: SHA-256, hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def is_secret_of(secret: str, stored_hash: str) -> bool:
    """Whether this is the token; takes the same time whatever is wrong with it."""
    return hmac.compare_digest(hash_of(secret), stored_hash)
