"""How a job ends, is paused, or is closed. Pure."""

from __future__ import annotations

from optimus_workers.coordinator.facts import Facts
from optimus_workers.coordinator.instructions import (
    Append,
    Send,
    Stop,
    TellMembership,
    TellResult,
)
from optimus_workers.coordinator.journal import Ended, Formed
from optimus_workers.coordinator.phases import (
    CLOSING_SECONDS,
    Phase,
)
from optimus_workers.coordinator.results import failure, success
from optimus_workers.errors import LET_GO, USER_CODE_FAILED
from optimus_workers.wire.messages import (
    Evaluate,
    Exit,
)


class Ending(Facts):
    """The last words of a coordinator."""

    def _begin_evaluating(self) -> None:
        self._evaluator = next((name for name in self.members.workers if name in self.tasks), None)
        if self._evaluator is None:
            self._regroup(self._cause, "nobody is left to evaluate")
        else:
            self._do(Send(self._evaluator, Evaluate(self.epoch)))
            self.phase = Phase.EVALUATING

    def _finish(self, metrics: dict[str, float], model: str | None = None) -> None:
        self._end(success(self._told_version, self._losses.mean, metrics, self._checkpoint_path, model))
        self._close("the job is done", LET_GO)

    def _fail(self, error: str, *, permanent: bool = False) -> None:
        """`permanent`: another attempt would fail likewise."""
        if self.phase is not Phase.CLOSING:
            self._end(failure(self._told_version, self._losses.mean, error, self._checkpoint_path, permanent=permanent))
            self._close("the job has failed", USER_CODE_FAILED)

    def _end(self, ended: Ended) -> None:
        """Remember how the job ended. The service is told once the tasks have gone, after their last samples."""
        self._do(Append(ended))
        self._ended = ended

    def _pause(self) -> None:
        """The last word of this coordinator: an epoch without tasks."""
        self.epoch += 1
        formed = Formed(
            self.epoch, self._generation, self._now, self.version, (), (), "pause", batch=self._batch_at(self.version)
        )
        self._do(Append(formed), TellMembership(formed))
        self._close("the job is paused", LET_GO)

    def _close(self, reason: str, code: int) -> None:
        self._do(*(Send(name, Exit(reason)) for name in sorted(self.tasks)))
        self._exit_code = code
        self._deadline = self._now + CLOSING_SECONDS
        self.phase = Phase.CLOSING

    def _closing(self) -> bool:
        if self._now < (self._deadline if self.tasks else self._linger_until):
            return False
        if self._ended is not None:
            self._do(TellResult(self._ended))
        self._do(Stop(self._exit_code))
        self.phase = Phase.OVER
        return True
