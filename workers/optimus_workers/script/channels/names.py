"""What the name of a printed figure means: `train/loss`, `Total optimization steps`, `lr`. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache


class Meaning(Enum):
    """What a figure is."""

    LOSS = auto()
    """The training loss."""
    KIND_OF_LOSS = auto()
    """Such as `policy loss` or `loss cls`: the training loss where none is named plainly."""
    EVALUATED_LOSS = auto()
    STEP = auto()
    TOTAL_STEPS = auto()
    EPOCH = auto()
    PASS = auto()
    """An epoch if a total comes with it."""
    TOTAL_EPOCHS = auto()
    BATCH = auto()
    LEARNING_RATE = auto()
    GRADIENT_NORM = auto()
    FIGURE = auto()
    """Of an evaluation."""


_LOSSES = frozenset({"loss", "objective", "nll", "cross entropy", "ce loss"})
_OF_LOSSES = frozenset(
    {"train", "training", "trainer", "total", "avg", "average", "mean", "running", "batch", "minibatch"}
    | {"step", "iter", "current", "smoothed", "overall", "moving", "lm", "final", "global", "loss", "losses"}
)
"""Words beside `loss` that leave it the training loss."""
_NO_LOSSES = frozenset({"scale", "scaler", "best", "lowest", "min", "target", "weight", "type", "name"})
_STEPS = frozenset({"step", "steps", "iter", "iters", "iteration", "iterations", "it", "update", "updates"})
_EPISODES = frozenset({"episode", "episodes"})
_EPOCHS = frozenset({"epoch", "epochs", "ep"})
_PASSES = frozenset({"pass", "round"})
"""Epochs, where their number is printed too: `pass 5 of 30`."""
_BATCHES = frozenset({"batch", "batches", "minibatch"})
_TOTALS = frozenset({"total", "max", "maximum"})
_ALL_STEPS = frozenset({"num train steps", "num training steps", "num optimization steps"})
_ALL_EPOCHS = frozenset({"num epochs", "n epochs", "num train epochs", "number of epochs"})
_RATES = frozenset({"learning rate", "lr", "lr 0"})
_NORMS = frozenset({"grad norm", "gradient norm", "gnorm", "grad norm total"})
_FIGURES = frozenset({"accuracy", "acc", "f1", "auc", "perplexity", "ppl", "bleu", "top1", "top5", "miou", "map"})
_EVALUATED = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_NO_COUNTS = frozenset(
    {"per", "time", "times", "elapsed", "every", "each", "skipped", "skip", "warmup", "accumulation", "accum"}
    | {"save", "saving", "logging", "log", "remaining", "best", "start", "starting", "resume", "resumed"}
    | {"average", "avg", "ms", "s", "sec", "secs", "second", "seconds", "min", "token", "tokens", "sample"}
    | {"samples", "example", "examples", "img", "imgs", "images", "flops", "loss", "acc", "accuracy", "lr"}
    | {"decay", "patience"}
)
"""A name with one of these and `step` in it is a time, a rate, a setting: `elapsed time per iteration`, `ms/step`."""
_AVERAGED = frozenset({"epoch", "epochs"})
"""`train loss epoch` is an average over the epoch before."""
_FOREIGN = {
    "loss": r"\b(?:verlust|perte|pérdida|perda|perdita|потери|потеря)\b|损失|損失|손실",
    "step": r"\b(?:schritt|étape|paso|passo|iteración|itération|шаг|итерация)\b|步数|步骤|步|ステップ|스텝",
    "epoch": r"\b(?:epoche|époque|epoque|época|epoca|эпоха)\b|轮次|轮|エポック|에포크",
}
_FOREIGN_WORDS = re.compile("|".join(f"(?P<{name}>{words})" for name, words in _FOREIGN.items()), re.IGNORECASE)
_ASCII_WORDS = ("verlust", "perte", "perda", "perdita", "schritt", "paso", "passo", "epoche", "epoque", "epoca")
"""Those of them that are in ASCII: most lines hold none, which is seen sooner so."""
_FULL_WIDTH = str.maketrans({code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})
"""Colons, brackets and letters as East Asian keyboards have them."""
_ORDINAL = re.compile(r"第\s?(\d+)\s?(loss|step|epoch)")


def in_english(line: str) -> str:
    """A line whose words for loss, step and epoch are of another language, with the English ones."""
    if line.isascii():
        lowered = line.lower()
        if not any(word in lowered for word in _ASCII_WORDS):
            return line
    line = _FOREIGN_WORDS.sub(lambda match: f" {match.lastgroup} ", line.translate(_FULL_WIDTH))
    return _ORDINAL.sub(r" \2 \1 ", line.replace("  ", " "))


def one_blank(line: str) -> str:
    """One blank for many: expressions that skip them would take minutes for a line of nothing else."""
    words = " ".join(line.split())
    return f"{' ' if line[:1].isspace() else ''}{words}{' ' if words and line[-1].isspace() else ''}"


@lru_cache(maxsize=4096)
def normal(name: str) -> str:
    """Small letters, one blank between words."""
    return re.sub(r"[\s_-]+", " ", name.strip().lower())


@lru_cache(maxsize=4096)
def meaning(name: str) -> Meaning | None:
    """What a figure of this normal name is; None: nothing of the training's course."""
    words = re.split(r"[ /.]+", name)
    found = set(words)
    if name in _LOSSES or "loss" in found or words[-1] == "losses":
        return _of_loss(name, words, found)
    if name in _RATES or name.rpartition("/")[2] in _RATES:
        return Meaning.LEARNING_RATE
    if name.rpartition("/")[2] in _NORMS:
        return Meaning.GRADIENT_NORM
    if words[-1] in _FIGURES:
        return Meaning.FIGURE
    near = set(words[-3:])
    return None if near & _NO_COUNTS else _of_count(name, words[-1], near)


def _of_loss(name: str, words: list[str], found: set[str]) -> Meaning | None:
    if found & _NO_LOSSES:
        return None
    if found & _EVALUATED:
        return Meaning.EVALUATED_LOSS
    if words[-1] in _AVERAGED:
        return None
    return Meaning.LOSS if name in _LOSSES or found <= _OF_LOSSES else Meaning.KIND_OF_LOSS


def _of_count(name: str, last: str, found: set[str]) -> Meaning | None:
    if name in _ALL_EPOCHS or (last in _EPOCHS and found & _TOTALS):
        return Meaning.TOTAL_EPOCHS
    if name in _ALL_STEPS or (last in _STEPS and found & _TOTALS):
        return Meaning.TOTAL_STEPS
    if found & _EVALUATED and last in _STEPS | _BATCHES:
        return None
    if last in _STEPS or name in _EPISODES:
        return Meaning.STEP
    if last in _EPOCHS:
        return Meaning.EPOCH
    if last in _PASSES:
        return None if found & _EVALUATED else Meaning.PASS
    return Meaning.BATCH if last in _BATCHES else None
