"""The fields of a message in protocol buffers' wire format, without its definition. Pure."""

from __future__ import annotations

from collections.abc import Iterator

Field = tuple[int, int | bytes]
"""A field's number, and its value: a varint, or bytes."""


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in order. Raises `ValueError` for what is none."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire == 2:
            length, place = _varint(message, place)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is not known")
        if place + length > len(message):
            raise ValueError("a field is longer than its message")
        yield number, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("a number has too many bytes")
