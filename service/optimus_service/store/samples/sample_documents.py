"""The samples of one post as bytes: one document for all of them, field by field.

::

    length of the header │ header: JSON                       │ values of the packed columns, in the header's order
    4 bytes              │ {"n": 3, "columns": [["rank", 0],  │ 3 x 8 bytes each, little-endian
                         │  ["step", "q"], ["loss", "d"],     │
                         │  ["usage", [{…}, null, {…}]]]}     │

A column is packed (`q`: whole numbers of 64 bits, `d`: doubles, NaN and infinities among them), or stands in the
header: one value if it is the same in all samples, a list of all values if some are missing or are documents. A column
that a post leaves out is not in the document. What another release wrote is read as far as it is known.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from optimus_contract.codec import Unreadable, read, write
from optimus_contract.message import Message
from optimus_contract.telemetry import SAMPLE_FIELDS, Gradients, SampleColumns, Usage
from optimus_service.store.errors import InvalidValue

_LENGTH: Final = struct.Struct("<I")


def pack(columns: SampleColumns) -> bytes:
    """The document of these samples.

    Raises:
        InvalidValue: a whole number needs more than 64 bits.
    """
    header: list[list[object]] = []
    packed: list[bytes] = []
    for name in SAMPLE_FIELDS:
        values = getattr(columns, name)
        if values is None:
            continue
        layout, data = _packed(name, values)
        header.append([name, layout])
        packed.append(data)
    text = json.dumps({"n": len(columns), "columns": header}, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *packed])


def _packed(name: str, values: Sequence[Any]) -> tuple[object, bytes]:
    """What the header says of the column, and what follows the header."""
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        first = values[0]
        if kinds == {int} and values.count(first) == len(values) and -(2**63) <= first < 2**63:
            return first, b""
        code = "q" if kinds == {int} else "d"
        try:
            return code, struct.pack(f"<{len(values)}{code}", *values)
        except (struct.error, OverflowError) as error:
            raise InvalidValue(f"{name} has a number of more than 64 bits") from error
    return [write(each, without_none=True) if isinstance(each, Message) else each for each in values], b""


def unpack(document: bytes) -> dict[str, Sequence[Any]]:
    """The columns by name, each with as many values as there are samples; fields that are not known are left out."""
    (length,) = _LENGTH.unpack_from(document)
    place = _LENGTH.size + length
    header = json.loads(document[_LENGTH.size : place])
    n_samples: int = header["n"]
    columns: dict[str, Sequence[Any]] = {}
    for name, layout in header["columns"]:
        values: Sequence[Any]
        if isinstance(layout, str):
            values = struct.unpack_from(f"<{n_samples}{layout}", document, place)
            place += 8 * n_samples
        else:
            values = layout if isinstance(layout, list) else [layout] * n_samples
        if name in SAMPLE_FIELDS:
            reader = _READERS.get(name)
            columns[name] = values if reader is None else [reader(each) for each in values]
    return columns


def _read(kind: type[Message], stored: object) -> Message | None:
    """None as well for what another release wrote in another way."""
    try:
        return None if stored is None else read(kind, stored)
    except Unreadable:
        return None


_READERS: Final[dict[str, Callable[[object], Message | None]]] = {
    "usage": partial(_read, Usage),
    "gradients": partial(_read, Gradients),
}
