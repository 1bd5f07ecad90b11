"""The 64-byte header in front of each message of a data connection.

 0    4    5    6    7    8      12     16    24      32      40       48             56   60   64
 ┌────┬────┬────┬────┬────┬──────┬──────┬─────┬───────┬───────┬────────┬──────────────┬────┬────┐
 │OPTW│type│code│sect│ 0  │epoch │source│step │offset │length │version │learning rate │crc │ 0  │
 └────┴────┴────┴────┴────┴──────┴──────┴─────┴───────┴───────┴────────┴──────────────┴────┴────┘
Little endian. `length` bytes of payload follow: raw float32 for tensors. `crc` is the payload's CRC-32, or 0 where it
was not computed (TCP has its own check; resharding, which is rare and must not go wrong, has both).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from optimus_workers.wire.errors import WireError

MAGIC = b"OPTW"
HEADER = struct.Struct("<4sBBBBIIQQQQdII")
HEADER_BYTES = HEADER.size
FLOAT_BYTES = 4
CHUNK_FLOATS = 262_144
"""1 MiB: large enough that headers cost nothing, small enough that receiving, summing and sending overlap."""
MAX_PAYLOAD_BYTES = CHUNK_FLOATS * FLOAT_BYTES
assert HEADER_BYTES == 64


class FrameType(IntEnum):
    """What a frame is for."""

    CHALLENGE = 1
    """Server → client, first frame: a nonce."""
    HELLO = 2
    """Client → server: the proof and a nonce of its own."""
    WELCOME = 3
    """Server → client: the server's proof."""
    INITIAL = 4
    """Worker 0 → server: a chunk of the initial parameters."""
    PUSH = 5
    """Worker → server: a chunk of a gradient (and of buffers)."""
    PULL = 6
    """Worker → server: send your parameters."""
    PARAMETERS = 7
    """Server → worker: a chunk of parameters."""
    FETCH = 8
    """Server → server: send this range of the version (payload: two u64, first and end)."""
    PIECE = 9
    """Server → server: a chunk of one section of the fetched range."""
    MISSING = 10
    """Server → server: that version is not here (any more)."""


class Codec(IntEnum):
    """How numbers are written in the payload."""

    NONE = 0
    FLOAT32 = 1


_TENSOR_TYPES = frozenset({FrameType.INITIAL, FrameType.PUSH, FrameType.PARAMETERS, FrameType.PIECE})
_PAYLOAD_BYTES = {
    FrameType.CHALLENGE: 32,
    FrameType.HELLO: 64,
    FrameType.WELCOME: 32,
    FrameType.PULL: 0,
    FrameType.FETCH: 16,
    FrameType.MISSING: 0,
}


@dataclass(frozen=True, slots=True)
class Header:
    """One frame's header. `offset` counts floats from the beginning of the whole vector, `length` counts bytes."""

    type: FrameType
    epoch: int = 0
    """The membership epoch; frames of another epoch are refused."""
    source: int = 0
    """The sender's rank."""
    step: int = 0
    """The step that a push belongs to (counted from 0)."""
    offset: int = 0
    length: int = 0
    version: int = 0
    """Of the parameters that are sent, asked for, or were used to compute a push: updates since the beginning."""
    section: int = 0
    """Of a piece: 0 parameters, 1 and up the optimizer's state."""
    learning_rate: float = 0.0
    crc: int = 0

    @property
    def n_floats(self) -> int:
        return self.length // FLOAT_BYTES

    def encode(self) -> bytes:
        codec = Codec.FLOAT32 if self.type in _TENSOR_TYPES else Codec.NONE
        return HEADER.pack(
            MAGIC, self.type, codec, self.section, 0, self.epoch, self.source, self.step, self.offset, self.length,
            self.version, self.learning_rate, self.crc, 0,
        )  # fmt: skip


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """The header in exactly 64 bytes. Raises `WireError`; a header that is returned announces a legal size."""
    if len(data) != HEADER_BYTES:
        raise WireError(f"a header has {HEADER_BYTES} bytes, not {len(data)}")
    magic, kind, codec, section, zero, epoch, source, step, offset, length, version, rate, crc, reserved = (
        HEADER.unpack(data)
    )
    if magic != MAGIC or zero or reserved:
        raise WireError("not a header of this protocol")
    try:
        frame_type = FrameType(kind)
    except ValueError as error:
        raise WireError(f"unknown frame type {kind}") from error
    _check_payload(frame_type, codec, length)
    return Header(frame_type, epoch, source, step, offset, length, version, section, rate, crc)


def _check_payload(frame_type: FrameType, codec: int, length: int) -> None:
    if frame_type in _TENSOR_TYPES:
        legal = codec == Codec.FLOAT32 and 0 < length <= MAX_PAYLOAD_BYTES and length % FLOAT_BYTES == 0
    else:
        legal = codec == Codec.NONE and length == _PAYLOAD_BYTES[frame_type]
    if not legal:
        raise WireError(f"{frame_type.name} with codec {codec} and {length} bytes of payload")


def check_crc(header: Header, payload: bytes | bytearray | memoryview) -> None:
    """Raises `WireError` when the header carries a checksum and the payload does not match it."""
    if header.crc and header.crc != zlib.crc32(payload):
        raise WireError(f"checksum of {header.type.name} at {header.offset} does not match")
