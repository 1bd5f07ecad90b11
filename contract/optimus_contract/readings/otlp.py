"""Metrics over OTLP/HTTP, as OpenTelemetry's exporters send them: protocol buffers or JSON. Pure.

A gauge or a sum named `loss`, `step`, `epoch` or the like is read, whatever stands before its last dot (`a.loss`).
The step of the others is what the metric `step` said, or their attribute `step`. The path of the fields is that of
opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.protobuf import fields
from optimus_contract.readings.reading import Channel, Reading

PATH = "/v1/metrics"
_LOSS = frozenset({"loss", "train_loss", "training_loss"})
_STEP = frozenset({"step", "steps", "global_step"})
_TOTAL = frozenset({"total_steps", "max_steps"})
_RATE = frozenset({"learning_rate", "lr"})
_EVALUATED = ("eval", "val", "test")
_GAUGE, _SUM = 5, 7
_NANOSECONDS = 1e9

Point = tuple[str, float, int | None, float | None]
"""Name, value, the attribute `step`, and POSIX seconds of one number."""


def unzipped(body: bytes, most: int) -> bytes:
    """What gzip has packed. Raises `ValueError`: it is none, or a part of one, or it is more than `most` bytes."""
    stream = zlib.decompressobj(wbits=31)
    try:
        found = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from error
    if len(found) > most:
        raise ValueError(f"more than {most} bytes")
    if not stream.eof:
        raise ValueError("it is cut off: gzip's own end is missing")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes follow after its end")
    return found


def points_of(body: bytes, content_type: str) -> list[Point]:
    """The numbers of one export. Raises `ValueError`: it is none."""
    is_json = content_type.partition(";")[0].strip() == "application/json"
    return list(_points_of_json(json.loads(body)) if is_json else _points(body))


class Otlp:
    """The metrics of one script."""

    def __init__(self) -> None:
        self._step: int | None = None

    def readings(self, points: Sequence[Point], at: float) -> list[Reading]:
        """What one export says, by step; `at`: POSIX seconds."""
        newest = [_whole(value) for name, value, _, _ in points if _last(name) in _STEP]
        self._step = max([each for each in newest if each is not None], default=self._step)
        by_step: dict[int | None, list[Point]] = {}
        for point in points:
            by_step.setdefault(self._step if point[2] is None else point[2], []).append(point)
        found = [_reading(step, each, at) for step, each in sorted(by_step.items(), key=lambda pair: pair[0] or 0)]
        return [each for each in found if each.step is not None or each.loss is not None or each.metrics]


def _reading(step: int | None, points: list[Point], at: float) -> Reading:
    values = {_last(name): value for name, value, _, _ in points}
    times = [when for _, _, _, when in points if when is not None and 0 < when <= at + 60.0]
    total = next((_whole(values[name]) for name in _TOTAL if name in values), None)
    return Reading(
        channel=Channel.OTLP,
        at=max(times, default=at),
        step=step,
        total_steps=total or None,
        loss=next((values[name] for name in _LOSS if name in values), None),
        epoch=values.get("epoch"),
        learning_rate=next((values[name] for name in _RATE if name in values), None),
        metrics={name: each for name, each in values.items() if name.startswith(_EVALUATED) and math.isfinite(each)},
    )


def _last(name: str) -> str:
    return name.lower().rpartition(".")[2].replace("-", "_").replace("/", "_")


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) and 0 <= value <= MAX_COUNT else None


# --- protocol buffers ------------------------------------------------------------------------------------------------


def _inside(message: bytes, *path: int) -> Iterator[bytes]:
    """The messages at a path of field numbers."""
    if not path:
        yield message
        return
    for number, value in fields(message):
        if number == path[0] and isinstance(value, bytes):
            yield from _inside(value, *path[1:])


def _points(body: bytes) -> Iterator[Point]:
    for metric in _inside(body, 1, 2, 2):
        name, data = "", list[bytes]()
        for number, value in fields(metric):
            if number == 1 and isinstance(value, bytes):
                name = value.decode(errors="replace").replace("\0", "")[:200]
            elif number in (_GAUGE, _SUM) and isinstance(value, bytes):
                data += _inside(value, 1)
        for point in data:
            found = _point(point)
            if found is not None:
                yield name, *found


def _point(message: bytes) -> tuple[float, int | None, float | None] | None:
    value: float | None = None
    step, when = None, None
    for number, content in fields(message):
        if not isinstance(content, bytes):
            continue
        if number == 4 and len(content) == 8:
            (value,) = struct.unpack("<d", content)
        elif number == 6 and len(content) == 8:
            value = float(struct.unpack("<q", content)[0])
        elif number == 3 and len(content) == 8:
            when = struct.unpack("<Q", content)[0] / _NANOSECONDS
        elif number == 7:
            step = _step_attribute(content) if step is None else step
    return None if value is None else (value, step, when)


def _step_attribute(message: bytes) -> int | None:
    """The number of an attribute named `step`."""
    key, number = b"", None
    for field, content in fields(message):
        if field == 1 and isinstance(content, bytes):
            key = content
        elif field == 2 and isinstance(content, bytes):
            number = next((value for name, value in fields(content) if name == 3 and isinstance(value, int)), None)
    return number if key == b"step" and number is not None and number <= MAX_COUNT else None


# --- JSON ------------------------------------------------------------------------------------------------------------


def _points_of_json(document: Any) -> Iterator[Point]:
    for metric in _listed(document, "resourceMetrics", "scopeMetrics", "metrics"):
        for kind in ("gauge", "sum"):
            for point in _listed(metric.get(kind), "dataPoints"):
                try:
                    value = float(point["asDouble"] if "asDouble" in point else point["asInt"])
                    when = float(point["timeUnixNano"]) / _NANOSECONDS if "timeUnixNano" in point else None
                except (KeyError, TypeError, ValueError, OverflowError):
                    continue
                yield str(metric.get("name"))[:200], value, _step_of_json(point), when


def _step_of_json(point: Mapping[str, Any]) -> int | None:
    for attribute in _listed(point, "attributes"):
        value = attribute.get("value")
        if attribute.get("key") == "step" and isinstance(value, Mapping):
            try:
                return _whole(float(value.get("intValue")))  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _listed(document: Any, *path: str) -> Iterator[Mapping[str, Any]]:
    """The objects in the lists at a path of names."""
    if not path:
        if isinstance(document, Mapping):
            yield document
        return
    found = document.get(path[0]) if isinstance(document, Mapping) else None
    for each in found if isinstance(found, list) else []:
        yield from _listed(each, *path[1:])
