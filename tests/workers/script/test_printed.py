"""What common libraries print, as they print it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.channels.printed import MAX_LINE_BYTES, MAX_LINES_PER_SECOND, Printed
from optimus_workers.script.reading import Reading


def read(text: str, printed: Printed | None = None) -> list[dict[str, Any]]:
    return [said(reading) for reading in (printed or Printed()).feed(text.encode() + b"\n", 1.0)]


def said(reading: Reading) -> dict[str, Any]:
    names = ("step", "total_steps", "epoch", "total_epochs", "loss", "learning_rate", "gradient_norm")
    found = {name: value for name in names if (value := getattr(reading, name)) is not None}
    return found | ({"metrics": dict(reading.metrics)} if reading.metrics else {})


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
            {"step": 45, "epoch": 0.0, "loss": 0.123},
        ),
        ("step 12/200 loss 0.4", {"step": 12, "total_steps": 200, "loss": 0.4}),
        ("Step 10/1000, loss=0.1", {"step": 10, "total_steps": 1000, "loss": 0.1}),
        ("iter 500: loss 2.1345, time 120.05ms, mfu 12.3%", {"step": 500, "loss": 2.1345}),
        ("epoch 2 step 30 lr 1e-3 loss nan", {"epoch": 2.0, "step": 30, "learning_rate": 1e-3}),
        ("loss: 0.123", {"loss": 0.123}),
        ("\x1b[32mINFO\x1b[0m train_loss=1.5 global_step=20", {"loss": 1.5, "step": 20}),
        ("step=20 loss=1.5 val_loss=1.7", {"step": 20, "loss": 1.5, "metrics": {"val_loss": 1.7}}),
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
    "line", ["resuming", "Loading weights", "http://127.0.0.1:8080/a", "2026-11-23 10:00:00 INFO ok"]
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read(line) == []


def test_bars_that_begin_anew_in_each_epoch_count_on() -> None:
    printed = Printed()
    lines = [f"Epoch {epoch}: 50%|## | {count}/100 [00:01, loss=1.0]" for epoch in (0, 1) for count in (50, 100)]
    assert [read(line, printed)[0]["step"] for line in lines] == [50, 100, 150, 200]


def test_patterns_of_the_user_come_alone() -> None:
    printed = Printed([r"it (?P<step>\d+): objective (?P<loss>\S+)"])
    assert read("it 7: objective 0.25", printed) == [{"step": 7, "loss": 0.25}]
    assert read("step 9 loss 3", printed) == []


def test_lines_may_come_in_pieces_and_a_bar_by_carriage_returns() -> None:
    printed = Printed()
    assert printed.feed(b"step 1 lo", 1.0) == []
    assert [each.loss for each in printed.feed(b"ss 0.5\rstep 2 loss 0.4\r", 1.0)] == [0.5, 0.4]


def test_too_much_is_skipped_in_bounded_memory() -> None:
    printed = Printed()
    assert printed.feed(b"x" * (3 * MAX_LINE_BYTES), 1.0) == []
    assert len(printed._buffer) <= MAX_LINE_BYTES
    assert [each.step for each in printed.feed(b"loss 9\nstep 3 loss 1\n", 1.0)] == [3]
    many = b"".join(b"step %d loss 1\n" % step for step in range(10 * MAX_LINES_PER_SECOND))
    assert len(printed.feed(many, 2.0)) == MAX_LINES_PER_SECOND
    assert len(printed.feed(b"step 9 loss 1\n", 3.0)) == 1


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
