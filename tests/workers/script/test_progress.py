"""Readings become steps of the job."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.readings.progress import PATIENCE_SECONDS, Advance, Learned, Progress
from optimus_contract.readings.reading import Announced, Channel, Reading
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.ending import step_at_end, trained_untold

START = 1_000.0


def read(
    progress: Progress, channel: Channel = Channel.PRINTED, at: float = START + 1.0, **said: Any
) -> Advance | None:
    found = progress.add(Reading(channel=channel, at=at, **said))
    return found[-1] if found else None


def test_steps_losses_and_times_add_up() -> None:
    progress = Progress(START, 0)
    first = read(progress, step=1, loss=2.0, at=START + 3.0)
    second = read(progress, step=5, loss=1.5, at=START + 5.0)
    assert first is not None
    assert second is not None
    assert (first.n_steps, first.seconds, first.loss, first.is_first) == (1, 3.0, 2.0, True)
    assert (second.n_steps, second.seconds, second.loss, second.is_first) == (4, 2.0, 1.5, False)
    assert read(progress, step=5, loss=1.5) is None, "said twice"


@pytest.mark.parametrize("version", [55, 80, 150])
def test_processes_that_report_the_first_step_of_a_fresh_start_begin_anew(version: int) -> None:
    """They print each 50th step: the first line does not say that they began with the one before."""
    before = Progress(START, 0)
    read(before, step=50, loss=2.0)
    again = Progress(START, version, before.learned)
    first = read(again, step=50, loss=2.0)
    assert first is not None
    assert first.n_steps == 50
    assert again.learned.resumes is False
    resumed = Progress(START, 150, before.learned)
    went_on = read(resumed, step=151, loss=1.0)
    assert went_on is not None
    assert (went_on.n_steps, resumed.learned.resumes) == (1, True)


@pytest.mark.parametrize(
    ("told", "began"),
    [
        ([21, 22, 23], 20),
        ([30, 40, 50], 20),
        ([1010, 1020], 1000),
        ([1, 100, 200], 0),
        ([10, 20, 30], 0),
        ([9, 19], 0),
        ([44, 80, 120], 0),
        ([21], None),
    ],
    ids=[
        "each step",
        "each tenth",
        "far on",
        "from the first",
        "each tenth from 0",
        "the last of ten",
        "by time",
        "one",
    ],
)
def test_where_the_first_processes_began_is_told_by_their_first_two_steps(told: list[int], began: int | None) -> None:
    """A script that starts with step 0 tells its first one after about as many as lie between two."""
    progress = Progress(START, 0)
    for step in told:
        read(progress, step=step, loss=1.0)
    assert progress.learned.began_at == began


def test_a_bar_without_a_loss_is_where_the_first_processes_began() -> None:
    progress = Progress(START, 0)
    read(progress, step=20, total_steps=100)
    read(progress, step=21, total_steps=100, loss=1.0)
    assert progress.learned.began_at == 20


@pytest.mark.parametrize("version", [21, 40, 47, 150])
def test_processes_that_begin_from_a_checkpoint_from_before_the_job_begin_there_again(version: int) -> None:
    """As long as they have not written another one: that they keep some is not refuted by it."""
    before = Progress(START, 0)
    for step in range(21, version + 1):
        read(before, step=step, loss=1.0)
    again = Progress(START, version, before.learned)
    first = read(again, step=21, loss=1.0)
    assert first is not None
    if version == 21:  # one told step of both: known with the next one
        assert (first.n_steps, again.learned.began_at) == (21, None)
        read(again, step=22, loss=1.0)
    else:
        assert first.n_steps == 1
    assert (again.learned.began_at, again.learned.resumes) == (20, None)
    last = Progress(START, 60, again.learned)
    went_on = read(last, step=41, loss=1.0)
    assert went_on is not None
    assert (went_on.n_steps, last.learned.resumes) == (1, True)


def told_every_fifth(channel: Channel = Channel.PRINTED) -> Progress:
    """Processes that tell each fifth step, of 0.5 s."""
    progress = Progress(START, 0)
    for step in range(5, 50, 5):
        read(progress, channel, step=step, loss=2.0, at=START + 0.5 * step)
    return progress


@pytest.mark.parametrize(
    ("channel", "first", "began"),
    [
        (Channel.PRINTED, 45, 40),
        (Channel.PRINTED, 50, 45),
        (Channel.PRINTED, 65, 45),
        (Channel.CLIENT, 45, 44),
    ],
    ids=["a checkpoint before the last told step", "of it", "further on", "all steps are told"],
)
def test_a_script_that_tells_some_steps_began_before_the_first_that_it_tells(
    channel: Channel, first: int, began: int
) -> None:
    again = Progress(START, 45, told_every_fifth(channel).learned)
    found = read(again, channel, step=first, loss=1.0)
    assert found is not None
    assert found.step - found.n_steps == began


def test_a_script_that_tells_some_steps_made_others_until_it_was_asked_to_stop() -> None:
    before = told_every_fifth()
    assert (before.learned.told_every, before.seconds_per_step) == (5, 0.5)
    assert [trained_untold(before, seconds) for seconds in (-0.1, 1.25, 60.0)] == [0.0, 1.25, 2.0]
    each = Progress(START, 0)
    for step in range(1, 10):
        read(each, step=step, loss=2.0, at=START + 0.5 * step)
    assert (each.learned.told_every, trained_untold(each, 1.25)) == (None, 0.0)
    assert Progress(START, 0).seconds_per_step is None


@pytest.mark.parametrize(("total", "since", "made"), [(48, 1.5, 48), (48, 0.2, 45), (60, 1.5, 45), (45, 9.0, 45)])
def test_a_script_that_ends_between_two_told_steps_has_made_all_that_it_announced(
    total: int, since: float, made: int
) -> None:
    """Where there was time for them, and none of the steps that it would have told is missing."""
    progress = Progress(START, 0)
    for step in range(5, 50, 5):
        read(progress, step=step, total_steps=total, loss=2.0, at=START + 0.5 * step)
    assert (progress.learned.told_every, progress.learned.total_steps) == (5, total)
    assert step_at_end(progress, since) == made
    assert step_at_end(Progress(START, 0), since) is None


@pytest.mark.parametrize("hours", [-1, 1])
def test_steps_take_time_again_once_the_clock_was_set(hours: int) -> None:
    progress, moved = Progress(START, 0), START + 10_000.0 + 3600.0 * hours
    read(progress, step=1, loss=2.0, at=START + 10_000.0)
    read(progress, step=2, loss=2.0, at=moved)
    found = [read(progress, step=step, loss=2.0, at=moved + 0.5 * step) for step in (3, 4, 5)]
    assert [each.seconds for each in found if each is not None] == [1.5, 0.5, 0.5]


def test_a_reading_that_comes_late_is_no_time_twice() -> None:
    progress = Progress(START, 0)
    read(progress, step=1, loss=2.0, at=START + 100.0)
    read(progress, step=2, loss=2.0, at=START + 1.0)
    found = read(progress, step=3, loss=2.0, at=START + 101.0)
    assert found is not None
    assert found.seconds == 1.0


def test_a_better_channel_is_believed_and_a_worse_one_only_where_it_counts_the_same() -> None:
    progress = Progress(START, 0)
    assert read(progress, Channel.KUBEFLOW, step=10, total_steps=100, loss=1.0) is not None
    assert read(progress, Channel.PRINTED, step=40) is None, "which steps these are is not known"
    found = read(progress, Channel.PRINTED, step=11, total_steps=100)
    assert found is not None
    assert found.step == 11
    assert progress.learned.channel is Channel.KUBEFLOW


def test_a_total_that_was_an_epochs_is_forgotten() -> None:
    """A bar without a name begins anew: what it said was the length of an epoch."""
    progress = Progress(START, 0)
    read(progress, step=50, total_steps=50, loss=1.0)
    assert (progress.learned.total_steps, progress.learned.steps_per_epoch) == (50, None)
    found = read(progress, step=60, steps_per_epoch=50, corrects=True, loss=0.9, at=START + 2.0)
    assert found is not None
    assert (found.step, found.n_steps) == (60, 10)
    assert (progress.learned.total_steps, progress.learned.total_workers) == (None, None)
    assert progress.learned.steps_per_epoch == 50


def test_a_number_of_epochs_is_a_number_of_steps_once_one_was_seen() -> None:
    """`python train.py --epochs 30` that prints a step of the whole training beside its epoch."""
    progress, printed = Progress(START, 0, announced=Announced(total_epochs=30)), Printed()
    for step in range(10, 90, 10):
        line = f"epoch {(step - 1) // 40 + 1} step {step} loss 0.5\n"
        for reading in printed.feed(line.encode(), START + step):
            progress.add(reading)
    assert (progress.step, progress.learned.total_steps, progress.learned.steps_per_epoch) == (80, 1200, 40)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_step_beside_an_epoch_tells_no_end_before_it_is_known_whose_end_it_is(is_whole: bool) -> None:
    """`epoch 0 step 40/100`: of 100 steps in all, or of 100 in each of the five epochs."""
    progress, printed = Progress(START, 0, announced=Announced(total_epochs=5)), Printed()
    totals = []
    for step in range(10, 210, 10):
        epoch, shown = (step // 20, step) if is_whole else ((step - 1) // 100, (step - 1) % 100 + 1)
        if shown <= 100:
            for reading in printed.feed(f"epoch {epoch} step {shown}/100 loss 0.5\n".encode(), START + step):
                progress.add(reading)
            totals.append(progress.learned.total_steps)
    assert set(totals) == {None, 100 if is_whole else 500}
    assert totals[0] is None
    assert totals[-1] is not None


def trainer_lines(n_epochs: int) -> list[str]:
    """What the Trainer of transformers prints without its bar: four times an epoch, and a summary."""
    lines = [
        f"{{'loss': {9 / each:.4f}, 'grad_norm': 1.2, 'epoch': {each / 4}}}" for each in range(1, 4 * n_epochs + 1)
    ]
    return [*lines, f"{{'train_runtime': 12.3, 'train_loss': 0.5, 'epoch': {n_epochs}}}"]


def test_losses_beside_parts_of_epochs_count_as_steps_whose_end_the_epochs_tell() -> None:
    progress, printed = Progress(START, 0, announced=Announced(total_epochs=15)), Printed()
    totals = []
    for number, line in enumerate(trainer_lines(15)):
        for reading in printed.feed(f"{line}\n".encode(), START + number):
            progress.add(reading)
        totals.append(progress.learned.total_steps)
    assert progress.step == 60, "the summary is of no other step"
    assert {total for total in totals if total is not None} == {60}
    assert progress.learned.tells_no_step


def test_processes_after_those_that_told_losses_alone_are_not_waited_for() -> None:
    progress = Progress(START, 20, Learned(resumes=True, tells_no_step=True))
    found = read(progress, loss=1.0, at=START + 1.0)
    assert found is not None
    assert (found.step, found.n_steps) == (21, 1)


def test_steps_of_shorter_epochs_count_as_those_of_the_first_size() -> None:
    """With twice as many processes an epoch has half as many steps; how many epochs there are was never said."""
    first = Progress(START, 0)
    read(first, step=300, steps_per_epoch=100, epoch=3, loss=1.0)
    second = Progress(START, 300, first.learned, n_workers=2)
    found = read(second, step=160, steps_per_epoch=50, epoch=4, loss=0.9)
    assert found is not None
    assert (found.step, found.n_steps) == (320, 20)
    assert second.learned.resumes is True


def test_epochs_that_count_from_zero_are_known_to_the_next_processes() -> None:
    later = START + PATIENCE_SECONDS + 1.0
    first = Progress(START, 0)
    for epoch in range(12):
        read(first, loss=1.0, epoch=epoch, at=later + epoch)
    assert (first.step, first.learned.first_epoch) == (12, 0)
    second = Progress(START, 12, first.learned)
    found = read(second, loss=0.5, epoch=12, at=later)
    assert found is not None
    assert (found.step, found.n_steps) == (13, 1)


def test_processes_that_go_on_are_told_from_those_that_begin_anew() -> None:
    goes_on = Progress(START, 100)
    found = read(goes_on, step=91, loss=1.0)
    assert found is not None
    assert found.step - found.n_steps == 90
    assert goes_on.learned.resumes is True
    anew = Progress(START, 100)
    found = read(anew, step=1, loss=3.0)
    assert found is not None
    assert found.step - found.n_steps == 0
    assert anew.learned.resumes is False


def test_a_script_that_failed_before_its_first_checkpoint_is_seen_to_go_on_later() -> None:
    """It writes one each 100 steps, and is killed at steps 47, 347 and 480."""
    learned = Learned()
    seen = []
    for version, first, last in [(0, 1, 47), (47, 1, 347), (347, 301, 480), (480, 401, 450), (450, 1, 20)]:
        progress = Progress(START, version, learned)
        for step in range(first, last + 1):
            read(progress, step=step, loss=1.0)
        learned = progress.learned
        seen.append(learned.resumes)
    assert seen == [None, False, True, True, True]


def test_a_step_without_a_loss_at_the_start_is_a_position() -> None:
    progress = Progress(START, 100)
    found = read(progress, Channel.CLIENT, step=100, resumes=True)
    assert found is not None
    assert (found.step, found.n_steps) == (100, 0)
    assert read(progress, Channel.CLIENT, step=0) is None
    assert progress.learned.resumes is True


def test_with_more_processes_fewer_steps_are_the_same_way() -> None:
    """A script with a fixed batch per process ends after 1000 steps of one, 250 of four."""
    alone = Progress(START, 0)
    read(alone, step=200, total_steps=1000, loss=1.0)
    assert alone.learned.total_steps == 1000
    four = Progress(START, 200, alone.learned, n_workers=4)
    found = read(four, step=60, total_steps=250, loss=0.9)
    assert found is not None
    assert found.step == 240
    assert four.learned.total_steps == 1000
    last = read(four, step=250, total_steps=250, loss=0.5)
    assert last is not None
    assert last.step == 1000


@pytest.mark.parametrize("resumes", [None, False, True], ids=["not seen to resume", "began anew once", "resumes"])
@pytest.mark.parametrize(("n_workers", "total", "step"), [(4, 512, 745), (4, 512, 740), (1, 8192, 745)])
def test_processes_that_resume_at_the_same_step_of_another_total_are_misplaced(
    n_workers: int, total: int, step: int, resumes: bool | None
) -> None:
    """740 of 2,048 steps with two workers are 185 of 512 with four: one that goes on from 740 is wrong."""
    known = Learned(Channel.PRINTED, total_steps=2048, total_workers=2, resumes=resumes)
    progress = Progress(START, 740, known, n_workers=n_workers)
    assert read(progress, step=step, total_steps=total, loss=1.0) is None
    assert progress.is_misplaced
    assert progress.learned.fixed_workers == 2
    assert progress.learned.total_steps == 2048
    assert read(progress, step=step + 5, total_steps=total, loss=1.0) is None, "nothing of them counts"
    assert progress.step is None
    again = Progress(START, 740, progress.learned, n_workers=2)
    found = read(again, step=745, total_steps=2048, loss=1.0)
    assert found is not None
    assert (found.step, found.n_steps) == (745, 5)
    assert not again.is_misplaced


def test_a_stock_trainer_of_transformers_says_so_before_its_first_step() -> None:
    known = Learned(Channel.KUBEFLOW, total_steps=2048, resumes=True, total_workers=2)
    progress = Progress(START, 740, known, n_workers=4)
    assert read(progress, Channel.KUBEFLOW, total_steps=512) is None
    assert progress.is_misplaced
    same_total = Progress(START, 740, known, n_workers=4)
    assert read(same_total, Channel.KUBEFLOW, total_steps=2048) is None
    assert not same_total.is_misplaced, "it has max_steps"
    of_first_size = Progress(START, 740, known, n_workers=2)
    assert read(of_first_size, Channel.KUBEFLOW, total_steps=2050) is None
    assert not of_first_size.is_misplaced


@pytest.mark.parametrize("step", [185, 186, 170, 1])
def test_processes_that_resume_at_the_same_part_of_their_data_are_not_misplaced(step: int) -> None:
    known = Learned(Channel.PRINTED, total_steps=2048, total_workers=2)
    progress = Progress(START, 740, known, n_workers=4)
    found = read(progress, step=step, total_steps=512, loss=1.0)
    assert found is not None
    assert found.step == 4 * step
    assert not progress.is_misplaced


def test_with_weak_scaling_steps_stay_those_of_the_script() -> None:
    """The coordinator knows what they count as; only an epoch is counted here, where all steps count the same."""
    two = Progress(START, 0, weight=2)
    assert read(two, step=50, total_steps=500, total_epochs=5, loss=1.0) is not None
    assert (two.learned.total_steps, two.learned.steps_per_epoch) == (500, 200.0)
    assert not two.has_old_total
    four = Progress(START, 50, two.learned, weight=4)
    assert four.has_old_total
    found = read(four, step=51, total_steps=275, total_epochs=5, loss=0.9)
    assert found is not None
    assert (found.step, found.n_steps) == (51, 1)
    assert (four.learned.total_steps, four.learned.steps_per_epoch) == (275, 200.0)
    assert not four.has_old_total


def test_losses_without_steps_count_as_steps_after_a_while() -> None:
    progress = Progress(START, 0)
    assert read(progress, loss=1.0, at=START + 1.0) is None
    later = START + PATIENCE_SECONDS + 1.0
    steps = [read(progress, loss=0.9 - 0.1 * index, at=later + index) for index in range(3)]
    assert [each.step for each in steps if each is not None] == [2, 3, 4], "the first one counts, too"
    epochs = Progress(START, 0)
    found = [read(epochs, loss=1.0, epoch=float(epoch), at=later + epoch) for epoch in (0, 1, 2)]
    assert [each.step for each in found if each is not None] == [1, 2, 3]


def epoch_of(number: int) -> Reading:
    """`Epoch 1/10 loss: 5.0`, printed once a second."""
    at = START + number
    (reading,) = Printed().feed(f"Epoch {number}/10 loss: {5 / number:.4f} val_acc: 0.{number}\n".encode(), at)
    return reading


@pytest.mark.parametrize("how", ["the next line", "silence", "the end"])
def test_what_was_held_is_told_with_its_own_times(how: str) -> None:
    """The first losses are the steepest: none of them is left out, nor told as of a later step."""
    progress, last = Progress(START, 0), int(PATIENCE_SECONDS) if how == "the next line" else 3
    assert not any(progress.add(epoch_of(number)) for number in range(1, last))
    if how == "the next line":
        found = progress.add(epoch_of(last))
    else:
        assert progress.add(epoch_of(last)) == []
        assert progress.settle_if_silent(START + last + PATIENCE_SECONDS - 0.1) == [], "it may go on to tell steps"
        found = progress.settle_if_silent(START + last + PATIENCE_SECONDS) if how == "silence" else progress.settle()
    assert [(each.step, each.at, each.n_steps, each.seconds) for each in found] == [
        (number, START + number, 1, 1.0) for number in range(1, last + 1)
    ]
    assert [each.loss for each in found] == [epoch_of(number).loss for number in range(1, last + 1)]
    assert [each.metrics for each in found] == [epoch_of(number).metrics for number in range(1, last + 1)]
    assert progress.learned.total_steps == 10
    assert progress.settle() == [], "told once"


def test_steps_that_come_after_a_silence_count_instead_of_epochs() -> None:
    progress = Progress(START, 0)
    progress.add(epoch_of(1))
    assert [each.step for each in progress.settle_if_silent(START + 60.0)] == [1]
    assert progress.learned.tells_no_step
    found = read(progress, step=100, loss=1.0, at=START + 90.0)
    assert found is not None
    learned = progress.learned
    assert (found.step, learned.total_steps, learned.tells_no_step) == (100, None, None), "ten were the epochs"


def test_other_processes_do_not_speak_for_the_first() -> None:
    progress = Progress(START, 0)
    assert read(progress, Channel.CLIENT, step=7, rank=3) is None
    assert read(progress, Channel.CLIENT, step=7, rank=0) is not None


def test_a_stop_says_where_and_that_the_script_resumes() -> None:
    progress = Progress(START, 0)
    read(progress, Channel.CLIENT, step=6, loss=1.0)
    read(progress, Channel.CLIENT, step=7, stopped=True)
    assert progress.stopped_at == 7
    assert progress.learned.resumes is True


def test_figures_of_an_evaluation_come_with_the_next_step() -> None:
    progress = Progress(START, 0)
    read(progress, step=1, loss=1.0)
    assert read(progress, metrics={"eval_loss": 0.5, "": 1.0, "x" * 200: 1.0}) is None
    found = read(progress, step=2, loss=1.0)
    assert found is not None
    assert found.metrics == {"eval_loss": 0.5}


NUMBERS = st.one_of(st.none(), st.floats())
READINGS = st.builds(
    Reading,
    channel=st.sampled_from(Channel),
    at=st.floats(START, START + 1e6),
    step=st.one_of(st.none(), st.integers(-5, 2**60)),
    total_steps=st.one_of(st.none(), st.integers(-5, 2**60)),
    epoch=NUMBERS,
    total_epochs=NUMBERS,
    loss=NUMBERS,
    examples=st.one_of(st.none(), st.integers(0, 10**6)),
    metrics=st.dictionaries(st.text(max_size=5), st.floats(), max_size=3),
    stopped=st.booleans(),
    resumes=st.booleans(),
    rank=st.one_of(st.none(), st.integers(0, 3)),
)


@given(st.lists(READINGS, max_size=40), st.integers(0, 10**6))
def test_whatever_is_read_steps_only_grow(readings: list[Reading], version: int) -> None:
    progress, last = Progress(START, version, Learned()), -1
    for reading in readings:
        for found in progress.add(reading):
            assert found.step > last
            assert found.n_steps >= 0
            assert found.seconds >= 0
            last = found.step
    each = progress.learned.steps_per_epoch
    assert each is None or (math.isfinite(each) and each > 0)


def test_a_batch_that_three_do_not_divide_is_no_count_by_processes() -> None:
    """Epochs of 32 steps have 34 with three processes, whose parts of the batch are smaller: 10 examples of 32."""
    first = Progress(START, 0)
    read(first, step=399, total_steps=1920, steps_per_epoch=32, loss=1.0)
    second = Progress(START, 399, first.learned, n_workers=3)
    found = read(second, step=409, total_steps=2040, steps_per_epoch=34, loss=0.9)
    assert found is not None
    assert (found.step, second.learned.fixed_workers, second.is_misplaced) == (385, None, False)
