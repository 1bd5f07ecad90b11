"""Language modelling on bytes: of a text file of yours, or of a made-up language that can be learned.

`lstm` and `transformer` are the tasks (`--task optimus_workers.zoo.text:transformer --set file=book.txt`). An example
is `length` + 1 bytes in a row; the last tenth of the text is held out. The models take tokens (n, length) and give
logits of each next token (n, length, vocabulary).

References: Zaremba et al. 2014 (LSTM; medium: 650 units, large: 1500); Radford et al. 2019 (the transformer of GPT-2:
norms before the branches, learned positions, output weights tied to the embedding).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask

# --- the models ------------------------------------------------------------------------------------------------------


class LstmLanguageModel(nn.Module):
    """An embedding, `depth` LSTM layers of `width` units with dropout between them, and a linear layer."""

    def __init__(self, vocabulary: int, width: int = 650, depth: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, dropout=dropout if depth > 1 else 0.0, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary)
        for weights in self.parameters():
            nn.init.uniform_(weights, -(width**-0.5), width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


class Transformer(nn.Module):
    """A decoder of `depth` blocks: no token sees a later one. `width` must be a multiple of `heads`."""

    def __init__(
        self, vocabulary: int, length: int, width: int = 256, depth: int = 4, heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if width % heads:
            raise TaskError(f"width ({width}) must be a multiple of heads ({heads})")
        self.length = length
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.length:
            raise ValueError(f"{length} tokens are more than the {self.length} that this model has positions for")
        places = torch.arange(length, device=tokens.device)
        hidden = self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))
        return functional.linear(hidden, self.tokens.weight)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = [nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(*hidden, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.norm1(x))
        added: Tensor = x + self.mlp(self.norm2(x))
        return added

    def _attention(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        # three of (n, heads, length, width / heads)
        query, key, value = self.projections(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.drop if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
        return functional.dropout(self.attended(mixed.transpose(1, 2).reshape(n, length, width)), drop)


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of every token of `batch` (n, length + 1) after the first, a scalar."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


# --- the tasks -------------------------------------------------------------------------------------------------------

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
