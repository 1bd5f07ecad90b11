"""Requests as messages: what somebody sends is checked by the rules of the contract, through pydantic."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

from optimus_contract.message import Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


def checked(kind: type[AnyMessage], document: object) -> AnyMessage:
    """The message that the document says.

    Raises:
        ValidationError: (pydantic's) the document breaks a rule.
    """
    return cast(AnyMessage, adapter(kind).validate_python(document))


def as_json(message: Message) -> str:
    """The message as JSON; numbers that are not finite are null."""
    return adapter(type(message)).dump_json(message).decode()


def adapter(kind: type[Message]) -> TypeAdapter[Any]:
    """What checks, writes and describes messages of this kind."""
    return _adapter(cast(Any, kind))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
