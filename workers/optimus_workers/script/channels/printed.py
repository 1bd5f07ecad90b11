"""What a training prints: the lines of common libraries and habits, read without knowing the script.

{'loss': 0.51, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.4}          transformers
Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.4it/s, v_num=0, train_loss=0.12]   Lightning, tqdm
epoch 2 step 30 loss 0.5        Step 10/1000, loss=0.1        Epoch [1/5], Step [100/600], Loss: 0.2
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimus_contract.limits import MAX_COUNT
from optimus_workers.script.channels.epochs import Counted, EpochCounts
from optimus_workers.script.reading import Channel, Reading

MAX_LINE_BYTES = 8192
"""Longer lines are data, not progress: they are skipped."""
MAX_LINES_PER_SECOND = 200
"""More are skipped, so that a script that prints without end costs little; losses are samples anyway."""
MAX_BYTES_PER_SECOND = 32 * 1024
"""So are lines after so many bytes, unless the second is a new one."""

_SPACES = re.compile(r"\s+")
"""One stands for many: expressions that skip them would take minutes for a line of nothing else."""
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = (
    r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf(?:inity)?"
)
_WHOLE = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d{1,15}"
_PAIR = re.compile(
    r"(?<![\w/.-])['\"]?([A-Za-z][\w/. -]{0,39}?)['\"]?"
    r"(?:\s?\([A-Za-z]{1,20}\))?(?:\s*[:=]\s*[\[(]?\s*|\s+[\[(]?\s*|\[\s*)"
    rf"['\"]?({_NUMBER})(?![\w.]|%\|)(?:\s*(?:/|\bof\b)\s*({_WHOLE})(?![\w.]))?",
    re.IGNORECASE,
)
"""`loss: 0.5`, `'loss': '0.5'`, `Step 5,000/10,000`, `Epoch [1/3]`, `Epoch(train) [1]`, `step 10 of 100`."""
_AT = re.compile(
    r"([A-Za-z][\w/. -]{0,39}?)\s+(?:at|after|for|in)\s+(step|iteration|iter|epoch)\s+"
    rf"({_WHOLE})\s*[:=]\s*({_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
"""`Training loss at step 100: 3.3`."""
_BAR = re.compile(rf"\d{{1,3}}%\|[^|]*\|\s*({_WHOLE})/({_WHOLE})\s*\[([^\]]*)")
"""tqdm's, whose last group has its rate."""
_BARE_BAR = re.compile(rf"(?<![\d/.,-])({_WHOLE})\s*/\s*({_WHOLE})(?![\d/,.-])")
_PAIR_OF_COUNTS = re.compile(rf"^\s*\[\s*({_WHOLE}),\s*({_WHOLE})\]")
"""`[2, 4000] loss: 1.7`: epoch and step of it."""
_LEADING_EPOCH = re.compile(r"^\s*(\d{1,9})/(\d{1,9})\s")
"""What stands before a bar: `1/100   2.05G   0.05`."""
_RATE_OF_STEPS = re.compile(
    r"(?<![A-Za-z])(?:it|steps?|batch(?:es)?|iters?|updates?)/s|s/(?:it|step|batch|iter|update)\b"
)
_TRAINS = re.compile(r"train|epoch|step|iter|batch|updat|optimi[sz]|fit|\bloss\b|\bep\b", re.IGNORECASE)
_EVALUATES = re.compile(
    r"\b(?:val|valid|validat(?:e|ion|ing)|eval|evaluat(?:e|ion|ing)|test(?:ing|set)?|dev|predict(?:ion|ing)?|sanity)\b",
    re.IGNORECASE,
)
_LOSS_WORD = re.compile(r"loss|train", re.IGNORECASE)
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
_BATCH = frozenset({"batch", "batches", "minibatch", "mini batch"})
"""Counted like steps beside an epoch, a loss or their end: `batch 32` alone may be a size."""
_RATE = frozenset({"learning rate", "lr", "learning rate/lr", "lr 0"})
_NORM = frozenset({"grad norm", "gradient norm", "gnorm", "grad norm total"})
_EVALUATED = ("val", "valid", "validation", "eval", "test", "dev")
_FIGURES = frozenset({"accuracy", "acc", "f1", "auc", "perplexity", "ppl", "bleu", "top1", "top5", "miou", "map"})


def _normal(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())


class Printed:
    """The output of one process, from its beginning. Never raises for any input to `feed`."""

    def __init__(
        self, patterns: Sequence[str] = (), *, first_epoch: int | None = None, steps_per_epoch: float | None = None
    ) -> None:
        """`patterns`: regular expressions of the user's own, with groups named like the fields of `Reading`; with
        them, nothing else is looked for. `first_epoch` and `steps_per_epoch`: see `EpochCounts`."""
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._buffer = b""
        self._skipping = False
        self._second, self._n_lines, self._n_bytes = 0, 0, 0
        self._counts = EpochCounts(first_epoch, steps_per_epoch)

    def feed(self, data: bytes, at: float) -> list[Reading]:
        """What the next bytes of output say; `at`: POSIX seconds."""
        found = []
        for line in self._lines(data):
            if int(at) != self._second:
                self._second, self._n_lines, self._n_bytes = int(at), 0, 0
            self._n_lines += 1
            if self._n_lines > MAX_LINES_PER_SECOND or self._n_bytes > MAX_BYTES_PER_SECOND:
                continue
            self._n_bytes += len(line)
            reading = self._read(_SPACES.sub(" ", _ANSI.sub(b"", line).decode(errors="replace")), at)
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
        said = _Said(is_evaluation=_is_of_evaluation(line))
        for match in _PAIR.finditer(line):
            said.add(_normal(match[1]), match[2], match[3])
        for match in _AT.finditer(line):
            said.add(_normal(match[1]), match[4], None)
            said.add(match[2].lower(), match[3], None)
        counted = self._counted(line, said)
        return said.reading(at, counted, self._counts.first_epoch)

    def _counted(self, line: str, said: _Said) -> Counted | None:
        """How far the training is, if the line says that."""
        bar = _BAR.search(line)
        before = "" if bar is None else line[: bar.start()]
        if bar is not None and said.epoch is None and (leading := _LEADING_EPOCH.match(before)):
            said.epoch, said.total_epochs = int(leading[1]), int(leading[2])
        if said.step is None and said.loss is not None and (counts := _PAIR_OF_COUNTS.match(line)):
            said.epoch, said.step = _whole(counts[1]), _whole(counts[2])
        if said.is_evaluation:
            return None
        if said.step is None and (said.epoch is not None or said.loss is not None):
            said.step = said.batch
        if isinstance(said.epoch, int):
            self._counts.names(said.epoch, None if said.total_epochs is None else int(said.total_epochs))
        if said.step is not None:
            return self._counts.count(said.step, said.end)
        if bar is not None:
            return self._counts.count(_whole(bar[1]), _whole(bar[2])) if _is_of_training(before, bar[3], said) else None
        if said.loss is None:
            return None
        bare = [match for match in _BARE_BAR.finditer(line) if not said.is_epoch(_whole(match[1]), _whole(match[2]))]
        return self._counts.count(_whole(bare[0][1]), _whole(bare[0][2])) if bare else None

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
        counted = None if said.step is None else Counted(said.step, said.total_steps)
        return said.reading(at, counted, None)


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _is_of_evaluation(line: str) -> bool:
    """Whether the losses and counts of a line are of an evaluation: `Test: [10/98] Loss 0.9`."""
    evaluates, trains = _EVALUATES.search(line), _LOSS_WORD.search(line)
    return evaluates is not None and (trains is None or evaluates.start() < trains.start())


def _is_of_training(before: str, rate: str, said: _Said) -> bool:
    """Whether a bar counts steps, not files or examples: by its rate, and by what stands before it."""
    if "/s" in rate and not _RATE_OF_STEPS.search(rate):
        return False
    if said.loss is not None:
        return True
    is_other = _EVALUATES.search(before) is not None or (
        re.search(r"[A-Za-z]{3}", before) is not None and not _TRAINS.search(before)
    )
    return not is_other


@dataclass(slots=True)
class _Said:
    """What one line says."""

    is_evaluation: bool = False
    step: int | None = None
    batch: int | None = None
    """A number of batches without an end."""
    total_steps: int | None = None
    end: int | None = None
    """Of `step`: how many there are, in an epoch or in all."""
    epoch: float | None = None
    """A whole number if it is written as one."""
    total_epochs: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    metrics: dict[str, float] | None = None

    def add(self, name: str, text: str, total: str | None) -> None:
        """One `name value` or `name value/total` of a line."""
        text = text.replace(",", "")
        value = float(text)
        words = name.split("/")[-1].split(" ")
        if name in _LOSS or (words[-1] == "loss" and not set(name.replace("/", " ").split()) & set(_EVALUATED)):
            if self.is_evaluation:
                self.metrics = {**(self.metrics or {}), "val_loss": value}
            elif self.loss is None or name in _LOSS:
                self.loss = value
        elif name in _STEP or words[-1] in _STEP or (words[-1] in _BATCH and total is not None):
            self._count(value, total)
        elif name in _BATCH and text.isdigit() and len(text) < 16:
            self.batch = int(text)
        elif words[-1] in _EPOCH:
            if 0 <= value <= MAX_COUNT:
                self.epoch = int(text) if text.isdigit() else value
            self.total_epochs = float(_whole(total)) if total else self.total_epochs
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
            self.end = _whole(total) if total else self.end

    def is_epoch(self, count: int, total: int) -> bool:
        """Whether `count/total` is the epoch that the line names."""
        return self.total_epochs is not None and (count, total) == (self.epoch, self.total_epochs)

    def reading(self, at: float, counted: Counted | None, first_epoch: int | None) -> Reading | None:
        """None: the line is not about the training."""
        if self.loss is None and counted is None and not self.metrics:
            return None
        return Reading(
            channel=Channel.PRINTED,
            at=at,
            step=None if counted is None else counted.step,
            total_steps=None if counted is None else counted.total_steps,
            steps_per_epoch=None if counted is None else counted.steps_per_epoch,
            corrects=counted is not None and counted.corrects,
            first_epoch=first_epoch,
            epoch=self.epoch,
            total_epochs=self.total_epochs,
            loss=self.loss,
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
            metrics=self.metrics or {},
        )
