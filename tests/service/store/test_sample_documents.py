"""Whatever samples a post has: its document says the same."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.store.store_builders import a_sample

from optimus_contract.telemetry import SAMPLE_FIELDS, Sample, SampleColumns
from optimus_service.store.errors import InvalidValue
from optimus_service.store.samples.sample_documents import pack, unpack

WHOLE = st.integers(0, 2**53)
REAL = st.floats(allow_nan=True)
SAMPLES = st.builds(
    a_sample,
    sequence=WHOLE,
    step=WHOLE,
    n_steps=st.integers(1, 3),
    at=st.one_of(st.integers(0, 10**6), st.floats(0, 1e11)),
    loss=st.none() | REAL,
    sent_bytes=st.sampled_from([0, 2**53]),
    staleness=st.none() | st.floats(0, 10),
    usage=st.none() | st.just({"cpu_cores": 0.5, "memory_bytes": 7}),
    gradients=st.none() | st.just({"square": -0.5, "variance": 3.0}),
    metrics=st.none() | st.dictionaries(st.text(min_size=1, max_size=3), REAL, max_size=2),
)


@given(st.lists(SAMPLES, min_size=1, max_size=8))
def test_samples_come_back_as_they_were(samples: list[Sample]) -> None:
    columns = SampleColumns.of(samples)
    columns.check()
    assert repr(columns.samples()) == repr(samples)  # NaN is not equal to itself
    found = unpack(pack(columns))
    rows = [Sample(**dict(zip(found, values, strict=True))) for values in zip(*found.values(), strict=True)]
    for row, sample in zip(rows, samples, strict=True):
        for name in SAMPLE_FIELDS:
            told, was = getattr(row, name), getattr(sample, name)
            assert told == was or repr(told) == repr(was)


def test_a_post_of_equal_values_is_small() -> None:
    samples = [a_sample(sequence=number, step=number + 1) for number in range(100)]
    assert len(pack(SampleColumns.of(samples))) < 100 * 60


def test_a_number_of_more_than_64_bits_is_named() -> None:
    with pytest.raises(InvalidValue, match="sent_bytes"):
        pack(SampleColumns.of([a_sample(sent_bytes=1), a_sample(sent_bytes=2**63)]))
    with pytest.raises(InvalidValue, match="sent_bytes"):
        pack(SampleColumns.of([a_sample(sent_bytes=2**64)]))


def test_what_another_release_wrote_is_read_as_far_as_it_is_known() -> None:
    header = {"n": 2, "columns": [["new", "d"], ["step", "q"], ["newer", 3], ["usage", [{"odd": 1}, None]]]}
    text = json.dumps(header).encode()
    document = struct.pack("<I", len(text)) + text + struct.pack("<2d2q", 0.5, 1.5, 7, 8)
    assert unpack(document) == {"step": (7, 8), "usage": [None, None]}
