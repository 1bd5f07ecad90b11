"""Counts that begin anew in each epoch become steps of the whole training."""

from __future__ import annotations

from dataclasses import dataclass

from optimus_contract.limits import MAX_COUNT


@dataclass(frozen=True, slots=True)
class Counted:
    """How far the whole training is."""

    step: int
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    corrects: bool = False
    """What was said before of totals was wrong."""


class EpochCounts:
    """Follows one count through the epochs of one process.

    A count like `30/100` is of an epoch if an epoch was named, or once it begins anew; else it is of the whole
    training. One without an end, `step 30`, is of an epoch once it begins anew.
    """

    def __init__(self, first_epoch: int | None = None, steps_per_epoch: float | None = None) -> None:
        """`first_epoch`: 0 or 1, what the script calls its first; `steps_per_epoch`: both from processes before this
        one, as far as they are known."""
        self.first_epoch = first_epoch
        self._known = steps_per_epoch
        self._epoch: int | None = None
        self._total_epochs: int | None = None
        self._counted_epoch: int | None = None
        """In which the newest count was."""
        self._total: int | None = None
        self._first: int | None = None
        """The first count of this process."""
        self._last = 0
        self._before = 0
        """Steps of the epochs before the present one."""
        self._is_whole: bool | None = None
        """The count is of the whole training; None: it is not known yet."""
        self._said: int | None = None
        """The newest total of the whole training that was said."""

    def names(self, epoch: int, total_epochs: int | None) -> None:
        """An epoch was named, alone or beside a count."""
        if not 0 <= epoch <= MAX_COUNT:
            return
        if self.first_epoch is None:
            self.first_epoch = 0 if epoch == 0 else 1
        self._epoch = epoch
        if total_epochs is not None and 0 < total_epochs <= MAX_COUNT:
            self._total_epochs = total_epochs

    def count(self, count: int, total: int | None) -> Counted | None:
        """A count, with its end if that was said; None: it is of something else."""
        if not 0 <= count <= MAX_COUNT:
            return None
        return self._open(count) if total is None else self._bar(count, total)

    def _is_new_epoch(self) -> bool:
        return self._epoch is not None and self._counted_epoch is not None and self._epoch > self._counted_epoch

    def _epochs_before(self) -> int:
        return 0 if self._epoch is None else max(0, self._epoch - (self.first_epoch or 0))

    def _open(self, count: int) -> Counted:
        """`step 30`: no end was said."""
        if self._counted_epoch is None and self._known is not None and count < self._epochs_before() * self._known / 2:
            self._before = round(self._epochs_before() * self._known)  # a count of all steps would be further
            self._is_whole = False
        each = None
        self._first = count if self._first is None else self._first
        begins = count <= self._first or self._is_new_epoch()
        if begins and count < self._last and self._is_whole is not True:
            each, self._is_whole = self._last, False
            self._before += self._last
        elif self._is_new_epoch() and self._is_whole is None:
            self._is_whole = True
        self._last, self._counted_epoch = count, self._epoch
        return Counted(self._before + count, steps_per_epoch=each)

    def _bar(self, count: int, total: int) -> Counted | None:
        """`30/100`."""
        if count > total or not 1 <= total <= MAX_COUNT:
            return None
        if self._total is not None and total != self._total:
            return None  # another bar: of an evaluation, a download
        self._total = total
        if self._is_new_epoch() and self._is_whole is None and self._last < count and self._last < total:
            self._is_whole, self._before = True, 0  # it went on where it was
        if not self._is_whole:
            if count < self._last:
                self._is_whole = False
                self._before += total
            if self._epoch is not None and (count >= self._last or self._is_new_epoch()):
                self._before = max(self._before, self._epochs_before() * total)
        self._last, self._counted_epoch = count, self._epoch
        return self._counted(count, total)

    def _counted(self, count: int, total: int) -> Counted:
        is_of_epoch = not self._is_whole and (self._epoch is not None or self._before > 0 or total == self._known)
        each = total if is_of_epoch else None
        whole: int | None = total
        if is_of_epoch:
            whole = None if self._total_epochs is None else total * self._total_epochs
        whole = None if whole is None or whole > MAX_COUNT else whole
        corrects, self._said = self._said not in (None, whole), whole
        return Counted(self._before + count, whole, each, corrects)
