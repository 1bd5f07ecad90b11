"""What is wrong with a request, or with the service."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimus_contract.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemError(Message):
    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Message):
    """RFC 9457 problem document (`application/problem+json`)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemError] = field(default_factory=list)
    request_id: str | None = None
