"""The way of every change of the membership, from who is there to who trains. Pure."""

from __future__ import annotations

from optimus_workers.checkpoint.manifest import Manifest, parameter_mismatch
from optimus_workers.coordinator.attempt import Attempt
from optimus_workers.coordinator.checkpointing import Checkpointing
from optimus_workers.coordinator.events import (
    CheckpointRead,
    Directive,
)
from optimus_workers.coordinator.facts import Checkpoint
from optimus_workers.coordinator.gate import make_gate
from optimus_workers.coordinator.group_attempt import GroupAttempt
from optimus_workers.coordinator.instructions import (
    Append,
    ReadCheckpoint,
    TellMembership,
)
from optimus_workers.coordinator.journal import Formed, Forming
from optimus_workers.coordinator.membership import Cover, Members
from optimus_workers.coordinator.phases import (
    MAX_ATTEMPTS,
    STOPPING_SECONDS,
    Phase,
)
from optimus_workers.coordinator.scaling import next_batch
from optimus_workers.wire.values import followed


class MembershipForming(Checkpointing):
    """The phases GATHERING to JOINING."""

    def _gathering(self) -> bool:
        if self.wanted is None and not self._took_over:
            return False
        members = self._desired()
        if self._still_waits(members):
            return False
        if members.can_train or (self._directive is Directive.PAUSE and members.servers):
            return self._begin_attempt(members)
        if self._directive is Directive.RUN or self._now < self._gathering_since + STOPPING_SECONDS:
            return False
        # Told to stop, and nobody is left to stop: what there is, is the last checkpoint.
        if self._directive is Directive.PAUSE:
            self._pause()
        else:
            self._finish({})
        return True

    def _begin_attempt(self, members: Members) -> bool:
        if self.profile is None:
            return False  # servers are there to be paused before any worker was
        if self._n_attempts == MAX_ATTEMPTS:
            self._fail(f"no membership could be formed in {MAX_ATTEMPTS} attempts; the last one: {self._message}")
            return True
        self._n_attempts += 1
        self.epoch += 1
        self.members = members
        self._form_at_once = False
        self._expected = set()
        self._data_lost_at = None
        self._saving = None
        self._losses.drop_step()
        kind = GroupAttempt if self.plan.is_allreduce else Attempt
        self._attempt = kind(self.epoch, members, self.profile, is_async=self.plan.is_async)
        self._do(Append(Forming(self.epoch)), *self._attempt.halts(self.tasks.values()))
        self.phase = Phase.HALTING
        return True

    def _halting(self) -> bool:
        attempt = self._open_attempt
        if attempt.awaiting:
            return False
        cover = attempt.cover(self.tasks, oldest_epoch=self._formed.epoch if self._formed else 0)
        if cover is not None:
            return self._begin_assuming(cover)
        self._do(ReadCheckpoint(self.epoch))
        self.phase = Phase.RESTORING
        return True

    def _checkpoint_read(self, event: CheckpointRead) -> None:
        if self.phase is not Phase.RESTORING or event.epoch != self.epoch:
            return
        if event.error is not None:
            self._fail(f"the checkpoints cannot be read: {event.error}")
        elif event.manifest is None and not self.members.workers:
            self._pause()  # before anything was trained
        elif event.manifest is None:
            self.checkpoint = None
            self._begin_assuming(Cover(0, ()))
        elif event.is_origin:
            self._start_from(event.manifest, event.path)
        elif event.manifest.profile != self.profile:
            self._fail(
                f"the checkpoint is of a different task: {event.manifest.profile} instead of {self.profile}",
                permanent=True,
            )
        else:
            self.checkpoint = Checkpoint(event.manifest.version, event.path)
            self._begin_assuming(Cover(event.manifest.version, event.manifest.sources))

    def _start_from(self, manifest: Manifest, path: str) -> None:
        """Begin at step 0 with the parameters of another job's checkpoint, if they are such as this task has."""
        assert self.profile is not None, "without one no attempt begins"
        mismatch = parameter_mismatch(manifest.profile, self.profile)
        if mismatch is not None:
            self._fail(f"the job cannot start from {path}: {mismatch}", permanent=True)
            return
        self.checkpoint = None
        self._begin_assuming(Cover(0, manifest.as_origin))

    def _begin_assuming(self, cover: Cover) -> bool:
        attempt = self._open_attempt
        self._do(*attempt.assumes(cover))
        assert self.profile is not None, "without one no attempt begins"
        if not self.plan.is_async and attempt.members.workers:
            attempt.batch = next_batch(
                self.plan,
                self.profile,
                len(attempt.members.workers),
                attempt.version,
                self._batches,
                self._wanted_batch(attempt.members),
                self._noise_scale,
            )
        self.phase = Phase.ASSUMING
        return True

    def _assuming(self) -> bool:
        if self._open_attempt.awaiting:
            return False
        self._do(*self._open_attempt.joins(self.tasks))
        self.phase = Phase.JOINING
        return True

    def _joining(self) -> bool:
        attempt = self._open_attempt
        if attempt.awaiting:
            return False
        assert self.profile is not None
        if attempt.members.workers:
            self._record_membership(attempt)
        self.version = attempt.version
        last_step = self.plan.last_step(self.profile, None if self.plan.is_async else attempt.batch)
        self._gate = make_gate(self.plan, attempt.members.workers, attempt.version, last_step)
        if self.checkpoint is None:
            self._save_at = self._now
        self._n_attempts = 0
        # Not earlier: processes that end take time from those that get the parameters while everybody waits.
        self._let_leavers_go(but=attempt.members)
        self.phase = Phase.TRAINING
        return True

    def _record_membership(self, attempt: Attempt) -> None:
        told = self._told_version
        batch = None if self.plan.is_async else attempt.batch
        if batch is not None:
            self._batches = followed(self._batches, batch)
        if self._cause == "batch" and self._formed is not None and self._formed.workers != attempt.members.workers:
            self._cause = "rescale"
        self._formed = Formed(
            epoch=attempt.epoch,
            generation=self._generation,
            at=self._now,
            step=attempt.version,
            workers=attempt.members.workers,
            servers=attempt.members.servers,
            cause=self._cause,
            pause_seconds=None if self._stopped_at is None else max(0.0, self._now - self._stopped_at),
            lost_steps=max(0, told - (attempt.version if batch is None else batch.told_step(attempt.version))),
            message=self._message,
            batch=batch,
        )
        self._do(Append(self._formed), TellMembership(self._formed))
        self._cause, self._message = "rescale", None
