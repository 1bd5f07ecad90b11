"""The data connection's header: what is written is read back; everything else is refused before memory is given."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.errors import WireError
from optimus_workers.wire.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Codec,
    FrameType,
    Header,
    check_crc,
    decode_header,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
CODECS = st.sampled_from(sorted(set(Codec) - {Codec.NONE}))


@given(
    epoch=U32, source=U32, step=U64, offset=U64, version=U64, section=st.integers(0, 255), crc=U32,
    n_floats=st.integers(1, MAX_PAYLOAD_BYTES // 4), codec=CODECS, rate=st.floats(allow_nan=False),
)  # fmt: skip
def test_a_header_is_read_back(
    epoch: int,
    source: int,
    step: int,
    offset: int,
    version: int,
    section: int,
    crc: int,
    n_floats: int,
    codec: Codec,
    rate: float,
) -> None:
    header = Header(FrameType.PUSH, epoch, source, step, offset, 4 * n_floats, version, section, rate, crc, codec)
    encoded = header.encode()
    assert len(encoded) == HEADER_BYTES
    assert decode_header(encoded) == header


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        decode_header(noise)


@given(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_a_changed_byte_never_announces_an_illegal_size(position: int, value: int) -> None:
    data = bytearray(Header(FrameType.PUSH, length=4096).encode())
    data[position] = value
    try:
        header = decode_header(data)
    except WireError:
        return
    assert header.payload_bytes <= MAX_PAYLOAD_BYTES
    assert header.length % 4 == 0 or header.codec is not Codec.FLOAT32


@pytest.mark.parametrize(
    "header",
    [
        Header(FrameType.PUSH, length=0),
        Header(FrameType.PUSH, length=6),
        Header(FrameType.PUSH, length=MAX_PAYLOAD_BYTES + 4),
        Header(FrameType.PULL, length=4),
        Header(FrameType.HELLO, length=2**40),
    ],
)
def test_sizes_that_the_type_does_not_allow_are_refused(header: Header) -> None:
    with pytest.raises(WireError):
        decode_header(header.encode())


@pytest.mark.parametrize("size", [0, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_only_64_bytes_are_a_header(size: int) -> None:
    with pytest.raises(WireError, match="64 bytes"):
        decode_header(bytes(size))


def test_a_checksum_is_checked_where_there_is_one() -> None:
    payload = b"parameters.."
    check_crc(Header(FrameType.PIECE, length=12, crc=zlib.crc32(payload)), payload)
    check_crc(Header(FrameType.PIECE, length=12), b"anything")
    with pytest.raises(WireError, match="checksum"):
        check_crc(Header(FrameType.PIECE, length=12, crc=zlib.crc32(payload)), b"parameters!!")
