"""Proof of knowing the job token, without sending it.

    listener ── nonce A ──▶ caller
    listener ◀─ HMAC(token, "caller" + A + B + context), nonce B ── caller
    listener ── HMAC(token, "listener" + B + A + context) ──▶ caller

Both ends prove themselves; the nonces make each proof good for one connection, the context (which connection, which
task) good for one purpose. What follows is not encrypted: this keeps strangers out, not wire-tappers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32
PROOF_BYTES = 32


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def caller_proof(token: str, listener_nonce: bytes, caller_nonce: bytes, context: str) -> bytes:
    return _proof(token, b"caller", listener_nonce + caller_nonce, context)


def listener_proof(token: str, listener_nonce: bytes, caller_nonce: bytes, context: str) -> bytes:
    return _proof(token, b"listener", caller_nonce + listener_nonce, context)


def same(left: bytes, right: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(left, right)


def _proof(token: str, side: bytes, nonces: bytes, context: str) -> bytes:
    message = b"\0".join([b"optimus job protocol 1", side, nonces.hex().encode(), context.encode()])
    return hmac.digest(token.encode(), message, hashlib.sha256)
