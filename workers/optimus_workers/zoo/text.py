"""Language modelling on bytes: of a text file of yours, or of a made-up language that can be learned.

`lstm` and `transformer` are the tasks (`--task optimus_workers.zoo.text:transformer --set file=book.txt`).
An example is `length` + 1 bytes in a row; the last tenth of the text is held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo.language import LstmLanguageModel, Transformer, next_token_loss

VOCABULARY = 256
"""Bytes."""
MADE_UP_BYTES = 60_000
_FOLLOWERS = 3
"""How many bytes can follow a pair of bytes in the made-up language, all equally likely: its loss is ln 3 at best."""


def lstm(
    file: str | None = None,
    length: int = 32,
    width: int = 128,
    depth: int = 2,
    dropout: float = 0.0,
    learning_rate: float = 2e-3,
    global_batch_size: int = 48,
    micro_batches: int = 12,
) -> TrainingTask:
    """LSTM layers."""
    model = partial(LstmLanguageModel, VOCABULARY, width, depth, dropout)
    return _task(model, file, length, learning_rate, global_batch_size, micro_batches)


def transformer(
    file: str | None = None,
    length: int = 32,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
    learning_rate: float = 2e-3,
    global_batch_size: int = 48,
    micro_batches: int = 12,
) -> TrainingTask:
    """A small decoder."""
    model = partial(Transformer, VOCABULARY, length, width, depth, heads, dropout)
    return _task(model, file, length, learning_rate, global_batch_size, micro_batches)


def _task(
    model: Callable[[], nn.Module],
    file: str | None,
    length: int,
    learning_rate: float,
    global_batch_size: int,
    micro_batches: int,
) -> TrainingTask:
    if length < 1:
        raise TaskError(f"length must be at least 1, not {length}")
    return TrainingTask(
        model=model,
        loss=next_token_loss,
        dataset=Windows(file, length, held_out=False),
        optimizer=OptimizerSpec(kind="adamw", learning_rate=learning_rate),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=partial(_evaluate, Windows(file, length, held_out=True)),
    )


class Windows:
    """All pieces of `length` + 1 bytes that begin where another one ends, as a map-style dataset of (length + 1,)."""

    def __init__(self, file: str | None, length: int, *, held_out: bool) -> None:
        self._file, self._length, self._held_out = file, length, held_out

    def __len__(self) -> int:
        return max(0, (len(self._part) - 1) // self._length)

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._length
        return self._part[start : start + self._length + 1].to(torch.int64)

    @property
    def _part(self) -> Tensor:
        """The bytes of this part of the text."""
        text = _read(self._file)
        cut = math.ceil(0.9 * len(text))
        return text[cut:] if self._held_out else text[:cut]


def _evaluate(windows: Windows, model: nn.Module) -> dict[str, float]:
    """Loss (nats per byte) and perplexity of at most 200 pieces that were not trained on."""
    pieces = torch.stack([windows[index] for index in range(min(len(windows), 200))])
    loss = next_token_loss(model, pieces).item()
    return {"test_loss": loss, "test_perplexity": math.exp(min(loss, 700.0))}


@cache
def _read(file: str | None) -> Tensor:
    """The text as bytes (n,). Raises `TaskError` when the file cannot be read or is too short to be split."""
    if file is None:
        return made_up_text()
    try:
        content = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise TaskError(f"cannot read the text {file}: {error.strerror or error}") from error
    if len(content) < 1000:
        raise TaskError(f"the text {file} has {len(content)} bytes; at least 1000 are needed")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def made_up_text(seed: int = 0) -> Tensor:
    """A walk through 16 letters where each pair has three equally likely followers; bytes (MADE_UP_BYTES,)."""
    chance = np.random.Generator(np.random.PCG64(seed))
    letters = np.frombuffer(b"abcdefghijklmno ", dtype=np.uint8)
    followers = chance.permuted(np.tile(np.arange(16), (16, 16, 1)), axis=2)[:, :, :_FOLLOWERS]
    picks = chance.integers(_FOLLOWERS, size=MADE_UP_BYTES)
    walk = np.empty(MADE_UP_BYTES, dtype=np.int64)
    before, last = 0, 1
    for place, pick in enumerate(picks):
        before, last = last, int(followers[before, last, pick])
        walk[place] = last
    return torch.from_numpy(letters[walk])
