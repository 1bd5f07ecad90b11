"""One range of the flat vector at one version, and how it is put together in a new membership: from this server's
memory, from other servers, from checkpoint files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from optimus_workers.checkpoint.shards import read_shard
from optimus_workers.checkpoint.storage import Storage
from optimus_workers.errors import WireError
from optimus_workers.server.update import n_state_sections
from optimus_workers.wire.data import NO_RANK, as_bytes, connect, receive_header, receive_into
from optimus_workers.wire.frames import FrameType, Header, check_crc
from optimus_workers.wire.memory import FloatMemory, Floats, private_floats, shareable_floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import Range, chunks
from optimus_workers.wire.values import Address, Source


@dataclass(slots=True)
class RangeState:
    """The range [first, end) at one version. Section 0: parameters, the others: optimizer state; all (end - first,)."""

    version: int
    first: int
    end: int
    sections: list[Floats]
    memory: FloatMemory | None = None
    """The memory of section 0, if workers on this machine may map it."""
    # A view takes some microseconds to make, several times that when the caches are cold from copying: too much for
    # what is wanted again at every step.
    _parts: dict[Range, list[Floats]] = field(default_factory=dict, repr=False)
    _payloads: dict[Range, memoryview] = field(default_factory=dict, repr=False)

    @classmethod
    def zeros(cls, version: int, first: int, end: int, n_sections: int) -> RangeState:
        memory = shareable_floats(end - first)
        others = [private_floats(end - first) for _ in range(n_sections - 1)]
        return cls(version, first, end, [memory.floats, *others], memory)

    def part(self, first: int, end: int) -> list[Floats]:
        """Views of [first, end) of each section. Do not write to the list."""
        found = self._parts.get((first, end))
        if found is None:
            found = [section[first - self.first : end - self.first] for section in self.sections]
            self._parts[first, end] = found
        return found

    def payload(self, part: Range) -> memoryview:
        """The parameters of a part as bytes."""
        found = self._payloads.get(part)
        if found is None:
            found = self._payloads[part] = as_bytes(self.part(*part)[0])
        return found


# --- from its sources (blocking) -------------------------------------------------------------------------------------

FETCH_RANGE = struct.Struct("<QQ")
FETCH_SECONDS = 60.0
"""Longest silence of a server that is fetched from."""


def collect(
    assume: Assume,
    own_task: str,
    own_states: Sequence[RangeState],
    token: str,
    checkpoints: Storage,
    origin: Storage | None = None,
) -> RangeState | None:
    """The range that `assume` asks for; None when worker 0 is to bring the initial parameters. `origin`: the
    checkpoints of the job that this one starts from.

    Raises `OSError` or `WireError` when a source does not have what it should.
    """
    if not assume.sources and assume.first < assume.end:
        return None
    if (kept := _as_it_is(assume, own_task, own_states)) is not None:
        return kept
    n_sections = 1 + n_state_sections(assume.profile.update)
    state = RangeState.zeros(assume.version, assume.first, assume.end, n_sections)
    for source in assume.sources:
        first, end = max(source.first, assume.first), min(source.end, assume.end)
        target = state.part(first, end)
        if source.file is not None and source.is_origin:
            if origin is None:
                raise WireError("a source is of another job, and OPTIMUS_ORIGIN does not say where its checkpoints are")
            # The optimizer begins anew, with zeros: its state belongs to steps that this job did not make.
            _copy(read_shard(origin, source.file, source.first, first, end, n_sections=1), target[:1])
        elif source.file is not None:
            _copy(
                read_shard(checkpoints, source.file, source.first, first, end, n_sections),
                target,
            )
        elif source.task == own_task:
            _copy(find_state(own_states, source.version, first, end).part(first, end), target)
        else:
            _fetch(source, first, end, assume, token, target)
    return state


def _as_it_is(assume: Assume, own_task: str, own_states: Sequence[RangeState]) -> RangeState | None:
    """The state that is there, if it is the very range: it does not change any more, so nothing is copied."""
    if any(source.file is not None or source.task != own_task for source in assume.sources):
        return None
    wanted = (assume.version, assume.first, assume.end)
    same = (state for state in own_states if (state.version, state.first, state.end) == wanted)
    if any(source.version != assume.version for source in assume.sources):
        return None
    return next(same, None)


def find_state(states: Sequence[RangeState], version: int, first: int, end: int) -> RangeState:
    """The one among `states` that has [first, end) at `version`. Raises `WireError` when none has."""
    for state in states:
        if state.version == version and state.first <= first and end <= state.end:
            return state
    raise WireError(f"version {version} of [{first}, {end}) is not here")


def _copy(pieces: Sequence[Floats], target: Sequence[Floats]) -> None:
    for piece, place in zip(pieces, target, strict=True):
        place[:] = piece


def _fetch(source: Source, first: int, end: int, assume: Assume, token: str, target: list[Floats]) -> None:
    """Have another server send [first, end) of each section into `target`."""
    address: Address | None = source.address
    if address is None:
        raise WireError("a source has neither file nor address")
    pieces = chunks(first, end, assume.profile.parameter_floats)
    with connect(address, token, assume.epoch, NO_RANK, local=source.local) as connection:
        connection.settimeout(FETCH_SECONDS)
        request = Header(FrameType.FETCH, epoch=assume.epoch, version=source.version, length=FETCH_RANGE.size)
        connection.sendall(request.encode() + FETCH_RANGE.pack(first, end))
        for section, place in enumerate(target):
            for chunk_first, chunk_end in pieces:
                header = receive_header(connection)
                view = as_bytes(place[chunk_first - first : chunk_end - first])
                due = (FrameType.PIECE, section, chunk_first, len(view))
                if (header.type, header.section, header.offset, header.length) != due:
                    raise WireError(f"a {header.type.name} instead of the piece that was due")
                receive_into(connection, view)
                check_crc(header, view)
