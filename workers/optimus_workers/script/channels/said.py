"""What one printed line says, gathered figure by figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.reading import Announced, Channel, Reading
from optimus_workers.script.channels.epochs import Counted
from optimus_workers.script.channels.names import Meaning, meaning, normal

NUMBER = (
    r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf(?:inity)?"
)
WHOLE = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d{1,15}"
BEGINS, ENDS = r"(?<![\d/.,-])(?<![\d.][eE])(?<![\d.][eE][-+])", r"(?![\d/,.-]|[eE][-+]?\d)"
"""Where a count that stands by itself begins and ends: not in the middle of `1e30`, or of a date."""
_ALONE = re.compile(NUMBER, re.IGNORECASE)
_PLURAL = re.compile(r"(?:^| )(?:steps|iters|iterations|updates|epochs)$")
_ALL_STEPS = frozenset({"num iters", "num iterations", "n iters", "n iterations"})
"""Settings that tell the end. `num_steps` may be of each rollout, or of a sequence."""
MAX_JSON_FIGURES = 100


def whole(text: str) -> int:
    return int(text.replace(",", ""))


def figures_of_json(line: str) -> tuple[list[tuple[str, str]] | None, str]:
    """The figures of a line that is a JSON object, or ends with one, with their paths as names; and what is before.

    Of an object that stands where a figure is expected, as in `"loss": {"a": 1}`, no part is that figure. But
    `"loss": {"train": 0.5, "val": 0.6}` names losses.
    """
    start, line = line.find("{"), line.rstrip(" ,")  # one of a list
    if start < 0 or '"' not in line or not line.endswith("}"):
        return None, ""
    try:
        document = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None, ""
    return list(_flat(document, "", is_part=False))[:MAX_JSON_FIGURES], line[:start]


def _flat(document: dict[str, Any], path: str, *, is_part: bool) -> Iterator[tuple[str, str]]:
    """`is_part`: the document is, or is in, the value of a name that has a meaning itself."""
    for name, value in document.items():
        whole = f"{path}{name}"
        if isinstance(value, dict) and path.count("/") < 3:
            yield from _flat(value, f"{whole}/", is_part=is_part or meaning(normal(whole)) is not None)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            text = str(value)
            if len(text) < 40 and _ALONE.fullmatch(text) and not (is_part and not _names_a_whole(name, whole)):
                yield normal(whole), text


def _names_a_whole(name: str, path: str) -> bool:
    """Whether a part of something that has a meaning is what that means: of `loss` its `train`, `total` or `val`."""
    match meaning(normal(path)):
        case Meaning.LOSS | Meaning.EVALUATED_LOSS:
            return meaning(normal(name)) is None
        case kind:
            return kind is Meaning.FIGURE


@dataclass(slots=True)
class Said:
    """What one line says."""

    is_evaluation: bool = False
    step: int | None = None
    batch: int | None = None
    """A number of batches without an end."""
    total_steps: int | None = None
    end: int | None = None
    """Of `step`: how many there are, in an epoch or in all."""
    is_called_step: bool = False
    """`step 30/100`, and not `batch 30/100` or a bar, which are of an epoch wherever one is named."""
    epoch: float | None = None
    """A whole number if it is written as one."""
    total_epochs: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    metrics: dict[str, float] | None = None
    each: int | None = None
    """Steps of an epoch, printed where it begins: `Epoch 3 | Batch size: 32 | Steps: 50`."""
    all_steps: int | None = None
    """How many there are, printed beside any count."""
    all_epochs: int | None = None
    _is_plain_loss: bool = False
    _plural: dict[str, tuple[float, str | None]] | None = None
    """Counts of `steps` or `epochs` without an end: a setting, unless a loss comes with them."""
    _setting: float | None = None
    """A number of all steps, if no loss comes with it."""
    _is_whole_step: bool = False
    """`step` is written as a whole number: `"update": 0.0` of fairseq counts parts of epochs."""

    def add(self, name: str, text: str, total: str | None, *, is_alone: bool = True) -> None:
        """One `name value` or `name value/total` of a line; of a table if it is not alone."""
        text = text.replace(",", "")
        value = float(text)
        match meaning(name):
            case Meaning.LOSS | Meaning.KIND_OF_LOSS as kind if not self.is_evaluation:
                is_plain = kind is Meaning.LOSS
                if self.loss is None or (is_plain and not self._is_plain_loss):
                    self.loss, self._is_plain_loss = value, is_plain
            case Meaning.LOSS | Meaning.KIND_OF_LOSS:
                self._figure("val loss", value)
            case Meaning.EVALUATED_LOSS | Meaning.FIGURE:
                self._figure(name, value)
            case Meaning.STEP | Meaning.EPOCH as kind if is_alone and total is None and _PLURAL.search(name):
                self._plural = {**(self._plural or {}), kind.name: (value, text)}
                self._setting = value if name in _ALL_STEPS else self._setting
            case Meaning.STEP:
                self._count(value, text, total)
                self.is_called_step = True
            case Meaning.BATCH if total is not None:
                self._count(value, text, total)
            case Meaning.BATCH if text.isdigit() and len(text) < 16:
                self.batch = int(text)
            case Meaning.EPOCH:
                self._in_epoch(value, text, total)
            case Meaning.PASS if total is not None:
                self._in_epoch(value, text, total)
            case Meaning.TOTAL_STEPS:
                self.all_steps = _count_of(value) or self.all_steps
            case Meaning.TOTAL_EPOCHS:
                self.all_epochs = _count_of(value) or self.all_epochs
            case Meaning.LEARNING_RATE:
                self.learning_rate = value
            case Meaning.GRADIENT_NORM:
                self.gradient_norm = value

    def settle(self) -> None:
        """All of a line's figures are added, but for tables: decide what its counts of `steps` and `epochs` are."""
        for kind, (value, text) in (self._plural or {}).items():
            if kind == Meaning.EPOCH.name:
                if self.loss is None:
                    self.all_epochs = _count_of(value)
                else:
                    self._in_epoch(value, text or "", None)
            elif self.loss is not None:
                self._count(value, text or "", None)
            elif self.epoch is not None:
                self.each = _count_of(value)
        if self._setting is not None and (self.loss, self.step, self.epoch) == (None, None, None):
            self.all_steps = _count_of(self._setting) or self.all_steps
        self._plural = self._setting = None

    def make_evaluation(self) -> None:
        """The line is of an evaluation, as an earlier line says."""
        self.is_evaluation = True
        if self.loss is not None:
            self._figure("val loss", self.loss)
            self.loss = None

    def set(self, name: str, value: float) -> None:
        """A named group of a pattern."""
        if name in ("step", "total_steps"):
            if value == value and abs(value) <= MAX_COUNT:
                setattr(self, name, int(value))
        elif name in ("epoch", "total_epochs", "loss", "learning_rate", "gradient_norm"):
            setattr(self, name, value)
        else:
            self.metrics = {**(self.metrics or {}), name: value}

    def _figure(self, name: str, value: float) -> None:
        self.metrics = {**(self.metrics or {}), name.replace(" ", "_"): value}

    def _in_epoch(self, value: float, text: str, total: str | None) -> None:
        if self.epoch not in (None, value):
            return  # `Epoch 7/10 loss 0.5 (best 0.3 at epoch 6)`
        if 0 <= value <= MAX_COUNT:
            self.epoch = int(text) if text.isdigit() else value
        self.total_epochs = float(whole(total)) if total else self.total_epochs

    def _count(self, value: float, text: str, total: str | None) -> None:
        if self._is_whole_step:
            return  # `step 80/100 loss 0.4 | best 0.3 at step 60`
        if value == int(value) if abs(value) <= MAX_COUNT else False:
            self.step, self._is_whole_step = int(value), text.isdigit()
            self.end = whole(total) if total else self.end

    def is_epoch(self, count: int, total: int) -> bool:
        """Whether `count/total` is the epoch that the line names."""
        return (
            self.total_epochs is not None
            and count == self.epoch
            and total in (self.total_epochs, self.total_epochs - 1)
        )

    @property
    def announced(self) -> Announced | None:
        """The planned length of the training."""
        if self.all_steps is None and self.all_epochs is None:
            return None
        return Announced(self.all_steps, self.all_epochs)

    def reading(self, at: float, counted: Counted | None, first_epoch: int | None) -> Reading | None:
        """None: the line is not about the training."""
        if (self.loss, counted, self.announced, self.epoch) == (None, None, None, None) and not self.metrics:
            return None
        return Reading(
            channel=Channel.PRINTED,
            at=at,
            step=None if counted is None else counted.step,
            total_steps=None if counted is None else counted.total_steps,
            steps_per_epoch=None if counted is None else counted.steps_per_epoch,
            steps_into_epoch=None if counted is None else counted.steps_into_epoch,
            may_be_whole=counted is not None and counted.may_be_whole and self.is_called_step,
            is_bare=counted is not None and counted.is_bare,
            replaces=counted is not None and counted.replaces,
            went_on=counted is not None and counted.went_on,
            corrects=counted is not None and counted.corrects,
            announced=self.announced,
            first_epoch=first_epoch,
            epoch=self.epoch,
            total_epochs=self.total_epochs,
            loss=self.loss,
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
            metrics=self.metrics or {},
        )


def _count_of(value: float) -> int | None:
    return int(value) if 0 < value <= MAX_COUNT and value == int(value) else None


# --- figures that are printed as tables: a line of names, and lines of figures below ---------------------------------
# epoch     train_loss  valid_loss  accuracy  time          fastai, and many others
# 0         2.301000    2.200000    0.150000  00:12
#
# |    loss                 | 0.025        |               one figure a line
#
# 99 2134.5                                               a count and the loss, without names

MAX_COLUMNS = 64
_BETWEEN = re.compile(r"\||\s{2,}|\t")
_CELL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)(?:/(\d{1,15}))?", re.IGNORECASE)
_NAME = re.compile(r"#|[A-Za-z][\w./() -]{0,39}")
_ROW = re.compile(rf"\|\s*([A-Za-z][\w/ -]{{0,39}}?)\s*\|\s*({NUMBER})\s*\|", re.IGNORECASE)
_BARE = re.compile(r"(\d{1,9})[\s,:]+([-+]?\d+\.\d+(?:[eE][-+]?\d+)?)")
_SHORT = {"#": "step", "e": "epoch"}
"""Columns of spaCy."""
_LOSSES = (Meaning.LOSS, Meaning.KIND_OF_LOSS, Meaning.EVALUATED_LOSS)
_ALIKE = 2
"""So many equal distances between counts without names make them counts."""


class Figure(NamedTuple):
    """A figure of a table, with the normal name of its column."""

    name: str
    text: str
    total: str | None = None
    """Of a count: its end, as in `3/10`."""


class Tables:
    """The tables of one output. `feed` takes every line, blanks as they were printed."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._count, self._distance, self._alike = 0, 0, 0

    def feed(self, line: str) -> list[Figure]:
        """What the line says as a part of a table."""
        line = line.strip()
        if row := _ROW.fullmatch(line):
            name = normal(row[1])
            return [] if name == "iterations" else [Figure(name, row[2])]  # stable-baselines: not of the optimizer
        values = [cell.strip() for cell in line.split(",", MAX_COLUMNS)]  # empty ones have their place
        is_row = len(values) == len(self._names)
        if not is_row and (bare := _BARE.fullmatch(line)):
            return self._bare(bare[1], bare[2])
        cells = [cell.strip() for cell in _BETWEEN.split(line, MAX_COLUMNS) if cell.strip()]
        if len(cells) < 3:
            cells = values
        if len(cells) < 2:
            return []
        if all(_NAME.fullmatch(cell) for cell in cells):
            self._header(cells)
            return []
        return self._figures(cells)

    def _header(self, cells: list[str]) -> None:
        names = [normal(cell) for cell in cells]
        names = [_SHORT.get(name, name) for name in names]
        meanings = {meaning(name) for name in names}
        if meanings & set(_LOSSES) and meanings & {Meaning.EPOCH, Meaning.STEP}:
            self._names = names

    def _figures(self, cells: list[str]) -> list[Figure]:
        names = self._names
        if not names or len(cells) < len(names) or not _CELL.fullmatch(cells[0]):
            return []
        found = [(name, _CELL.fullmatch(cell)) for name, cell in zip(names, cells, strict=False)]
        return [Figure(name, match[1], match[2]) for name, match in found if match is not None]

    def _bare(self, count: str, figure: str) -> list[Figure]:
        """`99 2134.5`, where the counts of lines are at equal distances."""
        distance = int(count) - self._count
        self._alike = self._alike + 1 if distance == self._distance > 0 else 0
        self._count, self._distance = int(count), distance
        return [Figure("step", count), Figure("loss", figure)] if self._alike >= _ALIKE else []
