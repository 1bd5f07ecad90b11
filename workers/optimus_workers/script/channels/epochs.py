"""Counts that begin anew in each epoch become steps of the whole training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from optimus_contract.limits import MAX_COUNT

_MANY_EPOCHS = 20


@dataclass(frozen=True, slots=True)
class Counted:
    """How far the whole training is."""

    step: int
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    corrects: bool = False
    """Totals that were printed before were wrong."""
    steps_into_epoch: int | None = None
    """How many of the steps are of the present epoch, where the count is of an epoch."""
    may_be_whole: bool = False
    """Nothing has shown yet whether the count is of an epoch, as it is taken for, or of the whole training."""
    is_bare: bool = False
    """Nothing has shown yet that it is of the training: files may have been counted before it."""
    replaces: bool = False
    """What was counted before was not of the training."""
    went_on: bool = False
    """The bar before, which named no epoch, was of a later one than it was taken for: the process went on there."""


class _OtherBar(NamedTuple):
    """A bar beside the one that counts."""

    total: int
    last: int
    main: int
    """How far the one that counts was when this one began."""


class _EpochLength:
    """How many steps an epoch has, where one count goes on through all of them: each begins somewhere between two lines
    that are printed, so that every further epoch bounds the length more closely."""

    def __init__(self, known: float | None) -> None:
        """`known`: from processes before these."""
        self._known = known
        self._least, self._most = 0.0, math.inf
        self.steps: int | None = None
        """None: no epoch has ended."""

    def ended(self, n_epochs: int, newest: int, next_one: int, first: int) -> None:
        """So many epochs have ended, between the counts `newest` and `next_one`; `first`: the process's first count."""
        least, most = newest / n_epochs, next_one / n_epochs
        if max(least, self._least) <= min(most, self._most):
            least, most = max(least, self._least), min(most, self._most)
        self._least, self._most = least, most
        if self.steps is None or not least <= self.steps <= most:
            self.steps = self._within(first)

    def _within(self, first: int) -> int:
        """Exact where the last step of an epoch is printed; counted from 0: the first one."""
        if self._known is not None and self._least <= self._known <= self._most:
            return round(self._known)
        return max(1, math.floor(self._most) if first == 0 else math.ceil(self._least))

    @property
    def is_known(self) -> bool:
        """Whether it is as long as it was in the processes before these."""
        return self._known is not None and self.steps == round(self._known)


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
        """The newest printed total of the whole training ..."""
        self._each: int | None = None
        """The newest length of an epoch that was found by what was printed."""
        self._said_each = False
        """... and whether one of an epoch was."""
        self._is_alone = False
        """The newest epoch was named on a line without a count ..."""
        self._has_ended = False
        """... with a figure, when the bar stood at its end: it had been that epoch's."""
        self._is_below = False
        """The bar is of an epoch: another one counts the epochs."""
        self._outer: int | None = None
        """The total of that other bar ..."""
        self._n_done = 0
        """... and how far it is."""
        self._other: _OtherBar | None = None
        self._length = _EpochLength(steps_per_epoch)
        self._begins_at_first = False
        """The first count was in the first epoch."""
        self._cut: tuple[int, int] | None = None
        """The epoch that is shorter than those before it, and what its bar says of its length."""
        self._is_sure = False
        """What is counted is of the training."""

    def names(self, epoch: int, total_epochs: int | None, *, is_alone: bool = False, has_figure: bool = False) -> None:
        """An epoch was named, alone or beside a count; with a figure, as at its end."""
        self._is_alone = is_alone
        self._has_ended = is_alone and has_figure and self._total is not None and self._last == self._total
        is_first = self._epoch is None and self._counted_epoch is None
        if is_alone and is_first and self._total is not None and 0 < self._last < self._total and not self._is_below:
            self._is_whole = True  # an epoch was named in its midst; a bar that begins anew shows that this was wrong
        if not 0 <= epoch <= MAX_COUNT:
            return
        if self.first_epoch is None:
            self.first_epoch = 0 if epoch == 0 else 1
        self._epoch = epoch
        if total_epochs is not None and 0 < total_epochs <= MAX_COUNT:
            self._total_epochs = total_epochs

    def epochs_bar(self, count: int, total: int) -> None:
        """A bar that counts epochs, as it says."""
        if 0 <= count <= total and 1 <= total <= MAX_COUNT:
            self._outer, self._total_epochs, self._is_below, self._n_done = total, total, True, count

    def count(self, count: int, total: int | None, *, is_sure: bool = True) -> Counted | None:
        """A count, with its end if that was printed; None: it is of something else. `is_sure`: it is of the training,
        as what stands beside it says; one that begins anew is, too."""
        if not 0 <= count <= MAX_COUNT:
            return None
        replaces = is_sure and self._was_of_other_things(count, total)
        if replaces:
            self.forget()
        begins_anew = total is not None and total == self._total and count < self._last
        self._is_sure = self._is_sure or is_sure or begins_anew or (total is not None and total == self._known)
        counted = self._open(count) if total is None else self._bar(count, total)
        if counted is None:
            return None
        corrects = counted.corrects or replaces
        return replace(counted, is_bare=not self._is_sure, replaces=replaces, corrects=corrects)

    def _was_of_other_things(self, count: int, total: int | None) -> bool:
        """Whether a bar that nothing showed to be of the training is not what this count, which is, goes on with. An
        outer bar of epochs stands at 0 when the first inner one comes."""
        if self._is_sure or self._total is None or self._last == 0:
            return False
        return total != self._total and not (total is None and self._last < count <= self._total)

    def forget(self) -> None:
        """What was counted was not of the training."""
        self._total = self._first = self._is_whole = self._said = self._each = self._counted_epoch = None
        self._last = self._before = 0
        self._said_each = self._is_below = False
        self._outer, self._n_done, self._other = None, 0, None

    def beside(self) -> EpochCounts:
        """Of another count through the same epochs."""
        found = EpochCounts(self.first_epoch, self._known)
        found._epoch, found._total_epochs = self._epoch, self._total_epochs
        return found

    def confirm(self) -> None:
        """A loss or an epoch was printed without a count: in the midst of a bar that is the training's."""
        self._is_sure = self._is_sure or (self._total is not None and 0 < self._last < self._total)

    @property
    def is_unsure(self) -> bool:
        """Whether a bar is followed that nothing has shown to be of the training."""
        return not self._is_sure and self._total is not None

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch was named, so that bars are of the training."""
        return self._epoch is not None or self._is_below

    @property
    def epoch(self) -> int | None:
        """The newest that was named."""
        return self._epoch

    @property
    def is_under_way(self) -> bool:
        """Whether the bar has not ended."""
        return self._total is not None and self._last < self._total

    def is_beside(self, total: int) -> bool:
        """Whether a bar of so many comes after one that has ended, and that nothing has shown to be of the training."""
        return self.is_unsure and self._last == self._total != total

    def _is_new_epoch(self) -> bool:
        return self._epoch is not None and self._counted_epoch is not None and self._epoch > self._counted_epoch

    def _epochs_before(self) -> int:
        return 0 if self._epoch is None else max(0, self._epoch - (self.first_epoch or 0))

    def _open(self, count: int) -> Counted | None:
        """`step 30`: no end was printed."""
        if self._total is not None:  # others have: `Best loss 0.3 at step 60` is of no other step
            is_next = self._before == 0 and self._last < count <= self._total
            return self._bar(count, self._total) if is_next else None
        if self._counted_epoch is None and self._known is not None and count < self._epochs_before() * self._known / 2:
            self._before = round(self._epochs_before() * self._known)  # a count of all steps would be further
            self._is_whole = False
        each = None
        if self._first is None:
            self._first, self._begins_at_first = count, self._epoch is not None and self._epochs_before() == 0
        begins = count <= self._first or self._is_new_epoch()
        is_less = count < self._last or (count == self._last and self._is_new_epoch())
        if begins and is_less and self._is_whole is not True:
            each, self._is_whole = self._last, False
            self._before += self._last
        elif self._is_new_epoch() and self._is_whole is not False:
            self._is_whole = True
            if count > self._last and self._epochs_before() > 0:
                self._length.ended(self._epochs_before(), self._last, count, self._first)
        self._last, self._counted_epoch = count, self._epoch
        return self._in_whole(count) if self._is_whole else Counted(self._before + count, steps_per_epoch=each)

    def _in_whole(self, count: int) -> Counted:
        """A count of the whole training, whose epochs are as long as they turn out to be."""
        each = self._length.steps
        if each is None or not (self._begins_at_first or self._length.is_known):
            return Counted(self._before + count)  # how long the epochs before these processes were is not known
        whole = None if self._total_epochs is None else each * self._total_epochs
        whole = None if whole is None or not count <= whole <= MAX_COUNT else whole
        corrects = self._said not in (None, whole) or self._each not in (None, each)
        self._said, self._each = whole, each
        return Counted(self._before + count, whole, each, corrects)

    def _bar(self, count: int, total: int) -> Counted | None:
        """`30/100`."""
        if not 1 <= total <= MAX_COUNT:
            return None
        if count > total:
            return self._beyond(count, total)
        if self._total is not None and self._is_cut(total):
            total = self._total
        if self._total is not None and total != self._total and not self._is_of_epochs(count, total):
            return None  # another bar: of an evaluation, a download
        if total == self._total and self._goes_back_a_little(count):
            return None
        is_first, self._total = self._total != total, total
        if self._is_new_epoch() and self._is_whole is None and self._last <= count and self._last < total:
            if self._last == count and self._is_alone:
                return self._counted(count, total)  # drawn once more: which of both it is shows later
            if self._last < count:
                self._is_whole, self._before = True, 0  # it went on where it was
        went_on = False
        if not self._is_whole or count < self._last:
            if count < self._last:
                self._is_whole = False
                self._before += total
                ended = (self._epochs_before() + 1) * total if self._has_ended and not self._is_below else 0
                went_on, self._before = ended > self._before, max(ended, self._before)
                self._has_ended = False
            if self._is_below and (is_first or count < self._last):
                self._before = max(self._before, self._n_done * total)
            if self._epoch is not None and (count >= self._last or self._is_new_epoch()):
                self._before = max(self._before, self._epochs_before() * total)
        self._last, self._counted_epoch = count, self._epoch
        if self._may_be_of_all_epochs(count, total, is_first=is_first):
            return Counted(count)  # those that follow show it
        return replace(self._counted(count, total), went_on=went_on)

    def _may_be_of_all_epochs(self, count: int, total: int, *, is_first: bool) -> bool:
        """`epoch 1/200 step 10/2000`: in the first epoch, no further than one of the whole training would be.

        It would be known too late where that may be long: there only a first count that would end the epoch is doubted.
        """
        n_epochs = self._total_epochs
        if self._is_whole is not None or n_epochs is None or n_epochs < 2 or self._is_below or self._known is not None:
            return False
        if self._epochs_before() or self._before or total % n_epochs:
            return False
        return count <= total // n_epochs and (n_epochs >= _MANY_EPOCHS or (is_first and count == total // n_epochs))

    def _is_cut(self, total: int) -> bool:
        """Whether it is the last epoch, in which the training ends: a bar of Lightning shows what is left of it."""
        if self._total is None or self._total_epochs is not None or self._epoch is None or total >= self._total:
            return False
        if self._is_new_epoch():
            self._cut = (self._epoch, total)
        return self._cut == (self._epoch, total)

    def _goes_back_a_little(self, count: int) -> bool:
        """Within an epoch that was named: Keras draws an older bar after a newer one now and then."""
        is_same_epoch = self._epoch is not None and self._epoch == self._counted_epoch
        return is_same_epoch and self._last / 2 < count < self._last

    def _beyond(self, count: int, total: int) -> Counted | None:
        """`Iteration[130/100]`: a count of the whole training beside the length of an epoch."""
        if total != self._total or self._is_below:
            return None
        self._is_whole, self._before, self._last, self._counted_epoch = True, 0, count, self._epoch
        whole = None if self._total_epochs is None else min(total * self._total_epochs, MAX_COUNT)
        corrects, self._said = self._said not in (None, whole), whole
        return Counted(count, whole, total, corrects)

    def settled(self, each: int) -> Counted | None:
        """Where an epoch begins, if it is known how many steps each has and nothing counts them."""
        if self._total is not None or self._last or self._epoch is None or not 0 < each <= MAX_COUNT:
            return None
        return Counted(self._epochs_before() * each, None, each)

    def _is_of_epochs(self, count: int, total: int) -> bool:
        """Whether the bar so far counts epochs, and the one that has come now their steps.

        An evaluation has a bar of its own, too: but it stands at its end, or in the midst of many steps.
        """
        if total == self._outer:
            self.epochs_bar(count, total)
            return False
        other, self._other = self._other, _OtherBar(total, count, self._last)
        is_known = other is not None and other.total == total
        begins_anew = is_known and other is not None and count < other.last
        if other is not None and is_known and not begins_anew:
            self._other = _OtherBar(total, count, other.main)
        stands_at_zero = self._last == 0 and count >= 2
        moves_by_one = begins_anew and other is not None and self._last == other.main + 1
        if self._is_below or not (stands_at_zero or moves_by_one) or self._total is None:
            return False
        self.epochs_bar(self._last, self._total)
        self._is_whole, self._before, self._last = False, 0, count
        return True

    def _counted(self, count: int, total: int) -> Counted:
        is_named = self._epoch is not None or self._is_below
        is_of_epoch = not self._is_whole and (is_named or self._before > 0 or total == self._known)
        each = total if is_of_epoch else None
        whole: int | None = total
        if is_of_epoch:
            whole = None if self._total_epochs is None else total * self._total_epochs
        whole = None if whole is None or whole > MAX_COUNT else whole
        corrects = self._said not in (None, whole) or (each is None and self._said_each)
        self._said, self._said_each = whole, each is not None
        into = None if each is None else count
        is_unsure = self._is_whole is None and self._total_epochs is None and total != self._known
        return Counted(
            self._before + count,
            whole,
            each,
            corrects,
            into,
            may_be_whole=is_unsure and is_of_epoch and not self._before,
        )
