"""The training that a worker of an all-reduce job does: it holds all parameters and the optimizer's state itself.

The update rule on all of a worker's parameters, by torch's fused kernels, where the parameters are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from optimus_workers.allreduce.gradients import GroupCompression, StepParts
from optimus_workers.allreduce.rendezvous import Board
from optimus_workers.allreduce.session import GroupSession
from optimus_workers.checkpoint.shards import write_shard
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import ConnectionOver
from optimus_workers.server.range_state import RangeState, collect
from optimus_workers.server.update import n_state_sections, pieces
from optimus_workers.task.user_code import UserCodeFailed, users
from optimus_workers.telemetry.gradients import GradientStatistics
from optimus_workers.wire.control import Delivered, Inbox
from optimus_workers.wire.memory import Floats, private_floats
from optimus_workers.wire.messages import (
    Assume,
    Done,
    Go,
    Halt,
    Halted,
    Join,
    Joined,
    Published,
    Save,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.ranges import block_floats, server_ranges
from optimus_workers.wire.values import Address, Holding, UpdateRule
from optimus_workers.worker.compute import Computed, compute_slots
from optimus_workers.worker.flat_model import clip
from optimus_workers.worker.session import Exchanged
from optimus_workers.worker.staging import Staging, stage
from optimus_workers.worker.training import TELLING_RANK, Answer, Training

log = logging.getLogger(__name__)


class GroupTraining(Training):
    """`Training` with a process group in place of servers; it answers for the state as a server would."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        super().__init__(environment, inbox, send)
        self._board = Board(send)
        self._compression = GroupCompression(environment.spec.get("compression") or "none")
        n_states = n_state_sections(self.profile.update)
        floats = self._flat.total_floats
        self._sections: list[Tensor] = [
            self._flat.values,
            *(torch.from_numpy(private_floats(floats)).to(self._flat.device) for _ in range(n_states)),
        ]
        self._shared_task = self._task
        is_elastic = environment.spec.get("elastic_batch") is not None
        # Every member can measure, so whoever becomes the one that tells has figures already.
        self._gradients = GradientStatistics(self.profile.gradient_period, is_elastic=is_elastic)
        self._parts: StepParts | None = None
        """Of the step at hand, if it is measured."""
        self._is_waiting = False
        self._held: Holding | None = None
        """What the sections are a state of; None: of nothing whole."""
        # One at a time: two checkpoints at once would only slow each other down.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        return stage(device, values, push, servers=False)

    @property
    def address(self) -> Address:
        return self.host, 0

    def deliver_at_once(self, message: Delivered) -> bool:
        """On the reading thread: whether the message is one that the main thread may be waiting for."""
        if isinstance(message, Published):
            self._board.received(message)
        return isinstance(message, Published)

    def answer_halt(self, halt: Halt) -> None:
        self._board.close(halt.epoch - 1)
        self._send(Halted(halt.epoch, (self._held,) if self._held is not None else ()))

    def obey(self, message: Delivered) -> bool:
        """Do what a server would be asked for; whether it was that."""
        if isinstance(message, Save):
            self._save(message)
        return isinstance(message, Save)

    # --- becoming a member -------------------------------------------------------------------------------------------

    def join(self, join: Join) -> None:
        """Become a member of the group, and have what its root has."""
        self.halt()
        self._inbox.check()
        session = GroupSession(join, self._board, self.host, self._flat, self._compression)
        self._session = session
        self._inbox.check()
        session.meet(self._environment.network_bytes_per_second)
        self._get_state(session)
        self._held = Holding(join.epoch, join.version, 0, self._flat.total_floats)
        self._shared_task = session.share_gradients_of(self._task, self._gradients_are_ready)
        self.newest_version = max(self.newest_version, join.version)
        self._evaluations.begin(self._steps.data_epoch(join, join.version))
        self._send(Joined(join.epoch))

    def _get_state(self, session: GroupSession) -> None:
        join, held = session.join, self._held
        # What is overwritten with what it was anyway stays whole even when the root dies at it.
        if held is None or held.version != join.version or session.group.sources or join.brings_parameters:
            self._held = None
        if join.rank == session.group.root:
            self._make_state(session)
        session.share_state(self._sections)

    def _make_state(self, session: GroupSession) -> None:
        """The root's part, if it has not got the state in memory."""
        join = session.join
        if join.brings_parameters:
            self._restore_initial()
            for section in self._sections[1:]:
                section.zero_()
        elif session.group.sources:
            for section, read in zip(self._sections, self._read(session).sections, strict=True):
                section.copy_(torch.from_numpy(read))

    def _read(self, session: GroupSession) -> RangeState:
        """The checkpoint. Raises `OSError`."""
        join, environment = session.join, self._environment
        whole = Assume(
            join.epoch, join.version, 0, self._flat.total_floats, self.profile, join.n_workers, False,
            session.group.sources,
        )  # fmt: skip
        token, own, origin = environment.job_token, environment.checkpoints, environment.origin
        state = collect(whole, environment.task_name, (), token, own, origin)
        assert state is not None, "there are sources"
        return state

    # --- a step ------------------------------------------------------------------------------------------------------

    def step(self, go: Go) -> None:
        """Compute, sum, update, tell."""
        session, held = self._session, self._held
        if not isinstance(session, GroupSession) or session.join.epoch != go.epoch or held is None:
            return
        started_at = time.perf_counter()
        computed, exchanged = self._compute_and_share(session, go.step)
        self._measure(session)
        self._update(self._steps.learning_rate(session.join, go.step), held.version)
        self._held = Holding(go.epoch, go.step + 1, held.first, held.end)
        self.newest_version = exchanged.version = go.step + 1
        noise = self._gradients.noise_scale if session.join.rank == TELLING_RANK else None
        self._send(Done(go.epoch, go.step, computed.loss, computed.n_examples, noise))
        self._record(session.join, go.step, computed, exchanged, time.perf_counter() - started_at, None)

    def _compute_and_share(self, session: GroupSession, step: int) -> tuple[Computed, Exchanged]:
        """Leave the gradients and buffers of the whole batch in `flat.push`. Raises `ConnectionOver`."""

        slots = self._steps.slots(session.join, step)
        self._batches.expect(self._steps.slots_ahead(session.join, step, slots))
        self._parts = StepParts(slots) if self._gradients.measures(step) else None
        session.begin_step(len(slots), measures=self._parts is not None)
        self._is_waiting = False
        self._watchdog.begin()
        try:
            computed = users(
                lambda: compute_slots(
                    self._shared_task,
                    self._flat,
                    slots,
                    self._after_slot,
                    batches=self._batches,
                    options=self._compute_options,
                )
            )
            return computed, session.finish_step(computed, self._parts)
        except UserCodeFailed as error:
            # A member that dies ends the backward passes of all others, within their own code.
            if session.is_broken:
                raise ConnectionOver(f"the process group is broken: {error}") from error
            raise
        finally:
            self._watchdog.end()

    def _measure(self, session: GroupSession) -> None:
        """Once the sum is there, and before it is clipped."""
        if self._parts is None:
            return
        self._gradients.parts_done(*self._parts.sums.tolist())
        gradient = self._flat.push[: self._flat.parameter_floats]
        self._gradients.step_done(float(torch.dot(gradient, gradient)), self._steps.batch(session.join).size)

    def _gradients_are_ready(self) -> None:
        """From here on it is up to the others: they may take their time without this worker being hung."""
        self._watchdog.sign()
        self._watchdog.end()
        self._is_waiting = True

    def _after_slot(self) -> None:
        if not self._is_waiting:
            self._watchdog.sign()
        session = self._session
        if self._parts is not None and isinstance(session, GroupSession) and session.is_alone:
            self._parts.slot_done(self._flat.staging.gradients[: self._flat.parameter_floats])
        self._pacer.pace()
        self._inbox.check()

    def _update(self, learning_rate: float, n_updates: int) -> None:
        """What servers do with the sum, on all of it."""
        rule, end = self.profile.update, self._flat.parameter_floats
        gradient = self._flat.push[:end]
        if rule.max_gradient_norm is not None:
            clip(gradient, rule.max_gradient_norm, block_floats(self._flat.total_floats))
        for piece in pieces(rule, (0, end)):
            parameters, *state = (section[piece.first : piece.end] for section in self._sections)
            rate = learning_rate * piece.learning_rate_scale
            apply_update(piece.rule, rate, n_updates, parameters, gradient[piece.first : piece.end], state)
        self._flat.values[end:].copy_(self._flat.push[end:])  # buffers: the mean, no optimizer

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, save: Save) -> None:
        """Write this worker's share of the state, as a server with the same range would."""
        session, held = self._session, self._held
        if session is None or held is None or held.version != save.version:
            self._send(SaveFailed(save.epoch, save.version, "this worker does not have that version"))
            return
        first, end = server_ranges(self._flat.total_floats, session.join.n_workers)[session.join.rank]
        sections = [section[first:end].to("cpu", copy=True).numpy() for section in self._sections]
        self._send(SnapshotTaken(save.epoch, save.version))
        self._writer.submit(self._write, save, first, sections)

    def _write(self, save: Save, first: int, sections: list[Floats]) -> None:
        try:
            file = write_shard(self._environment.checkpoints, save.epoch, save.version, first, sections)
        except OSError as error:
            self._send(SaveFailed(save.epoch, save.version, str(error)))
        else:
            self._send(Saved(save.epoch, save.version, file))


# --- the update ------------------------------------------------------------------------------------------------------


def apply_update(
    rule: UpdateRule, learning_rate: float, n_updates: int, parameters: Tensor, gradient: Tensor, state: list[Tensor]
) -> None:
    """Update `parameters` and `state` in place; all of shape (n,). `n_updates`: how many came before this one.

    State that is all zeros is that of an optimizer before its first update.
    """
    if rule.kind == "adamw":
        adamw(
            [parameters],
            [gradient],
            [state[0]],
            [state[1]],
            [],
            [torch.tensor(float(n_updates))],
            fused=True,
            amsgrad=False,
            beta1=rule.betas[0],
            beta2=rule.betas[1],
            lr=learning_rate,
            weight_decay=rule.weight_decay,
            eps=rule.eps,
            maximize=False,
        )
        return
    sgd(
        [parameters],
        [gradient],
        [state[0] if state else None],
        fused=True,
        weight_decay=rule.weight_decay,
        momentum=rule.momentum,
        lr=learning_rate,
        dampening=0.0,
        nesterov=rule.nesterov,
        maximize=False,
    )
