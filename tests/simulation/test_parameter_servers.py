"""Parameter servers under random schedules of frames, deaths and cut-off tasks, against a replay in one process.

Real are the servers' shards, their fence of membership epochs, the hand-over of ranges, and the choice of the version
that training goes on from. The connections are lists of frames; workers push gradients of whole numbers, whose sum is
the same in any order, so what servers hold and send is compared bit for bit with what one process computes.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from tests.workers.protocol.plain_optimizer import PlainOptimizer

from optimus_workers.coordinator import membership
from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.server import range_state, shard, sync_shard
from optimus_workers.server.service import ShardService, make_shard
from optimus_workers.server.update import n_state_sections
from optimus_workers.wire import ranges
from optimus_workers.wire.data import NO_RANK
from optimus_workers.wire.frames import FrameType, Header, decode_header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import server_ranges, worker_micro_batches
from optimus_workers.wire.values import Source, TaskProfile, UpdateRule

N_PARAMETERS, N_FLOATS, CHUNK_FLOATS = 416, 448, 32
MICRO_BATCHES, RATE, N_EVENTS = 6, 0.125, 1500
RULE = UpdateRule("adamw", 0.0, False, 0.01, (0.9, 0.99), 1e-8)
PROFILE = TaskProfile(N_PARAMETERS, N_PARAMETERS, N_FLOATS, 10, 1, MICRO_BATCHES, RULE)
NOBODY = cast(Any, None)


class Connection:
    """A worker's, or another server's, to one server; `frames` are on their way to the server."""

    is_local, maps_parameters = True, False

    def __init__(self, service: ShardService, epoch: int, source: int) -> None:
        self.service, self.epoch, self.source = service, epoch, source
        self.frames: deque[tuple[Header, Floats]] = deque()
        self.answers: list[tuple[Header, bytes]] = []
        self.is_open = True

    def send(self, header: Header, payload: bytes | memoryview = b"") -> None:
        self.answers.append((header, bytes(payload)))

    def send_buffers(self, buffers: list[memoryview]) -> None:
        self.answers.append((decode_header(buffers[0]), b"".join(buffers[1:])))

    def abort(self) -> None:
        self.is_open = False

    def deliver(self, header: Header, values: Floats) -> None:
        """As the thread of a connection does it."""
        self.service.place(cast(Any, self), header)[:] = values
        self.service.received(cast(Any, self), header, b"")


class Replay:
    """One process that trains alone."""

    def __init__(self) -> None:
        self._parameters = torch.zeros(N_PARAMETERS, requires_grad=True)
        self._optimizer = PlainOptimizer([{"params": [self._parameters], "lr": RATE}], RULE)
        self.versions = [np.zeros(N_FLOATS, np.float32)]

    def at(self, version: int) -> Floats:
        while len(self.versions) <= version:
            total = sum(gradient(len(self.versions) - 1, slot) for slot in range(MICRO_BATCHES))
            self._parameters.grad = torch.from_numpy(total[:N_PARAMETERS])
            self._optimizer.step()
            self.versions.append(np.concatenate([self._parameters.detach().numpy(), total[N_PARAMETERS:]]))
        return self.versions[version]


def gradient(step: int, slot: int) -> Any:
    """Of one micro-batch, (N_FLOATS,)."""
    return np.random.default_rng((step, slot)).integers(-8, 9, N_FLOATS).astype(np.float32)


class Cluster:
    """Servers and workers of one job, and the hand-over between their memberships."""

    def __init__(self, seed: int) -> None:
        self.chance, self.replay = random.Random(seed), Replay()
        self.servers: dict[str, ShardService] = {}
        self.epoch = self.formed_epoch = self.n_born = self.version = self.n_refused = 0
        self.connections: list[Connection] = []
        self.late: list[tuple[Connection, Header, Floats]] = []

    # --- memberships -------------------------------------------------------------------------------------------------

    def reform(self) -> None:
        """A new membership, until one is formed: of tasks that live, and others."""
        while not self._is_formed():
            pass

    def _is_formed(self) -> bool:
        """Whether this attempt was not cut short."""
        self.epoch += 1
        while len(self.servers) < 3:
            self.n_born += 1
            self.servers[f"server-{self.n_born}"] = ShardService(cast(Any, mock.Mock()))
        held = {name: service.halt(self.epoch) for name, service in sorted(self.servers.items())}
        self.late += [(each, *frame) for each in self.connections for frame in each.frames]
        self.connections = []
        addresses = {name: (name, 1) for name in held}
        cover = membership.newest_sources(held, addresses, N_FLOATS, oldest_epoch=self.formed_epoch, same_version=True)
        names = self.chance.sample(sorted(self.servers), self.chance.randint(1, 3))
        n_workers, version = self.chance.randint(1, 4), 0 if cover is None else cover.version
        for name, part in zip(names, server_ranges(N_FLOATS, len(names)), strict=True):
            if self.chance.random() < 0.1:
                self.servers.pop(self.chance.choice(sorted(self.servers)))  # while ranges are handed over
                return False
            sources = () if cover is None else cover.part(*part)
            assume = Assume(self.epoch, version, *part, PROFILE, n_workers, False, sources)
            service = self.servers[name]
            state = range_state.collect(assume, name, service.states(), "", NOBODY)
            n_sections = 1 + n_state_sections(RULE)
            service.candidate = make_shard(assume, state or range_state.RangeState.zeros(0, *part, n_sections))
        for name in set(self.servers) - set(names):
            del self.servers[name]
        for rank in range(n_workers):
            for name in names:
                connection = Connection(self.servers[name], self.epoch, rank)
                self.servers[name].opened(cast(Any, connection))
                self.connections.append(connection)
        self.version, self.formed_epoch, self.n_workers = version, self.epoch, n_workers
        self._push_all()
        return True

    def fetch(self, source: Source, first: int, end: int, assume: Assume, _token: str, target: list[Floats]) -> None:
        """Another server's pieces, by its own code."""
        connection = Connection(self.servers[cast(str, source.task)], assume.epoch, NO_RANK)
        asked = Header(FrameType.FETCH, epoch=assume.epoch, version=source.version)
        connection.service.received(cast(Any, connection), asked, struct.pack("<QQ", first, end))
        for header, payload in connection.answers:
            assert header.type is FrameType.PIECE, f"version {source.version} of [{first}, {end}) is not there"
            values = np.frombuffer(payload, np.float32)
            target[header.section][header.offset - first : header.offset - first + len(values)] = values

    # --- frames ------------------------------------------------------------------------------------------------------

    def _push_all(self) -> None:
        for connection in self.connections:
            slots = range(*worker_micro_batches(MICRO_BATCHES, connection.source, self.n_workers))
            total = sum((gradient(self.version, slot) for slot in slots), np.zeros(N_FLOATS, np.float32))
            for first, end in cast(Any, connection.service.shard).chunks:
                header = Header(
                    FrameType.PUSH, epoch=self.epoch, source=connection.source, step=self.version, offset=first,
                    length=4 * (end - first), version=self.version, learning_rate=RATE,
                )  # fmt: skip
                connection.frames.append((header, total[first:end]))

    def event(self) -> None:
        """One frame arrives, mostly; some come late or twice, and tasks die or are cut off."""
        draw = self.chance.random()
        if draw < 0.003:
            self.servers.pop(self.chance.choice(sorted(self.servers)))
            self.reform()
        elif draw < 0.012:
            self.reform()  # a worker died, or two tasks do not reach each other
        elif draw < 0.06 and self.late:
            self._refused(*self.chance.choice(self.late))
        else:
            self._deliver(self.chance.choice(self.connections))
        if not any(each.frames for each in self.connections):
            self._step_done()

    def _deliver(self, connection: Connection) -> None:
        served = cast(Any, connection.service.shard)
        rank = connection.source
        if not connection.frames or served._n_pushed[rank] >= served._n_finished + served._window:
            return  # it would wait for others
        header, values = connection.frames.popleft()
        connection.deliver(header, values)
        self.late.append((connection, header, values))
        if self.chance.random() < 0.1:
            self._refused(connection, header, values)

    def _refused(self, connection: Connection, header: Header, values: Floats) -> None:
        """A frame of another epoch or step, or a second copy, changes nothing: what follows shows it."""
        if connection.service not in self.servers.values():
            return  # it is gone, and hears nothing
        try:
            connection.deliver(header, values)
        except (WireError, ConnectionOver):
            self.n_refused += 1
        else:
            raise AssertionError(f"a frame of epoch {header.epoch}, step {header.step} is taken in epoch {self.epoch}")

    def _step_done(self) -> None:
        self.version += 1
        for connection in self.connections:
            got = connection.answers
            connection.answers = []
            chunks = cast(Any, connection.service.shard).chunks
            assert sorted(header.offset for header, _ in got) == [first for first, _ in chunks]
            for header, payload in got:
                first, end = header.offset, header.offset + header.length // 4
                assert header.version == self.version
                assert payload == self.replay.at(self.version)[first:end].tobytes(), f"step {self.version} differs"
        self._push_all()


def train(seed: int) -> Cluster:
    """Run a schedule. Chunks are small, so that it has many frames."""
    trained = Cluster(seed)
    with (
        mock.patch.object(ranges, "CHUNK_FLOATS", CHUNK_FLOATS),
        mock.patch.object(shard, "CHUNK_FLOATS", CHUNK_FLOATS),
        mock.patch.object(range_state, "_fetch", trained.fetch),
    ):
        trained.reform()
        for _ in range(N_EVENTS):
            trained.event()
    return trained


@pytest.mark.parametrize("seed", range(20))
def test_what_servers_hold_is_what_one_process_computes(seed: int) -> None:
    """The id of the test that fails reproduces the schedule."""
    trained = train(seed)
    assert trained.n_refused > 0
    assert len(trained.replay.versions) > 3


def test_a_seed_says_the_whole_schedule() -> None:
    first, second = train(3), train(3)
    assert [(each.epoch, each.version, each.n_refused) for each in (first, second)] == 2 * [
        (first.epoch, first.version, first.n_refused)
    ]


_cover = membership.newest_sources
_BUGS: dict[str, tuple[object, str, Any]] = {
    "frames of an earlier epoch are taken": (ShardService, "_served", lambda self, _connection: self.shard),
    "frames that come twice are taken": (sync_shard.SyncShard, "_check_due", lambda *_: None),
    "parts of several versions go together": (
        membership,
        "newest_sources",
        lambda *held, oldest_epoch, same_version: _cover(*held, oldest_epoch=oldest_epoch, same_version=False),
    ),
}


@pytest.mark.parametrize("bug", _BUGS)
def test_a_bug_is_noticed(bug: str) -> None:
    owner, name, wrong = _BUGS[bug]
    with mock.patch.object(owner, name, wrong), pytest.raises(AssertionError):
        _train_all(20)


def _train_all(n_seeds: int) -> None:
    for seed in range(n_seeds):
        train(seed)
