"""What a training prints: the lines of common libraries and habits, read without knowing the script.

{'loss': 0.51, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.4}          transformers
Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.4it/s, v_num=0, train_loss=0.12]   Lightning, tqdm
epoch 2 step 30 loss 0.5        Step 10/1000, loss=0.1        loss: 0.123
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimus_contract.limits import MAX_COUNT
from optimus_workers.script.reading import Channel, Reading

MAX_LINE_BYTES = 8192
"""Longer lines are data, not progress: they are skipped."""
MAX_LINES_PER_SECOND = 200
"""More are skipped, so that a script that prints without end costs little; losses are samples anyway."""

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf(?:inity)?"
_PAIR = re.compile(
    r"(?<![\w/.-])['\"]?([A-Za-z][\w/. -]{0,39}?)['\"]?\s*(?:[:=]\s*|\s+)"
    rf"['\"]?({_NUMBER})(?![\w.])(?:\s*/\s*(\d+))?",
    re.IGNORECASE,
)
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(\d{1,15})/(\d{1,15})\s*\[")
_BARE_BAR = re.compile(r"(?<![\d/.])(\d{1,15})/(\d{1,15})(?![\d/])")
_LOSS = frozenset({"loss", "train loss", "training loss", "train/loss", "objective", "nll", "cross entropy", "ce loss"})
_STEP = frozenset(
    {
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "it",
        "global step",
        "update",
        "updates",
        "num updates",
        "trainer/global step",
    }
)
_EPOCH = frozenset({"epoch", "epochs", "ep"})
_RATE = frozenset({"learning rate", "lr", "learning rate/lr", "lr 0"})
_NORM = frozenset({"grad norm", "gradient norm", "gnorm", "grad norm total"})
_EVALUATED = ("val", "valid", "validation", "eval", "test", "dev")
_FIGURES = frozenset({"accuracy", "acc", "f1", "auc", "perplexity", "ppl", "bleu", "top1", "top5", "miou", "map"})


def _normal(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())


class Printed:
    """The output of one process, from its beginning. Never raises for any input to `feed`."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """`patterns`: regular expressions of the user's own, with groups named like the fields of `Reading`; with
        them, nothing else is looked for."""
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._buffer = b""
        self._skipping = False
        self._second, self._n_lines = 0, 0
        self._bars = _Bars()

    def feed(self, data: bytes, at: float) -> list[Reading]:
        """What the next bytes of output say; `at`: POSIX seconds."""
        found = []
        for line in self._lines(data):
            if int(at) != self._second:
                self._second, self._n_lines = int(at), 0
            self._n_lines += 1
            if self._n_lines > MAX_LINES_PER_SECOND:
                continue
            reading = self._read(_ANSI.sub(b"", line).decode(errors="replace"), at)
            if reading is not None:
                found.append(reading)
        return found

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Whole lines; a carriage return ends one as well."""
        parts = re.split(rb"[\r\n]", data)
        for part in parts[:-1]:
            line, self._buffer = self._buffer + part, b""
            skipped, self._skipping = self._skipping, False
            if not skipped and line.strip() and len(line) <= MAX_LINE_BYTES:
                yield line
        self._buffer += parts[-1]
        if len(self._buffer) > MAX_LINE_BYTES:
            self._buffer, self._skipping = b"", True

    def _read(self, line: str, at: float) -> Reading | None:
        if self._patterns:
            return self._by_patterns(line, at)
        said = _Said()
        for match in _PAIR.finditer(line):
            said.add(_normal(match[1]), float(match[2]), match[3])
        bar = _BAR.search(line)
        if bar is None and said.loss is not None and said.total_epochs is None:
            bar = _BARE_BAR.search(line)
        if said.step is not None:
            if said.steps_of_epoch is not None:
                said.step, said.total_steps = self._bars.step(said.step, said.steps_of_epoch, said.epoch)
        elif bar is not None:
            said.step, said.total_steps = self._bars.step(int(bar[1]), int(bar[2]), said.epoch)
        return said.reading(at)

    def _by_patterns(self, line: str, at: float) -> Reading | None:
        said = _Said()
        for pattern in self._patterns:
            match = pattern.search(line)
            for name, text in (match.groupdict() if match else {}).items():
                try:
                    value = float(text)
                except (TypeError, ValueError):
                    continue
                said.set(name, value)
        return said.reading(at)


@dataclass(slots=True)
class _Said:
    """What one line says."""

    step: int | None = None
    total_steps: int | None = None
    steps_of_epoch: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    metrics: dict[str, float] | None = None

    def add(self, name: str, value: float, total: str | None) -> None:
        """One `name value` or `name value/total` of a line."""
        words = name.split("/")[-1].split(" ")
        if name in _LOSS or (words[-1] == "loss" and not set(name.replace("/", " ").split()) & set(_EVALUATED)):
            if self.loss is None or name in _LOSS:
                self.loss = value
        elif name in _STEP or words[-1] in _STEP:
            self._count(value, total)
        elif words[-1] in _EPOCH:
            self.epoch = value if 0 <= value <= MAX_COUNT else self.epoch
            self.total_epochs = float(total) if total else self.total_epochs
        elif name in _RATE:
            self.learning_rate = value
        elif name in _NORM:
            self.gradient_norm = value
        elif words[-1] in _FIGURES or (words[-1] == "loss" and len(words) < 4):
            self.metrics = {**(self.metrics or {}), name.replace(" ", "_"): value}

    def set(self, name: str, value: float) -> None:
        """A named group of a pattern."""
        if name in ("step", "total_steps"):
            if value == value and abs(value) <= MAX_COUNT:
                setattr(self, name, int(value))
        elif name in ("epoch", "total_epochs", "loss", "learning_rate", "gradient_norm"):
            setattr(self, name, value)
        else:
            self.metrics = {**(self.metrics or {}), name: value}

    def _count(self, value: float, total: str | None) -> None:
        if value == int(value) if abs(value) <= MAX_COUNT else False:
            self.step = int(value)
            self.steps_of_epoch = int(total) if total and len(total) < 16 else self.steps_of_epoch

    def reading(self, at: float) -> Reading | None:
        """None: the line is not about the training."""
        if self.loss is None and self.step is None and not self.metrics:
            return None
        return Reading(
            channel=Channel.PRINTED,
            at=at,
            step=self.step,
            total_steps=self.total_steps,
            epoch=self.epoch,
            total_epochs=self.total_epochs,
            loss=self.loss,
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
            metrics=self.metrics or {},
        )


class _Bars:
    """Bars `45/100` that begin anew in each epoch become steps of the whole training."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._last = 0
        self._before = 0
        """Steps of the epochs before the present one."""

    def step(self, count: int, total: int, epoch: float | None) -> tuple[int | None, int | None]:
        """Steps completed, and the total if the bar is that of the whole training."""
        if count > total or total < 1 or total > MAX_COUNT:
            return None, None
        if self._total is not None and total != self._total:
            return None, None  # another bar: of an evaluation, a download
        self._total = total
        if epoch is not None and epoch == int(epoch):
            self._before = max(self._before, int(epoch) * total) if count >= self._last else self._before
        if count < self._last:
            self._before += total
        self._last = count
        return self._before + count, None if epoch is not None or self._before else total
