"""Control messages as lines of JSON: typed values come out, or a refusal that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.errors import WireError
from optimus_workers.wire.codec import MAX_LINE_BYTES, decode_line, encode_line
from optimus_workers.wire.messages import Assume, Done, Halted, Hello, Join, MessageTypes, Saved
from optimus_workers.wire.values import Holding, ServerRange, ShardFile, Source, TaskProfile, TaskRole, UpdateRule

COUNT = st.integers(0, 2**40)
PROFILE = st.builds(
    TaskProfile,
    *[COUNT] * 6,
    st.builds(
        UpdateRule,
        st.sampled_from(["sgd", "adamw"]),
        st.floats(0, 1),
        st.booleans(),
        st.floats(0, 1),
        st.tuples(st.floats(0, 1), st.floats(0, 1)),
        st.floats(0, 1),
    ),
)
ADDRESS = st.tuples(st.text(max_size=20), st.integers(1, 65535))
SOURCE = st.builds(Source, COUNT, COUNT, COUNT, st.none() | st.text(), st.none() | ADDRESS, st.none() | st.text())
MESSAGES = st.one_of(
    st.builds(
        Hello, st.text(), st.sampled_from(TaskRole), COUNT, st.text(), st.text(), st.none() | ADDRESS,
        st.none() | PROFILE, COUNT,
    ),
    st.builds(Halted, COUNT, st.lists(st.builds(Holding, COUNT, COUNT, COUNT, COUNT), max_size=3).map(tuple)),
    st.builds(Done, COUNT, COUNT, st.floats(allow_nan=False), COUNT),
    st.builds(Saved, COUNT, COUNT, st.builds(ShardFile, COUNT, COUNT, st.text(), COUNT, st.text())),
)  # fmt: skip
TO_TASK = st.one_of(
    st.builds(
        Assume, COUNT, COUNT, COUNT, COUNT, PROFILE, COUNT, st.booleans(), st.lists(SOURCE, max_size=3).map(tuple)
    ),
    st.builds(
        Join, *[COUNT] * 6, st.lists(st.builds(ServerRange, ADDRESS, COUNT, COUNT), max_size=3).map(tuple),
        st.booleans(), st.booleans(),
    ),
)  # fmt: skip


@given(MESSAGES)
def test_messages_of_tasks_are_read_back(message: Any) -> None:
    line = encode_line(message)
    assert line.count(b"\n") == 1
    assert decode_line(line, MessageTypes.from_task) == message


@given(TO_TASK)
def test_messages_to_tasks_are_read_back(message: Any) -> None:
    assert decode_line(encode_line(message), MessageTypes.to_task) == message


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        decode_line(noise, MessageTypes.from_task)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(MESSAGES, JSON, st.data())
def test_a_field_of_the_wrong_kind_is_refused_or_well_typed(message: Any, value: Any, data: st.DataObject) -> None:
    fields = json.loads(encode_line(message))
    name = data.draw(st.sampled_from(sorted(fields)))
    line = json.dumps({**fields, name: value}).encode()
    try:
        decoded = decode_line(line, MessageTypes.from_task)
    except WireError:
        return
    encode_line(decoded)  # a value of the declared types can be written again
    assert type(decoded).__name__ in MessageTypes.from_task


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"type":"Done","epoch":1,"step":2,"loss":0.5}', "missing fields"),
        (b'{"type":"Done","epoch":1,"step":2,"loss":0.5,"n_examples":3,"more":4}', "unknown fields"),
        (b'{"type":"Done","epoch":true,"step":2,"loss":0.5,"n_examples":3}', "Done.epoch: expected int, not bool"),
        (b'{"type":"Done","epoch":1,"step":2.0,"loss":0.5,"n_examples":3}', "Done.step"),
        (b'{"type":"__class__"}', "unknown message type"),
        (b'{"type":"Halted","epoch":1,"holdings":[{"epoch":1}]}', "missing fields"),
        (b"[1,2]", "not a JSON object"),
        (b"[" * 100_000, "not a line of JSON"),
        (b" " * (MAX_LINE_BYTES + 1), "too long"),
    ],
)
def test_what_is_wrong_is_said(line: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode_line(line, MessageTypes.from_task)
