"""What common libraries print, as they print it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.readings.progress import Progress
from optimus_contract.readings.reading import Announced, Reading
from optimus_workers.script.channels.printed import (
    BURST_BYTES,
    BURST_LINES,
    FLOOD_LINES,
    FLOOD_SECONDS,
    LINES_PER_SECOND,
    MAX_LINE_BYTES,
    Printed,
)
from optimus_workers.script.channels.searching import plain_search


def read(text: str, printed: Printed | None = None) -> list[dict[str, Any]]:
    return [said(reading) for reading in (printed or Printed()).feed(text.encode() + b"\n", 1.0)]


def said(reading: Reading) -> dict[str, Any]:
    names = (
        "step",
        "total_steps",
        "steps_per_epoch",
        "epoch",
        "total_epochs",
        "loss",
        "learning_rate",
        "gradient_norm",
    )
    found = {name: value for name in names if (value := getattr(reading, name)) is not None}
    return found | ({"metrics": dict(reading.metrics)} if reading.metrics else {})


@pytest.mark.parametrize("rank", ["", "[rank0]: "])
def test_steps_that_an_error_names_were_not_made(rank: str) -> None:
    """Neither in its traceback nor in what it says; what the script prints after it has caught one is read."""
    error = """Traceback (most recent call last):
  File "train.py", line 6, in step 70
ValueError: the checkpoint of step 90 of 150 is broken
\tsize mismatch at step 80/150

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
example.errors.Diverged: loss=9.5 at step 6"""
    printed = Printed()
    assert read("step 5/150 loss 0.5472", printed) == [{"step": 5, "total_steps": 150, "loss": 0.5472}]
    for line in error.splitlines():
        assert read(f"{rank}{line}", printed) == [], line
    assert (printed.unread, printed.n_unread) == (None, 0)
    assert [each["step"] for each in read("step 6/150 loss 0.5\nRuntimeError: no step 7/150", printed)] == [6]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "{'loss': '3.545', 'grad_norm': '1.186', 'learning_rate': '2.5e-06', 'epoch': '1.797'}",
            {"loss": 3.545, "gradient_norm": 1.186, "learning_rate": 2.5e-06, "epoch": 1.797},
        ),
        ("{'loss': 0.51, 'learning_rate': 1e-05, 'epoch': 0.4}", {"loss": 0.51, "learning_rate": 1e-05, "epoch": 0.4}),
        (" 92%|█████████▎| 111/120 [00:20<00:03,  2.85it/s]", {"step": 111, "total_steps": 120}),
        (
            "Epoch 0:  45%|####5     | 45/100 [00:10<00:12, 4.4it/s, v_num=0, train_loss=0.123]",
            {"step": 45, "steps_per_epoch": 100, "epoch": 0, "loss": 0.123},
        ),
        ("step 12/200 loss 0.4", {"step": 12, "total_steps": 200, "loss": 0.4}),
        ("Step 10/1000, loss=0.1", {"step": 10, "total_steps": 1000, "loss": 0.1}),
        ("iter 500: loss 2.1345, time 120.05ms, mfu 12.3%", {"step": 500, "loss": 2.1345}),
        ("epoch 2 step 30 lr 1e-3 loss nan", {"epoch": 2.0, "step": 30, "learning_rate": 1e-3}),
        ("loss: 0.123", {"loss": 0.123}),
        ("\x1b[32mINFO\x1b[0m train_loss=1.5 global_step=20", {"loss": 1.5, "step": 20}),
        ("step=20 loss=1.5 val_loss=1.7", {"step": 20, "loss": 1.5, "metrics": {"val_loss": 1.7}}),
        ("Epoch [1/5], Step [100/600], Loss: 0.2345",
         {"step": 100, "total_steps": 3000, "steps_per_epoch": 600, "epoch": 1, "total_epochs": 5.0, "loss": 0.2345}),
        ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.34 | loss  7.63",
         {"step": 200, "steps_per_epoch": 2983, "epoch": 1, "loss": 7.63, "learning_rate": 20.0}),
        ("Epoch: [0][ 10/5005]\tTime  0.2 ( 0.5)\tLoss 6.9e+00 (7.0e+00)\tAcc@1 0.0",
         {"step": 10, "steps_per_epoch": 5005, "epoch": 0, "loss": 6.9}),
        ("Epoch(train)   [1][ 50/3907]  lr: 1.0000e-02  eta: 1:00:00  loss: 0.5",
         {"step": 50, "steps_per_epoch": 3907, "epoch": 1, "loss": 0.5, "learning_rate": 0.01}),
        ("2026-11-24 | INFO | train_inner | epoch 001:    100 / 1000 loss=10.1",
         {"step": 100, "steps_per_epoch": 1000, "epoch": 1, "loss": 10.1}),
        (" iteration      100/  500000 | consumed samples:        25600 | lm loss: 9.1E+00 | loss scale: 1.0 |",
         {"step": 100, "total_steps": 500000, "loss": 9.1}),
        ("      1/100      2.05G     0.0512     0.0321        102        640: 100%|####| 50/50 [00:10<00:00,  4.9it/s]",
         {"step": 50, "total_steps": 5000, "steps_per_epoch": 50, "epoch": 1, "total_epochs": 100}),
        ("Training:  20%|##        | 10/50 [00:00<00:02, 3.5it/s]", {"step": 10, "total_steps": 50}),
        (" 20%|##        | 10/50 [00:10<00:40, 1.02s/it, loss=0.4]", {"step": 10, "total_steps": 50, "loss": 0.4}),
        ("[1,  2000] loss: 2.217", {"step": 2000, "epoch": 1, "loss": 2.217}),
        ("[10:00:00] Step 5,000/10,000 | Loss: 1.234", {"step": 5000, "total_steps": 10000, "loss": 1.234}),
        ("step 10 of 100 took 3 s, loss 2", {"step": 10, "total_steps": 100, "loss": 2.0}),
        ("Training loss at step 100: 3.3", {"step": 100, "loss": 3.3}),
        ("Batch 10 / 50", {"step": 10, "total_steps": 50}),
        ("loss: 0.5  batch: 100", {"step": 100, "loss": 0.5}),
        ("Epoch:  3 Batch: 40 Loss:0.5", {"step": 40, "epoch": 3, "loss": 0.5}),
        ("Test set: Average loss: 0.02, Accuracy: 97/100 (97%)", {"metrics": {"val_loss": 0.02, "accuracy": 97.0}}),
        ("Test: [ 10/98]\tTime  0.2\tLoss 6.9e+00 (7.0e+00)", {"metrics": {"val_loss": 6.9}}),
        ("step 250: train loss 1.9, val loss 2.0", {"step": 250, "loss": 1.9, "metrics": {"val_loss": 2.0}}),
        ("finished pass 5 of 30 | mean train loss = 0.4123", {"epoch": 5, "total_epochs": 30.0, "loss": 0.4123}),
        ("Round 5/30: loss 0.2", {"epoch": 5, "total_epochs": 30.0, "loss": 0.2}),
        ("forward pass 3: loss 0.2", {"loss": 0.2}),
        ("Epoch 3/10", {"epoch": 3, "total_epochs": 10.0}),
        ("Epoch 3/10 - loss: 0.5 - acc: 1", {"epoch": 3.0, "total_epochs": 10.0, "loss": 0.5, "metrics": {"acc": 1.0}}),
    ],
)  # fmt: skip
def test_lines_of_common_libraries(line: str, expected: dict[str, Any]) -> None:
    found = read(line)
    assert len(found) == 1
    if "nan" in line:
        assert found[0].pop("loss") != found[0].get("loss")
    assert found[0] == expected


@pytest.mark.parametrize(
    "line",
    [
        "resuming",
        "Loading weights",
        "http://127.0.0.1:8080/a",
        "2026-11-23 10:00:00 INFO ok",
        "batch size 32",
        "Map:  20%|##        | 1000/5000 [00:00<00:02, 1234.5 examples/s]",
        "Loading checkpoint shards: 100%|###| 2/2 [00:01<00:00,  1.50it/s]",
        "Evaluating:  20%|##        | 10/50 [00:00<00:02, 3.5it/s]",
        "model.safetensors: 100%|###| 548M/548M [00:03<00:00, 160MB/s]",
        "| INFO | batch_size: 64 | warmup_steps: 100 | eval_steps: 50",
        "elapsed time per iteration (ms): 100.0 | ms/step: 12 | steps per epoch: 50",
        "Test:  20%|##        | 10/50 [00:00<00:02, 3.5it/s]",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    "line",
    ["Namespace(lr=0.1, num_steps={})", "num_steps: {}", '{{"num_steps": {}, "lr": 0.1}}', "num_iterations={} lr=0.1"],
)
@pytest.mark.parametrize("loss_line", ["step {} loss 0.5", "step {}/200 loss 0.5", '{{"step": {}, "loss": 0.5}}'])
def test_a_printed_number_of_steps_is_a_setting(line: str, loss_line: str) -> None:
    printed = Printed()
    assert steps(printed, line.format(1000), *(loss_line.format(count) for count in (10, 20))) == [10, 20]


@pytest.mark.parametrize(
    ("line", "told"),
    [("num_iters: 1000", 1000), ("num_steps: 1000", None), ("num_iters: 10 loss: 0.5", None)],
)
def test_a_printed_number_of_iterations_tells_the_end_if_no_loss_is_beside_it(line: str, told: int | None) -> None:
    announced = [each.announced for each in Printed().feed(f"{line}\n".encode(), 1.0) if each.announced is not None]
    assert announced == ([] if told is None else [Announced(total_steps=told)])


def test_a_number_of_updates_beside_a_loss_counts_them() -> None:
    line = '{"epoch": 1, "update": 0.0, "loss": "0.5", "num_updates": "10"}'
    assert [each["step"] for each in read(line)] == [10]


def steps(printed: Printed, *lines: str) -> list[int]:
    return [each["step"] for line in lines for each in read(line, printed) if "step" in each]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "line",
    [
        "Epoch {epoch}: 50%|## | {count}/100 [00:01, 9it/s, loss=1.0]",
        "Epoch [{epoch}/9], Step [{count}/100], Loss: 0.5",
        "Epoch: [{epoch}][{count}/100] Loss 6.9",
        "Train Epoch: {epoch} [{count}/100 ({count}%)] Loss: 2.1",
        "epoch {epoch} step {count} loss 0.5",
        "[{epoch}, {count}] loss: 2.2",
        "Epoch:  {epoch} Batch: {count} Loss:0.5",
        "Epoch {epoch}/9\n{count}/100 ━━━━━ 1s 3ms/step - loss: 2.3",
    ],
)
def test_counts_that_begin_anew_in_each_epoch_count_on(line: str, first: int) -> None:
    printed = Printed()
    lines = [line.format(epoch=epoch, count=count) for epoch in (first, first + 1, first + 2) for count in (50, 100)]
    assert steps(printed, *lines) == [50, 100, 150, 200, 250, 300]
    assert printed._counts.first_epoch == first


def test_steps_that_begin_anew_before_their_epoch_is_named_count_on() -> None:
    lines = [f"Step: {count} avg_batch_loss: 0.5" for count in (50, 100)]
    epochs = [line for epoch in (0, 1, 2) for line in (*lines, f"EPOCH: {epoch} train_loss: 0.4 test_loss: 0.5")]
    assert steps(Printed(), *epochs) == [50, 100, 150, 200, 250, 300]


@pytest.mark.parametrize(
    "line", ["Epoch {epoch}: 50%|## | {count}/100 [00:01, loss=1.0]", "epoch {epoch} step {count} loss 0.5"]
)
def test_processes_that_go_on_in_a_later_epoch_count_from_there(line: str) -> None:
    printed = Printed(first_epoch=1, steps_per_epoch=100.0)
    assert steps(printed, *(line.format(epoch=7, count=count) for count in (10, 20))) == [610, 620]


@pytest.mark.parametrize("line", ["epoch {epoch} step {count}/1000 loss 1", "epoch {epoch} step {count} loss 1"])
def test_counts_of_the_whole_training_are_kept_beside_epochs(line: str) -> None:
    printed = Printed()
    lines = [line.format(epoch=1 + count // 100, count=count) for count in range(20, 400, 40)]
    assert steps(printed, *lines) == list(range(20, 400, 40))
    end = read(line.format(epoch=5, count=420), printed)[0]
    assert end.get("total_steps") == (1000 if "/1000" in line else None)


@pytest.mark.parametrize(
    ("each", "every", "counted_from", "first_known", "last_known"),
    [
        (40, 10, 1, 1200, 1200),  # the last step of each epoch is told
        (40, 40, 1, 1200, 1200),  # a line for each epoch
        (45, 10, 1, 1200, 1350),  # it is not: known better with each epoch
        (40, 10, 0, 1200, 1200),
        (45, 10, 0, 1500, 1350),
    ],
)
def test_the_length_of_epochs_is_seen_where_a_count_goes_on_through_them(
    each: int, every: int, counted_from: int, first_known: int, last_known: int
) -> None:
    printed, totals = Printed(), list[int | None]()
    for step in range(counted_from, 30 * each + counted_from):
        if step % every == 0:
            epoch = (step - counted_from) // each + 1
            totals.append(read(f"epoch {epoch}/30 step {step} loss 0.5", printed)[0].get("total_steps"))
    known = [total for total in totals if total is not None]
    assert (known[0], known[-1]) == (first_known, last_known)
    assert totals.index(first_known) <= (each + every) // every, "from the second epoch on"


@given(
    each=st.integers(1, 3000),
    every=st.integers(1, 500),
    n_epochs=st.integers(2, 40),
    first=st.sampled_from([0, 1]),
    counts_from=st.sampled_from([0, 1]),
)
def test_a_count_through_named_epochs_tells_how_long_they_are(
    each: int, every: int, n_epochs: int, first: int, counts_from: int
) -> None:
    """`epoch 3/30 step 100`: what the end is follows from where epochs begin, more exactly with each of them."""
    printed, progress, total = Printed(), Progress(0.0, 0), each * n_epochs
    for step in range(counts_from, total + counts_from):
        if step % every or each < every:
            continue
        epochs_before = (step - counts_from) // each
        line = f"epoch {epochs_before + first}/{n_epochs} step {step} loss 0.5\n"
        for reading in printed.feed(line.encode(), step * 1.0):
            progress.add(reading)
        known = progress.learned.total_steps
        if first == 1 and epochs_before > 0 and step >= every + counts_from:
            assert known is None or abs(known - total) <= every * n_epochs / epochs_before + n_epochs
    assert progress.learned.total_steps is None or progress.learned.total_steps >= (progress.step or 0)


@pytest.mark.parametrize("n_epochs", [5, 200])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_count_that_may_be_of_the_epoch_or_of_the_training_tells_no_end_until_it_shows(
    n_epochs: int, is_whole: bool
) -> None:
    """`epoch 1/200 step 10/2000`: one line an epoch, or one every ten steps."""
    printed, each = Printed(), 10
    total, told = n_epochs * each, list[tuple[int | None, int | None]]()
    for number in range(1, 4):
        epoch = number if is_whole else 1
        (found,) = printed.feed(f"epoch {epoch}/{n_epochs} step {each * number}/{total} loss 0.5\n".encode(), 1.0)
        told.append((found.step, found.total_steps))
        assert not found.corrects
    end = total if is_whole else n_epochs * total
    assert told == [(10, None), (20, end), (30, end)]


def test_a_count_through_named_epochs_is_exact_where_lines_divide_them() -> None:
    for counts_from in (0, 1):
        printed, progress = Printed(), Progress(0.0, 0)
        for step in range(counts_from, 90):
            if step % 10 == 0:
                line = f"epoch {(step - counts_from) // 40 + 1}/30 step {step} loss 0.5\n"
                for reading in printed.feed(line.encode(), step * 1.0):
                    progress.add(reading)
            known = (progress.learned.total_steps, progress.learned.steps_per_epoch)
            assert known == ((None, None) if step < (40 if counts_from == 0 else 50) else (1200, 40.0))


def test_what_seemed_to_be_all_of_the_training_is_corrected() -> None:
    printed = Printed()
    bar = " {percent}%|## | {count}/50 [00:01<00:01, 9it/s]\n"
    first = printed.feed(bar.format(percent=100, count=50).encode(), 1.0)[0]
    again = printed.feed(bar.format(percent=20, count=10).encode(), 2.0)[0]
    later = printed.feed(bar.format(percent=40, count=20).encode(), 3.0)[0]
    assert (first.step, first.total_steps, first.corrects) == (50, 50, False)
    assert (again.step, again.total_steps, again.steps_per_epoch, again.corrects) == (60, None, 50, True)
    assert (later.step, later.corrects) == (70, False)


def test_patterns_of_the_user_come_alone() -> None:
    printed = Printed(plain_search([r"it (?P<step>\d+): objective (?P<loss>\S+)"]))
    assert read("it 7: objective 0.25", printed) == [{"step": 7, "loss": 0.25}]
    assert read("step 9 loss 3", printed) == []


def test_lines_may_come_in_pieces_and_a_bar_by_carriage_returns() -> None:
    printed = Printed()
    assert printed.feed(b"step 1 lo", 1.0) == []
    assert [each.loss for each in printed.feed(b"ss 0.5\rstep 2 loss 0.4\r", 1.0)] == [0.5, 0.4]


@pytest.mark.parametrize(
    ("output", "steps"),
    [
        ("step 19/20 loss 0.06\nstep 20/20 loss 0.05", [19, 20]),
        ("step 20/20 loss 0.05", [20]),
        ("step 20/20 loss 0.05\n", [20]),
        ("\r 95%|#| 19/20 [00:19<00:01, loss=0.06]\r100%|#| 20/20 [00:20<00:00, loss=0.05]", [19, 20]),
        ("step 20/20 loss 0.05\r", [20]),
        ("step 20/20 loss 0.05\n\x1b[0m", [20]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_last_line_needs_no_end(output: str, steps: list[int], piece: int) -> None:
    printed, data = Printed(), output.encode()
    found = [each for at in range(0, len(data), piece) for each in printed.feed(data[at : at + piece], 1.0)]
    found += printed.finish(2.0)
    assert [each.step for each in found] == steps
    assert found[-1].loss == 0.05
    assert printed.finish(3.0) == [], "once"


def test_of_a_process_that_was_killed_half_a_line_is_not_read() -> None:
    """ "step 1" may be of "step 120"."""
    printed = Printed()
    assert [each.step for each in printed.feed(b"step 119/200 loss 0.5\nstep 1", 1.0)] == [119]
    assert printed.finish(2.0, is_whole=False) == []


def test_the_last_line_of_a_flood_comes_after_the_newest_one_before_it() -> None:
    printed = Printed()
    flood = b"".join(b"step %d loss 1\n" % step for step in range(1, 10_001))
    printed.feed(flood, 2.0)
    printed.feed(flood.replace(b"step ", b"step 9"), 2.01)
    assert [each.step for each in printed.feed(b"step 999998 loss 1\nstep 999999 loss 1", 2.02)] == []
    assert [each.step for each in printed.finish(2.03)] == [999_998, 999_999]
    printed.feed(b"x" * (3 * MAX_LINE_BYTES) + b" step 3 loss 1", 3.0)
    assert printed.finish(3.1) == [], "the end of a line that is too long"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"step": 10, "loss": {"a": 1}}', {"step": 10}),
        ('{"step": 10, "loss": {"step": 7}}', {"step": 10}),
        ('{"step": 10, "loss": {"a": {"total": 1}}}', {"step": 10}),
        ('{"step": 10, "train": {"loss": {"a": 1}}}', {"step": 10}),
        ('{"step": 10, "loss": {"lr": 1}, "lr": {"group": 1, "lr": 2}}', {"step": 10}),
        ('{"step": {"step": 7, "epoch": 2}, "iteration": 10}', {"step": 10}),
        ('{"step": 10, "loss": [3, 4]}', {"step": 10}),
        ('{"step": 10, "loss": [{"loss": 3}]},', {"step": 10}),
        ('{"step": 10, "loss": true}', {"step": 10}),
        ('{"step": 10, "loss": null}', {"step": 10}),
        ('{"step": 10, "loss": "step 9"}', {"step": 10}),
        ('{"step": 10, "loss": "0.5"}', {"step": 10, "loss": 0.5}),
        ('{"step": 10, "loss": {"ce": 0.2, "total": 0.5}}', {"step": 10, "loss": 0.5}),
        ('{"step": 10, "loss": {"train": 0.5, "val": 0.7}}', {"step": 10, "loss": 0.5, "metrics": {"loss/val": 0.7}}),
        ('{"step": 10, "train": {"loss": 0.5}}', {"step": 10, "loss": 0.5}),
        ('{"step": 10, "accuracy": {"top1": 0.5}}', {"step": 10, "metrics": {"accuracy/top1": 0.5}}),
    ],
)
def test_a_part_of_what_stands_where_a_figure_is_expected_is_not_that_figure(
    line: str, expected: dict[str, Any]
) -> None:
    printed = Printed()
    read(line.replace("10", "5"), printed)  # a count with nothing beside it counts where its words come again
    assert read(line, printed)[-1] == expected


def test_too_much_is_skipped_in_bounded_memory() -> None:
    printed = Printed()
    assert printed.feed(b"x" * (3 * MAX_LINE_BYTES), 1.0) == []
    assert len(printed._buffer) <= MAX_LINE_BYTES
    assert [each.step for each in printed.feed(b"loss 9\nstep 3 loss 1\n", 1.0)] == [3]


def test_of_a_flood_some_lines_and_the_newest_are_read() -> None:
    def flood(first: int, n: int) -> bytes:
        return b"".join(b"step %d loss 1\n" % step for step in range(first, first + n))

    printed = Printed()
    steps = [each.step for each in printed.feed(flood(1, 100_000), 2.0)]
    assert steps == [*range(1, BURST_LINES + 1), 100_000]
    steps = [each.step for each in printed.feed(flood(100_001, 100_000), 3.0)]
    assert steps == [*range(100_001, 100_000 + LINES_PER_SECOND), 200_000]
    n = sum(len(printed.feed(flood(200_001 + 1000 * i, 1000), 3.0 + i / 1000)) for i in range(1000))
    assert n <= 2 * LINES_PER_SECOND, "a second of a million lines"
    printed.feed(b"step 1300000 loss 1\nstep 1300001 loss 0.5\n", 4.0)
    assert [each.step for each in printed.finish(4.0)][-1:] in ([], [1_300_001])


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.001, 0.03, 0.09, 0.11, 2.0]), st.sampled_from([1, 2, 14, 60])), max_size=20
    ),
    st.sampled_from([20, 1500]),
)
def test_lines_are_read_in_their_order_however_they_come(blocks: list[tuple[float, int]], width: int) -> None:
    printed, at, n, found = Printed(), 100.0, 0, list[int | None]()
    for seconds, lines in [(0.0, BURST_LINES), *blocks]:
        at += seconds
        text = "".join(f"step {n + i}/100000 loss 0.5{' ' * width}\n" for i in range(1, lines + 1))
        n += lines
        found += [reading.step for reading in printed.feed(text.encode(), at)]
    found += [reading.step for reading in printed.finish(at)]
    steps = [step for step in found if step is not None]
    assert steps == sorted(steps), "one that is read later than its successors looks like a new epoch"
    assert steps[-1] == n


@pytest.mark.parametrize(("per_second", "told"), [(2 * FLOOD_LINES, 2 * FLOOD_LINES), (FLOOD_LINES // 2, None)])
def test_a_flood_that_lasts_is_told_with_its_lines_a_second(per_second: int, told: int | None) -> None:
    printed = Printed()
    for second in range(int(FLOOD_SECONDS)):
        printed.feed(b"step 1 loss 1\n" * per_second, 100.0 + second)
        assert printed.flood is None
    printed.feed(b"step 1 loss 1\n", 100.0 + FLOOD_SECONDS)
    assert printed.flood == told


def test_much_that_is_printed_once_is_no_flood() -> None:
    printed = Printed()
    printed.feed(b"a line of settings\n" * 1_000_000, 100.0)
    for second in range(1, 100):
        printed.feed(b"step 1 loss 1\n", 100.0 + second * 2 * FLOOD_SECONDS)
    assert printed.flood is None


@pytest.mark.parametrize("n_at_once", [1, 3, 10])
def test_nothing_is_skipped_of_what_comes_slowly(n_at_once: int) -> None:
    printed, found = Printed(), list[int | None]()
    for first in range(1, 2000, n_at_once):
        lines = b"".join(b"step %d loss 1\n" % step for step in range(first, first + n_at_once))
        found += [each.step for each in printed.feed(lines, first / (LINES_PER_SECOND - 1))]
    assert found == list(range(1, len(found) + 1))


def test_the_last_line_of_a_flood_is_read_at_its_end() -> None:
    printed = Printed()
    for index in range(1, 5001):
        printed.feed(b"step %d loss 1\n" % index, 2.0 + index * 1e-6)
    assert [each.step for each in printed.finish(2.1)] == [5000]
    assert printed.finish(2.1) == []


def test_long_lines_are_not_read_without_end() -> None:
    """A line of a word and many spaces took minutes: expressions went through all the ways to divide them."""
    printed = Printed()
    line = b"loss" + b" " * (MAX_LINE_BYTES - 100) + b"0.5\n"
    assert [each.loss for each in printed.feed(line, 1.0)] == [0.5]
    assert len(printed.feed(line * BURST_LINES, 2.0)) == BURST_BYTES // len(line) + 2, "and the newest"


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_any_output_is_read(pieces: list[bytes]) -> None:
    printed = Printed()
    for piece in pieces:
        printed.feed(piece, 1.0)


WORDS = st.sampled_from(
    ["loss", "step", "epoch", "lr", "val_loss", "1/2", "3", "nan", "1e999", "-inf", ":", "=", "[", "50%|#| 1/2 ["]
)


@given(st.lists(WORDS, max_size=30).map(" ".join))
def test_any_words_are_read(line: str) -> None:
    read(line)


@given(
    st.sampled_from(["[{}] loss 0.5", "{} loss 0.5", "loss 0.5 {}", "epoch {} loss 0.5", "━━━ {} loss 0.5"]),
    st.from_regex(r"[1-9][0-9]{0,2}(\.[0-9]?)?[eE][-+]?[0-9]{1,3}", fullmatch=True),
    st.booleans(),
)
def test_a_number_with_an_exponent_is_never_cut_to_a_count(line: str, number: str, is_end: bool) -> None:
    """`1e308/200` was step 308, and `epoch 1e2/200` step 2 of 200."""
    for found in read(line.format(f"2/{number}" if is_end else f"{number}/200")):
        assert not {"step", "total_steps", "steps_per_epoch"} & found.keys(), found


@given(
    st.sampled_from(["loss", "step", "epoch", "total_steps"]),
    st.from_regex(r"[-+]?[0-9][0-9.eE+-]{0,8}", fullmatch=True),
)
def test_any_figure_of_a_table_is_read(name: str, figure: str) -> None:
    """`| loss | 1-2 |` ended the reading of all that the script printed."""
    read(f"| {name} | {figure} |")
    assert read("| loss | 1.5e-3 |") == [{"loss": 1.5e-3}]


def test_lines_that_say_nothing_are_counted() -> None:
    """By them an agent takes a script to train whose progress is not understood."""
    printed = Printed()
    assert read("\n".join(["[00010] obj 0.33 lr 0.05"] * 25), printed) == []
    assert printed.n_lines == 25


def test_a_bar_that_goes_back_a_little_begins_no_epoch() -> None:
    """Keras with torch draws an older bar after a newer one now and then."""
    lines = ["Epoch 1/2", *(f"{n}/57 ━━━ 0s 15ms/step - loss: 0.6" for n in (1, 37, 36, 57)), "Epoch 2/2"]
    lines += [f"{n}/57 ━━━ 0s 15ms/step - loss: 0.5" for n in (1, 57)]
    steps = [each["step"] for each in read("\n".join(lines) + "\n") if "step" in each]
    assert steps == [1, 37, 57, 58, 114]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 80/100 loss 0.35 | best 0.3 at step 60", {"step": 80, "total_steps": 100, "loss": 0.35}),
        ("step 80 loss 0.35 (best: step 60)", {"step": 80, "loss": 0.35}),
        ("epoch 7/10 loss 0.4 (best 0.3 at epoch 6)", {"epoch": 7, "total_epochs": 10.0, "loss": 0.4}),
    ],
)
def test_of_two_counts_in_a_line_the_first_one_counts(line: str, expected: dict[str, Any]) -> None:
    assert read(line) == [expected]


@pytest.mark.parametrize(
    "line", ["Best loss 0.3 at step 60", "min loss 0.2 reached at iter 90", "Last checkpoint at step 90", "step 101"]
)
@pytest.mark.parametrize("count", ["step {}/100 loss 0.5", "100%|###| {}/100 [00:02<00:08, 4.9it/s, loss=0.5]"])
def test_a_count_in_a_summary_after_counts_with_an_end_is_of_no_other_step(count: str, line: str) -> None:
    assert steps(Printed(), count.format(99), count.format(100), line) == [99, 100]


def test_a_count_without_an_end_between_those_with_one_is_of_the_same_training() -> None:
    assert steps(Printed(), "step 10/100 loss 0.5", "step 15 loss 0.5", "step 20/100 loss 0.5") == [10, 15, 20]


STEPS_TO_COME = [
    "unfreezing at step 500",
    "Stopping at step 1000",
    "EMA starts at step 2000",
    "checkpoint_step: 100",
    "step: 1000",
    "print_iter: 10",
    "Profiling from step 5 to step 10",
]
EPOCHS_TO_COME = [
    "milestones: epoch 30, epoch 60",
    "freeze until epoch 5",
    "swa_start: epoch 75",
    "Namespace(epoch=30, lr=0.1)",
    "epoch: 30",
]
LOSSES = [
    "step {} loss 0.5",
    "step {}/100 loss 0.5",
    "Epoch {}/100 loss 0.5",
    "100%|###| {}/100 [00:02<00:08, 4.9it/s, loss=0.5]",
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("line", "place"),
    [*((line, 0) for line in STEPS_TO_COME + EPOCHS_TO_COME), *((line, 2) for line in STEPS_TO_COME)],
)
def test_steps_and_epochs_that_are_named_once_are_to_come(line: str, loss: str, place: int) -> None:
    """Before the training, or, of steps, in it."""
    lines = [loss.format(count) for count in (10, 20, 30, 40)]
    expected = read("\n".join(lines))
    assert read("\n".join([*lines[:place], line, *lines[place:]])) == expected


@pytest.mark.parametrize(
    "line", ["step {} took 0.5 s", '{{"time": {}, "step": {}}}', "[INFO] iteration {}", "| n_updates | {} |"]
)
def test_counts_with_nothing_beside_them_count_from_the_first_where_their_words_come_again(line: str) -> None:
    printed, found = Printed(), list[tuple[int | None, float]]()
    for count in (10, 20, 30):
        found += [(each.step, each.at) for each in printed.feed(f"{line.format(count, count)}\n".encode(), 1.0 * count)]
    assert found == [(10, 10.0), (20, 20.0), (30, 30.0)]


@pytest.mark.parametrize(
    "line", ["Resuming from epoch 3", "Loaded the checkpoint of epoch 3", "Epoch 3", "==> Epoch: 3", "epoch 3/10"]
)
def test_an_epoch_that_the_training_goes_on_in_is_named_before_it(line: str) -> None:
    bar = " 20%|##   | {count}/100 [00:02<00:08,  4.9it/s]"
    assert steps(Printed(), line, *(bar.format(count=count) for count in (10, 20))) == [210, 220]


def test_epochs_in_words_that_come_again_are_of_the_training() -> None:
    printed = Printed()
    assert [each.get("epoch") for each in read("in epoch 3\nin epoch 4\nin epoch 5", printed)] == [4, 5]
