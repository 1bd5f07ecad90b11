"""A training that ends after a number of steps, and counts them within epochs that are shorter with more processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_contract.readings.progress import Learned, Progress
from optimus_contract.readings.reading import Announced
from optimus_workers.script.channels.printed import Printed

MAX_STEPS = 100_000
BATCHES = 120
"""Of one process in an epoch."""


@dataclass(frozen=True)
class Place:
    """Where a training of Lightning is; what a checkpoint of it keeps."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


class Lightning:
    """Its bar, seen through the changes of its size."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self.meant = Announced(total_steps=max_steps)
        self.places = [Place()]
        self.learned, self.version, self.seen = Learned(), 0, 0
        self.clock = 0.0

    def train(self, n_workers: int, n_steps: int, lost: int = 0) -> None:
        """Start from the place `lost` steps back, and make steps."""
        each = BATCHES // n_workers
        place = self.places[max(0, len(self.places) - 1 - lost)]
        self.places = [Place()] if place.step == 0 else [place]
        if place.batch >= each:
            place = replace(place, batch=0)
        progress = Progress(0.0, self.version, self.learned, n_workers=n_workers, announced=self.meant)
        printed = Printed(first_epoch=self.learned.first_epoch, steps_per_epoch=self.learned.steps_per_epoch)
        self._draw(progress, printed, place, each)
        for _ in range(n_steps):
            step, batch = place.step + 1, place.batch + 1
            self._draw(progress, printed, Place(step, place.epoch, batch), each)
            place = Place(step, place.epoch + 1, 0) if batch == each else Place(step, place.epoch, batch)
            self.places.append(place)
        self.learned = progress.learned
        self.seen = progress.step or 0
        self.version = max(self.version, self.seen)

    def _draw(self, progress: Progress, printed: Printed, place: Place, each: int) -> None:
        total = min(each, (self.meant.total_steps or MAX_STEPS) - place.step + place.batch)
        line = f"Epoch {place.epoch}/-2 ━━━━╺━━━ {place.batch}/{total} 0:00:03 • 0:00:09 12.73it/s train_loss: 1.5\n"
        self.clock += 1.0
        for reading in printed.feed(line.encode(), self.clock):
            progress.add(reading)


def test_a_shorter_epoch_goes_on_where_the_longer_one_was() -> None:
    training = Lightning()
    training.train(1, 130)
    training.train(3, 20)  # of the second epoch, of which 10 of 120 steps were made: now it has 40
    assert training.seen == 150
    training.train(2, 100)
    assert training.seen == 250
    assert training.learned.total_steps == MAX_STEPS


def test_an_epoch_that_is_too_short_now_begins_anew() -> None:
    training = Lightning()
    training.train(1, 50)
    training.train(3, 30)
    assert training.seen == 80
    training.train(3, 30, lost=7)
    assert training.seen == 103


def test_steps_that_were_assumed_do_not_go_beyond_the_end() -> None:
    training = Lightning(max_steps=100)
    training.train(1, 60)
    training.train(3, 45, lost=5)  # it goes on at 55, which the bar does not tell
    assert (training.seen, training.learned.total_steps) == (100, 100)


def test_the_last_epoch_is_cut() -> None:
    """Its bar shows the steps that are left."""
    training = Lightning(max_steps=150)
    training.train(1, 140)
    assert training.seen == 140
    training.train(2, 10)
    assert training.seen == 150


def test_lightning_says_at_its_end_how_many_steps_there_were() -> None:
    found = Printed().feed(b"0.742`Trainer.fit` stopped: `max_steps=160` reached.\n", 1.0)
    assert [each.step for each in found] == [160]


CHANGES = st.lists(st.tuples(st.integers(1, 6), st.integers(12, 300), st.integers(0, 10)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(CHANGES)
def test_steps_are_the_trainings_own_through_all_changes(changes: list[tuple[int, int, int]]) -> None:
    """Steps that were lost where an epoch begins anew are not told, so that none are lost there."""
    training = Lightning()
    for n_workers, n_steps, lost in changes:
        back = training.places[max(0, len(training.places) - 1 - lost)]
        newest = training.places[-1]
        is_plain = back.batch < BATCHES // n_workers and back.epoch == newest.epoch
        training.train(n_workers, n_steps, lost if is_plain else 0)
        assert training.seen == training.places[-1].step


def test_where_a_bar_begins_is_not_where_the_training_goes_on() -> None:
    """Lightning draws `0/20` first, and then `11/20`."""
    learned = Learned(total_steps=160, steps_per_epoch=20, newest_epoch=3, newest_epoch_began=60, newest_epoch_steps=20)
    progress = Progress(0.0, 74, learned, announced=Announced(total_steps=160))
    printed = Printed(first_epoch=0, steps_per_epoch=20)
    drawn = ["0/20 0:00:00 • -:--:-- 0.00it/s", "11/20 0:00:00 • 0:00:09 1.00it/s train_loss: 5.3"]
    found = [progress.add(each) for bar in drawn for each in printed.feed(f"Epoch 3/-2 ━━━ {bar}\n".encode(), 1.0)]
    assert found[0] == []
    assert [(each.step, each.n_steps) for each in found[1]] == [(71, 1)], "three steps were lost"
