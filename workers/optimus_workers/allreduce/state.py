"""The state of an all-reduce job, whole on each member: parameters, buffers and the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from optimus_workers.allreduce.own_state import OwnState
from optimus_workers.checkpoint.shards import write_shard
from optimus_workers.environment import TaskEnvironment
from optimus_workers.server.range_state import collect
from optimus_workers.server.update import n_state_sections, pieces
from optimus_workers.wire.memory import Floats, private_floats
from optimus_workers.wire.messages import Assume, Join, Save, Saved, SaveFailed, SnapshotTaken
from optimus_workers.wire.ranges import block_floats, server_ranges
from optimus_workers.wire.values import Holding, Source, TaskProfile, UpdateRule
from optimus_workers.worker.flat_model import FlatModel, clip


class MemberState:
    """What servers have between them in other jobs, as a member of an all-reduce job has it."""

    def __init__(self, flat: FlatModel, profile: TaskProfile, environment: TaskEnvironment, own: OwnState) -> None:
        self._flat = flat
        self._profile = profile
        self._environment = environment
        self._own = own
        floats = flat.total_floats
        self.sections: list[Tensor] = [
            flat.values,
            *(
                torch.from_numpy(private_floats(floats)).to(flat.device)
                for _ in range(n_state_sections(profile.update))
            ),
        ]
        """Parameters and buffers first, then the optimizer's state; each of shape (total_floats,)."""
        self.held: Holding | None = None
        """The version that the sections are; None: they are not whole."""
        # One at a time: two checkpoints at once would only slow each other down.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def is_now(self, epoch: int, version: int) -> None:
        """The sections are whole, at this version."""
        self.held = Holding(epoch, version, 0, self._flat.total_floats)

    def reset_optimizer(self) -> None:
        """Before the first update."""
        for section in self.sections[1:]:
            section.zero_()
        self._own.reset()

    def gather(self) -> None:
        """Bring the sections up to date, before others read them."""
        if self.held is not None:
            self._own.gather(self.sections)

    def scatter(self, version: int) -> None:
        """Go on from the sections, which are of this version."""
        self._own.scatter(self.sections, version)

    def read(self, join: Join, sources: tuple[Source, ...]) -> None:
        """Take the state from checkpoint files. Raises `OSError`."""
        environment = self._environment
        whole = Assume(
            join.epoch, join.version, 0, self._flat.total_floats, self._profile, join.n_workers, False, sources
        )  # fmt: skip
        token, own, origin = environment.job_token, environment.checkpoints, environment.origin
        state = collect(whole, environment.task_name, (), token, own, origin)
        assert state is not None, "there are sources"
        for section, read in zip(self.sections, state.sections, strict=True):
            section.copy_(torch.from_numpy(read))

    def update(self, learning_rate: float, n_updates: int) -> None:
        """What servers do with the summed gradient, on all of it: clip it, update the parameters, take the buffers."""
        rule, end = self._profile.update, self._flat.parameter_floats
        gradient = self._flat.push[:end]
        if rule.max_gradient_norm is not None:
            clip(gradient, rule.max_gradient_norm, block_floats(self._flat.total_floats))
        if self._own.updates:
            self._own.update(learning_rate)
        for piece in () if self._own.updates else pieces(rule, (0, end)):
            parameters, *state = (section[piece.first : piece.end] for section in self.sections)
            rate = learning_rate * piece.learning_rate_scale
            apply_update(piece.rule, rate, n_updates, parameters, gradient[piece.first : piece.end], state)
        self._flat.values[end:].copy_(self._flat.push[end:])  # buffers: the mean, no optimizer

    def save(self, save: Save, join: Join | None, send: Callable[[SnapshotTaken | Saved | SaveFailed], None]) -> None:
        """Write this member's share of the state, as a server of that range would. Returns before it is on disk."""
        if join is None or self.held is None or self.held.version != save.version:
            send(SaveFailed(save.epoch, save.version, "this worker does not have that version"))
            return
        self.gather()
        first, end = server_ranges(self._flat.total_floats, join.n_workers)[join.rank]
        sections = [section[first:end].to("cpu", copy=True).numpy() for section in self.sections]
        send(SnapshotTaken(save.epoch, save.version))
        self._writer.submit(self._write, save, first, sections, send)

    def _write(
        self, save: Save, first: int, sections: Sequence[Floats], send: Callable[[Saved | SaveFailed], None]
    ) -> None:
        try:
            file = write_shard(self._environment.checkpoints, save.epoch, save.version, first, list(sections))
        except OSError as error:
            send(SaveFailed(save.epoch, save.version, str(error)))
        else:
            send(Saved(save.epoch, save.version, file))


def apply_update(
    rule: UpdateRule, learning_rate: float, n_updates: int, parameters: Tensor, gradient: Tensor, state: list[Tensor]
) -> None:
    """Update `parameters` and `state` in place by torch's fused kernels; all of shape (n,).

    `n_updates`: how many came before this one. State that is all zeros is that of an optimizer before its first update.
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
