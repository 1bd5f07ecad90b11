"""What is known of a job by its samples, as bytes: so that it outlives the process that read them.

::

    length of the header │ header: JSON of `JobHistory.state`, where an array is {"~": [type, …shape]} │ the arrays
    4 bytes              │                                                                             │ in this order
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

import numpy as np

from optimus_scheduler.model import Architecture, Mode
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import Document, JobRecord

FORMAT: Final = 1
"""Of the documents. Those of another one are not read, and most of the samples that they were made of are gone: who
changes what a history knows reads the former format as well."""
_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = "~"


def basis_of(job: JobRecord) -> Document:
    """What a job's history depends on beside its samples: the arguments of `begun`."""
    spec = readable_spec(job)
    target = None if spec is None else spec.convergence.target_metric
    return {
        "format": FORMAT,
        "mode": (Mode.SYNC if spec is None else spec.mode).value,
        "metric": None if target is None else target.name,
        "measures_parts": spec is None or spec.architecture is not Architecture.SCRIPT,
    }


def begun(basis: Document) -> JobHistory:
    """A history without samples."""
    mode, metric = Mode(basis["mode"]), basis["metric"]
    return JobHistory(mode, metric, measures_parts=basis["measures_parts"])


def pack(history: JobHistory, basis: Document) -> bytes:
    """The document of what is known by now."""
    arrays: list[bytes] = []

    def take(value: Any) -> Document:
        arrays.append(value.tobytes())
        return {_ARRAY: [value.dtype.str, *value.shape]}

    text = json.dumps({"basis": basis, **history.state()}, default=take, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *arrays])


def unpack(document: bytes, basis: Document) -> JobHistory | None:
    """The history, equal in every bit; None when it was made on another basis, but for the figure of its rule: what is
    known of every figure is there."""
    (length,) = _LENGTH.unpack_from(document)
    place = _LENGTH.size + length

    def read(value: Document) -> Any:
        nonlocal place
        if _ARRAY not in value:
            return value
        kind, *shape = value[_ARRAY]
        array = np.frombuffer(document, kind, math.prod(shape), place).reshape(shape).copy()
        place += array.nbytes
        return array

    state = json.loads(document[_LENGTH.size : place], object_hook=read)
    if state["basis"] | {"metric": None} != basis | {"metric": None}:
        return None
    history = begun(basis)
    history.restore(state)
    return history
