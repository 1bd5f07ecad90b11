"""The 64-byte header in front of each message of a data connection.

 0    4    5    6    7    8      12     16    24      32      40       48             56   60   64
 ┌────┬────┬────┬────┬────┬──────┬──────┬─────┬───────┬───────┬────────┬──────────────┬────┬────┐
 │OPTW│type│code│sect│ 0  │epoch │source│step │offset │length │version │learning rate │crc │ 0  │
 └────┴────┴────┴────┴────┴──────┴──────┴─────┴───────┴───────┴────────┴──────────────┴────┴────┘
Little endian. `length` bytes of payload follow, unless the codec says that they lie in shared memory. `crc` is the
payload's CRC-32, or 0 where it was not computed (TCP has its own check; resharding, which is rare and must not go
wrong, has both).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from optimus_workers.errors import WireError

MAGIC = b"OPTW"
HEADER = struct.Struct("<4sBBBBIIQQQQdII")
HEADER_BYTES = HEADER.size
CLIP_COEFFICIENT = struct.Struct("<d")
"""The payload of CLIP."""
FLOAT_BYTES = 4
CHUNK_FLOATS = 262_144
"""1 MiB: large enough that headers cost nothing, small enough that receiving, summing and sending overlap."""
MAX_PAYLOAD_BYTES = 2 * CHUNK_FLOATS * FLOAT_BYTES
"""A chunk of numbered values (top-k that keeps all) takes twice a plain one."""
MAX_SHARED_BYTES = 2**44
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
    SHARE = 11
    """Both ways, once, after the handshake on a Unix socket: descriptors of memory travel beside it (maybe none)."""
    NORMS = 12
    """Server → worker 0: the sums of squares of its blocks of the gradient (payload: float64 each)."""
    CLIP = 13
    """Worker 0 → server: what to multiply the gradient with (payload: one float64)."""


class Codec(IntEnum):
    """How numbers are written in the payload."""

    NONE = 0
    FLOAT32 = 1
    SHARED = 2
    """There is no payload: `length` bytes from `offset` on are ready in memory that both ends have mapped."""
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    """One float32 scale for each 4096 values, then one signed byte for each value."""
    TOP_K = 6
    """k places in the chunk as int32, then k float32 values; all others are 0."""


_TENSOR_CODECS = {
    FrameType.INITIAL: frozenset({Codec.FLOAT32}),
    FrameType.PUSH: frozenset(Codec) - {Codec.NONE},
    FrameType.PARAMETERS: frozenset({Codec.FLOAT32, Codec.SHARED}),
    FrameType.PIECE: frozenset({Codec.FLOAT32}),
}
_PAYLOAD_BYTES = {
    FrameType.CHALLENGE: 32,
    FrameType.HELLO: 64,
    FrameType.WELCOME: 32,
    FrameType.PULL: 0,
    FrameType.FETCH: 16,
    FrameType.MISSING: 0,
    FrameType.SHARE: 0,
    FrameType.CLIP: 8,
}


_FRAME_TYPES = {int(each): each for each in FrameType}
_CODECS = {int(each): each for each in Codec}


@dataclass(slots=True)
class Header:
    """One frame's header. `offset` counts floats from the beginning of the whole vector, `length` counts bytes.

    Not to be changed. It is not frozen because it would then take four times as long to make, once for each chunk.
    """

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
    """Version of the parameters that are sent, asked for, or were used for a push: updates since the beginning."""
    section: int = 0
    """In a piece: 0 parameters, 1 and up the optimizer's state. With shared parameters: the one of the
    server's two memories in which they lie."""
    learning_rate: float = 0.0
    crc: int = 0
    codec: Codec = Codec.FLOAT32
    """How the numbers are written; frames without numbers have none."""

    @property
    def payload_bytes(self) -> int:
        """What follows the header."""
        return 0 if self.codec is Codec.SHARED else self.length

    def encode(self) -> bytes:
        return self.encode_at(self.offset, self.length, self.codec)

    def encode_at(self, offset: int, length: int, codec: Codec) -> bytes:
        """What `encode` would give with these in place of its own; making such a header takes much longer."""
        if self.type not in _TENSOR_CODECS:
            codec = Codec.NONE
        return HEADER.pack(
            MAGIC, self.type, codec, self.section, 0, self.epoch, self.source, self.step, offset, length,
            self.version, self.learning_rate, self.crc, 0,
        )  # fmt: skip


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """The header in exactly 64 bytes. Raises `WireError`; a header that is returned announces a legal size."""
    if len(data) != HEADER_BYTES:
        raise WireError(f"a header has {HEADER_BYTES} bytes, not {len(data)}")
    magic, kind, code, section, zero, epoch, source, step, offset, length, version, rate, crc, reserved = HEADER.unpack(
        data
    )
    if magic != MAGIC or zero or reserved:
        raise WireError("not a header of this protocol")
    frame_type, codec = _FRAME_TYPES.get(kind), _CODECS.get(code)
    if frame_type is None or codec is None:
        raise WireError(f"unknown frame type {kind} or codec {code}")
    _check_payload(frame_type, codec, length)
    codec = codec or Codec.FLOAT32  # as in headers that are made here; they carry no numbers
    return Header(frame_type, epoch, source, step, offset, length, version, section, rate, crc, codec)


def _check_payload(frame_type: FrameType, codec: Codec, length: int) -> None:
    if frame_type in _TENSOR_CODECS:
        limit = MAX_SHARED_BYTES if codec is Codec.SHARED else MAX_PAYLOAD_BYTES
        legal = codec in _TENSOR_CODECS[frame_type] and 0 < length <= limit
        if codec in (Codec.FLOAT32, Codec.SHARED):
            legal = legal and length % FLOAT_BYTES == 0
    elif frame_type is FrameType.NORMS:
        legal = codec is Codec.NONE and 0 < length <= MAX_PAYLOAD_BYTES and length % 8 == 0
    else:
        legal = codec is Codec.NONE and length == _PAYLOAD_BYTES[frame_type]
    if not legal:
        raise WireError(f"{frame_type.name} with codec {codec.name} and {length} bytes of payload")


def check_crc(header: Header, payload: bytes | bytearray | memoryview) -> None:
    """Raises `WireError` when the header carries a checksum and the payload does not match it."""
    if header.crc and header.crc != zlib.crc32(payload):
        raise WireError(f"checksum of {header.type.name} at {header.offset} does not match")
