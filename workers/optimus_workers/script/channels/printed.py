"""What a training prints: the lines of common libraries and habits, read without knowing the script.

{'loss': 0.51, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.4}          transformers
Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.4it/s, v_num=0, train_loss=0.12]   Lightning, tqdm
epoch 2 step 30 loss 0.5        Step 10/1000, loss=0.1        Epoch [1/5], Step [100/600], Loss: 0.2
"""

from __future__ import annotations

import builtins
import re
from dataclasses import replace

from optimus_contract.readings.reading import Reading
from optimus_workers.script.channels.alone import Alone, Line
from optimus_workers.script.channels.epochs import Counted, EpochCounts
from optimus_workers.script.channels.names import in_english, normal, one_blank
from optimus_workers.script.channels.said import BEGINS, ENDS, NUMBER, WHOLE, Said, Tables, figures_of_json, whole
from optimus_workers.script.channels.searching import Search
from optimus_workers.script.channels.unread import MAX_CHARACTERS, has_figures

MAX_LINE_BYTES = 8192
"""Longer lines are data, not progress: they are skipped."""
LINES_PER_SECOND = 50
"""More are skipped, but for the newest one, so that a script that prints without end costs little; losses are samples
anyway ..."""
BURST_LINES = 400
"""... and so are those beyond this many at once, after less was printed: settings are printed all together."""
BYTES_PER_SECOND, BURST_BYTES = 32 * 1024, 64 * 1024
"""The same for the bytes of these lines."""
NEWEST_SECONDS = 0.1
"""Between two of the newest lines that are read in spite of that."""

FLOOD_LINES, FLOOD_SECONDS = 1_000, 10.0
"""The owner of a job that prints more lines a second for this time gets a note that most of them are not read."""

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_PAIR = re.compile(
    r"(?<![\w/.-])['\"]?([A-Za-z][\w/. -]{0,39}?)['\"]?"
    r"(?:\s?\([A-Za-z]{1,20}\))?(?:\s*[:=]\s*[\[(]?\s*|\s+[\[(]?\s*|\[\s*)"
    rf"['\"]?({NUMBER})(?![\w.]|%\|)(?:\s*(?:/|\bof\b)\s*({WHOLE})(?![\w.]))?",
    re.IGNORECASE,
)
"""`loss: 0.5`, `'loss': '0.5'`, `Step 5,000/10,000`, `Epoch [1/3]`, `Epoch(train) [1]`, `step 10 of 100`."""
_AT = re.compile(
    r"([A-Za-z][\w/. -]{0,39}?)\s+(?:at|after|for|in)\s+(step|iteration|iter|epoch)\s+"
    rf"({WHOLE})\s*[:=]\s*({NUMBER})(?![\w.])",
    re.IGNORECASE,
)
"""`Training loss at step 100: 3.3`."""
_BAR = re.compile(rf"\d{{1,3}}%\|[^|]*\|\s*({WHOLE})/({WHOLE})\s*\[([^\]]*)")
"""tqdm's, whose last group has its rate."""
_DRAWN_BAR = re.compile(rf"[━╸╺]\s*({WHOLE})/({WHOLE}){ENDS}")
"""Keras's and rich's: `━━━━━━ 10/40 0:00:03 • 0:00:09`."""
_BARE_BAR = re.compile(rf"{BEGINS}({WHOLE})\s*/\s*({WHOLE}){ENDS}")
_PAIR_OF_BARS = re.compile(rf"^\s*\[\s*({WHOLE})/({WHOLE})\]\s*\[\s*({WHOLE})/({WHOLE})\]")
"""`[0/5][30/1583] Loss_D: 1.7`."""
_LEADING_COUNT = re.compile(r"(?:^|[^:]\s)\[\s*(\d{1,9})\](?=\s)")
"""`[000120] loss 2.3`, also behind the time."""
_PAIR_OF_COUNTS = re.compile(rf"^\s*\[\s*({WHOLE}),\s*({WHOLE})\]")
"""`[2, 4000] loss: 1.7`: epoch and step of it."""
_LEADING_EPOCH = re.compile(r"^\s*(\d{1,9})/(\d{1,9})\s")
"""What stands before a bar: `1/100   2.05G   0.05`."""
_RATE_OF_STEPS = re.compile(
    r"(?<![A-Za-z])(?:it|steps?|batch(?:es)?|iters?|updates?)/s|s/(?:it|step|batch|iter|update)\b"
)
_TRAINS = re.compile(r"train|epoch|step|iter|batch|updat|optimi[sz]|fit|\bloss\b|\bep\b", re.IGNORECASE)
_PREPARES = re.compile(
    r"\b(?:load|download|build|encod|tokeni[sz]|cach|prepar|preprocess|process|extract|read|comput|generat|convert|index"
    r"|filter|scan|pars)\w*",
    re.IGNORECASE,
)
"""Before the training: `Loading training images`, and not `Training on cached features`."""
_RESUMES = re.compile(r"\b(?:resum|restor|continu|load)|\b(?:start|starting|begin|beginning)\b", re.IGNORECASE)
"""`Resuming from epoch 3`."""
_HEADS = re.compile(r"\W*(?:Epoch|EPOCH)\b")
"""`Epoch 3`, and not `epoch: 30` of the settings."""
_NAMED = re.compile(r"[A-Za-z]{3}")
"""A bar with a description."""
_TOKENIZER = re.compile(r"tokeni[sz]er|vocab", re.IGNORECASE)
"""Fitted or trained before the model is."""
_EVALUATES = re.compile(
    r"\b(?:val|valid|validat(?:e|ion|ing)|eval|evaluat(?:e|ion|ing)|test(?:ing|set)?|dev|predict(?:ion|ing)?|sanity)\b",
    re.IGNORECASE,
)
_LOSS_WORD = re.compile(r"loss|train", re.IGNORECASE)
_HEADING = re.compile(r"[^\d=]{3,60}")
"""`Test Error:`, `***** Running Evaluation *****`: what follows is of an evaluation, until a count comes."""
_EPOCHS_BAR = re.compile(r"\b(?:epochs?|epoche|époques?)\s*:?\s*$", re.IGNORECASE)
_LIGHTNING = re.compile(r"^ ?Epoch \d+/\d+ .*\d:\d\d • ")
"""Its bar names the last epoch, counted from 0: `Epoch 0/5 ━━━ 10/40 0:00:03 • 0:00:09 12.73it/s`."""
_ENDED = re.compile(r"stopped: \W?max_steps=(\d{1,9})\W? reached")
"""What Lightning says at its end: "`Trainer.fit` stopped: `max_steps=160` reached."."""
_FOR = re.compile(
    r"\b(?:train(?:ing)?|run(?:ning)?|fit(?:ting)?)(?: (?:the )?model)? "
    r"for (\d{1,9}) (epochs|steps|iterations|iters)\b",
    re.IGNORECASE,
)
"""`Starting training for 100 epochs`, and not `Warming up for 5 epochs`."""
_RANK = re.compile(r"^\[(?:rank)?\d+\]: ?")
"""Before each line of a process that PyTorch started."""
_TRACEBACK = "Traceback (most recent call last)"
_ERRORS = [name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)]
_ERROR = re.compile(rf"(?:\w+\.)*(?:{'|'.join(_ERRORS)})\b[:(]")
"""`ValueError: the checkpoint of step 90 is broken`."""
_FIGURE = re.compile(r"\d|nan|inf", re.IGNORECASE)
_EVALUATES_WORDS = ("val", "test", "dev", "predict", "sanity")
_AT_WORDS = (" at ", " after ", " for ", " in ")
"""One of these, in small letters, is in each line that the expression matches: most lines are spared it."""


WITH_COUNT = 2
"""After so many counts with a loss beside them, those with nothing beside them do not count."""
EPOCHS_WITHOUT = 2
"""Of a training that draws a bar in each epoch, one may be told between two bars."""
MOST_BESIDE = 8
"""Bars of other lengths after one that may have been of the preparation ..."""
MOST_BESIDE_READINGS = 1000
"""... and what is kept of each."""


class _Beside:
    """A bar beside the one that is followed, until it is known which of both is the training's."""

    def __init__(self, counts: EpochCounts) -> None:
        self.counts = counts
        self.readings: list[Reading] = []

    def add(self, reading: Reading | None) -> None:
        if reading is not None:
            self.readings.append(replace(reading, is_bare=False))
        if len(self.readings) > MOST_BESIDE_READINGS:
            del self.readings[1::2]


class Printed:
    """The output of one process, from its beginning. Never raises for any input to `feed`."""

    def __init__(
        self, search: Search | None = None, *, first_epoch: int | None = None, steps_per_epoch: float | None = None
    ) -> None:
        """`search`: for regular expressions of the user's own, with groups named like the fields of `Reading`; with
        it, nothing else is looked for. `first_epoch` and `steps_per_epoch`: see `EpochCounts`."""
        self._search = search
        self._buffer = b""
        self._skipping = False
        self._filled_at = self._newest_at = float("-inf")
        self._lines_left, self._bytes_left = float(BURST_LINES), float(BURST_BYTES)
        self._skipped: bytes | None = None
        """The newest line, if it was not read."""
        self._counts = EpochCounts(first_epoch, steps_per_epoch)
        self._alone = Alone()
        self._beside: dict[int, _Beside] = {}
        """Total → a bar that came after one which may have been of the preparation."""
        self._headings: set[float] = set()
        """Epochs that were named since the newest bar ..."""
        self._told_epochs: set[float] = set()
        """... and those of which a figure was told."""
        self._late: list[Reading] = []
        """What earlier lines say, as is known by the present one."""
        self._tables = Tables()
        self._follows_heading = False
        """The heading of an evaluation was printed, and no count since."""
        self._in_traceback = False
        """The lines of a traceback come, and the error that it ends with has not come yet."""
        self._follows_traceback = False
        """The newest line was of an error."""
        self.n_lines = 0
        """Lines printed so far."""
        self.unread: str | None = None
        """The newest line with figures none of which was recognised as a step or an epoch ..."""
        self.n_unread = 0
        """... and how many there were."""
        self.plain: str | None = None
        """The newest line of neither kind."""
        self.flood: int | None = None
        """Lines a second, of a process that prints far more than is read."""
        self._flood = (float("inf"), 0)
        """Since when lines are counted for that, and how many there were."""
        self._n_with_count = self._n_without = 0
        """Lines with a loss."""

    def feed(self, data: bytes, at: float) -> list[Reading]:
        """What the next bytes of output say; `at`: POSIX seconds."""
        block = self._whole_lines(data)
        if block is None:
            return []
        self._refill(at)
        n_new = block.count(b"\n") + 1
        self.n_lines += n_new
        self._look_at_flood(n_new, at)
        # Where lines of this block are read, the one before it comes first: read later, its count would go back.
        found = self._newest_skipped(at) if self._lines_left >= 1 and self._bytes_left > 0 else self.newest(at)
        n_lines = max(0, int(self._lines_left))
        lines = block.split(b"\n", n_lines)
        rest = lines.pop() if len(lines) > n_lines else b""
        for line in lines:
            if self._bytes_left <= 0:
                rest = rest or lines[-1]
                break
            found += self._of_line(line, at)
        if rest:
            self._skipped = rest.rstrip().rpartition(b"\n")[2]
            found += self.newest(at)
        return found

    def finish(self, at: float, *, is_whole: bool = True) -> list[Reading]:
        """The output has ended: what its newest line says, if that was skipped, and the last one, which has no end.

        `is_whole`: whether that is all that was to be printed. What a process that was killed had gathered in its own
        memory is lost, and of a line perhaps the first half was printed: "step 12" of "step 120".
        """
        found = self._newest_skipped(at)
        last, self._buffer = self._buffer, b""
        if self._skipping or not is_whole or not last.strip():
            return found
        self.n_lines += 1
        return found + self._of_line(last, at)

    def newest(self, at: float) -> list[Reading]:
        """The newest line that was skipped, unless one was read just now."""
        if self._newest_at <= at < self._newest_at + NEWEST_SECONDS:
            return []
        return self._newest_skipped(at)

    def _newest_skipped(self, at: float) -> list[Reading]:
        if self._skipped is None:
            return []
        line, self._skipped, self._newest_at = self._skipped, None, at
        return self._of_line(line, at)

    def _refill(self, at: float) -> None:
        seconds, self._filled_at = max(0.0, at - self._filled_at), at
        self._lines_left = min(BURST_LINES, self._lines_left + seconds * LINES_PER_SECOND)
        self._bytes_left = min(BURST_BYTES, self._bytes_left + seconds * BYTES_PER_SECOND)

    def _look_at_flood(self, n_new: int, at: float) -> None:
        since, n = self._flood
        if not since <= at < since + FLOOD_SECONDS:
            is_steady = since <= at < since + 2 * FLOOD_SECONDS  # else it printed much once, and then nothing
            if is_steady and n >= FLOOD_LINES * (at - since):
                self.flood = round(n / (at - since))
            since, n = at, 0
        self._flood = since, n + n_new

    def _of_line(self, line: bytes, at: float) -> list[Reading]:
        if len(line) > MAX_LINE_BYTES or not line.strip():
            return []
        self._lines_left -= 1
        self._bytes_left -= len(line)
        text = (_ANSI.sub(b"", line) if b"\x1b" in line else line).decode(errors="replace")
        if self._is_of_an_error(text):
            return []
        reading = self._read(text, at)
        has_count = reading is not None and (reading.step is not None or reading.epoch is not None)
        if not has_count and has_figures(text[:MAX_CHARACTERS]):
            self.n_unread, self.unread = self.n_unread + 1, text.strip()[:MAX_CHARACTERS]
        elif not has_count:
            self.plain = text.strip()[:MAX_CHARACTERS] or self.plain
        late, self._late = self._late, []
        return late if reading is None else [*late, reading]

    def _is_of_an_error(self, text: str) -> bool:
        """Whether a line is of a traceback, or the error at its end: steps that it names were not made."""
        text = _RANK.sub("", text)
        if self._in_traceback or self._follows_traceback:
            if text[:1].isspace():
                return True
            # The first line that is not indented names the error; of a message of several lines those that are follow.
            is_error, self._in_traceback = self._in_traceback, False
        else:
            is_error = False
        self._in_traceback = _TRACEBACK in text
        is_error = is_error or self._in_traceback or _ERROR.match(text) is not None
        self._follows_traceback = is_error
        return is_error

    def _whole_lines(self, data: bytes) -> bytes | None:
        """The lines that are complete now, without the last line's end; a carriage return ends one as well."""
        data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n")
        if end < 0:
            self._buffer += data
            if len(self._buffer) > MAX_LINE_BYTES:
                self._buffer, self._skipping = b"", True
            return None
        block, self._buffer = self._buffer + data[:end], data[end + 1 :]
        if self._skipping:
            block = block.partition(b"\n")[2]
        self._skipping = False
        if len(self._buffer) > MAX_LINE_BYTES:
            self._buffer, self._skipping = b"", True
        return block

    def _read(self, text: str, at: float) -> Reading | None:
        line = in_english(one_blank(text))
        if self._search is not None:
            return self._by_patterns(self._search, line, at)
        said = self._said(line, text)
        counted = self._counted(line, said, at)
        self._leave_out_averages(said, counted)
        found = said.reading(at, counted, self._counts.first_epoch)
        return replace(found, replaces=True) if found is not None and self._shows_other_things(said, counted) else found

    def _shows_other_things(self, said: Said, counted: Counted | None) -> bool:
        """Whether a line without a count shows that a bar, which has ended, was not of the training: epochs go on
        without one. A loss or an epoch in the midst of a bar shows that it is."""
        if counted is not None or (said.loss, said.epoch, said.metrics) == (None, None, None):
            return False
        if not self._counts.is_unsure:
            return False
        for counts in (self._counts, *(each.counts for each in self._beside.values())):
            counts.confirm()
        epoch = self._counts.epoch if said.epoch is None else said.epoch
        if epoch is not None:
            (self._headings if said.loss is None and not said.metrics else self._told_epochs).add(epoch)
        if max(len(self._headings), len(self._told_epochs)) < EPOCHS_WITHOUT or not self._counts.is_unsure:
            return False
        self._counts.forget()
        self._beside = {}
        return True

    def _said(self, line: str, text: str) -> Said:
        """The figures of a line, by their names. `text`: the line with all its blanks."""
        figures, before = figures_of_json(line)
        lowered = line.lower()
        evaluates = any(word in lowered for word in _EVALUATES_WORDS)
        said = Said(is_evaluation=evaluates and _is_of_evaluation(line if figures is None else before))
        if figures is not None:
            for name, figure in figures:
                said.add(name, figure, None)
            said.settle()
            return said
        if _FIGURE.search(line):
            self._add_named(said, line, lowered)
        said.settle()
        for cell in self._tables.feed(text):
            said.add(cell.name, cell.text, cell.total, is_alone=False)
        return said

    def _add_named(self, said: Said, line: str, lowered: str) -> None:
        """Figures that stand beside their names."""
        for pair in _PAIR.finditer(line):
            said.add(normal(pair[1]), pair[2], pair[3])
        if any(word in lowered for word in _AT_WORDS):
            for at in _AT.finditer(line):
                said.add(normal(at[1]), at[4], None)
                said.add(at[2].lower(), at[3], None)
        if "for " in lowered and (meant := _FOR.search(line)):
            said.add(f"total {meant[2].lower()}", meant[1], None)

    def _leave_out_averages(self, said: Said, counted: Counted | None) -> None:
        """Losses of evaluations that do not say so, and averages: where most losses come with a count, others are."""
        if said.is_evaluation or said.loss is None:
            return
        if counted is not None:
            self._n_with_count += 1
            return
        self._n_without += 1
        if self._n_with_count > 2 * self._n_without:
            said.loss = None

    def _counted(self, line: str, said: Said, at: float) -> Counted | None:
        """How far the training is, if the line says that."""
        if "max_steps=" in line and (ended := _ENDED.search(line)):
            return Counted(int(ended[1]))
        bar = _BAR.search(line) if "%|" in line else None
        before = "" if bar is None else line[: bar.start()]
        if bar is not None and said.epoch is None and (leading := _LEADING_EPOCH.match(before)):
            said.epoch, said.total_epochs = int(leading[1]), int(leading[2])
        self._without_names(line, said)
        self._follow_heading(line, said, bar is not None)
        if said.is_evaluation:
            return None
        if said.step is None and (said.epoch is not None or said.loss is not None):
            said.step = said.batch
        if bar is not None and said.step is None and _EPOCHS_BAR.search(before):
            said.epoch, said.total_epochs = whole(bar[1]), whole(bar[2])
            self._counts.epochs_bar(whole(bar[1]), whole(bar[2]))
            return None
        if said.total_epochs is not None and _LIGHTNING.search(line):
            said.total_epochs += 1
        if isinstance(said.epoch, int):
            is_alone = said.step is None and bar is None and not _BARE_BAR.search(line)
            if is_alone and self._is_to_come(line, said, said.epoch, at):
                said.epoch = None
        if isinstance(said.epoch, int):
            total_epochs = None if said.total_epochs is None else int(said.total_epochs)
            has_figure = said.loss is not None or bool(said.metrics)
            for counts in (self._counts, *(each.counts for each in self._beside.values())):
                counts.names(said.epoch, total_epochs, is_alone=is_alone, has_figure=has_figure)
        if said.step is not None:
            if said.end is None and (said.loss, said.epoch, said.metrics) == (None, None, None):
                return self._of_count_alone(line, said, said.step, at)
            return self._counts.count(said.step, said.end)
        rate = "" if bar is None else bar[3]
        if bar is None and not line.isascii() and (drawn := _DRAWN_BAR.search(line)):
            bar, before = drawn, line[: drawn.start()]
            if not _is_of_training(before, rate, said):
                bar = None
        elif bar is not None and not _is_of_training(before, rate, said):
            return None
        if bar is not None:
            return self._of_bar(whole(bar[1]), whole(bar[2]), before, said, at)
        if said.loss is None:
            return None if said.each is None else self._counts.settled(said.each)
        if "/" not in line:
            return None
        bare = [match for match in _BARE_BAR.finditer(line) if not said.is_epoch(whole(match[1]), whole(match[2]))]
        return self._counts.count(whole(bare[-1][1]), whole(bare[-1][2])) if bare else None

    def _is_to_come(self, line: str, said: Said, epoch: int, at: float) -> bool:
        """Whether an epoch that a line names is none that begins or ends: `epoch: 30` among the settings. One after the
        first, in a process of which nothing is known yet, is seldom where it goes on from a checkpoint."""
        if self._counts.first_epoch is not None or epoch <= 1 or _RESUMES.search(line) or _HEADS.match(line):
            return False
        if (said.total_epochs, said.loss, said.metrics) != (None, None, None):
            return False
        return self._alone.take(line, Line(epoch, None, said, at)) is None

    def _of_count_alone(self, line: str, said: Said, count: int, at: float) -> Counted | None:
        """A count without an end, a loss or an epoch: of the training if its words come again."""
        before = self._alone.take(line, Line(count, self._counts.epoch, said, at))
        if before is None or self._n_with_count >= WITH_COUNT:
            return None
        for each in before:
            reading = each.said.reading(each.at, self._counts.count(each.number, None), self._counts.first_epoch)
            self._late += [] if reading is None else [reading]
        return self._counts.count(count, None)

    def _of_bar(self, count: int, total: int, before: str, said: Said, at: float) -> Counted | None:
        """A bar. One without a name and a loss may count files before the training: another one that begins anew, or
        that losses are told in, shows that it did."""
        self._headings, self._told_epochs = set(), set()
        if said.loss is not None or said.epoch is not None or _NAMED.search(before):
            outer = next((each for each in self._beside.values() if each.counts.is_under_way), None)
            if outer is None or not self._counts.is_beside(total):
                return self._counts.count(count, total)
            return self._follow(outer, outer.counts.count(count, total))
        if not self._counts.is_beside(total):
            return self._counts.count(count, total, is_sure=self._counts.is_in_epoch)
        beside = self._beside.setdefault(total, _Beside(self._counts.beside()))
        counted = beside.counts.count(count, total, is_sure=False)
        if counted is not None and not counted.is_bare:
            return self._follow(beside, counted)
        beside.add(said.reading(at, counted, self._counts.first_epoch))
        if len(self._beside) > MOST_BESIDE:
            del self._beside[next(iter(self._beside))]
        return None

    def _follow(self, beside: _Beside, counted: Counted | None) -> Counted | None:
        """The bar that was followed was not of the training, and another one is, in which `counted` is."""
        self._counts, self._late, self._beside = beside.counts, beside.readings, {}
        if self._late:
            self._late[0] = replace(self._late[0], replaces=True)
            return counted
        return None if counted is None else replace(counted, replaces=True)

    def _without_names(self, line: str, said: Said) -> None:
        """Counts that stand in brackets at the beginning: `[2, 4000] loss`, `[0/5][30/100] loss`, `[120] loss`."""
        if said.step is not None or said.loss is None or "[" not in line:
            return
        if counts := _PAIR_OF_COUNTS.match(line):
            said.epoch, said.step = whole(counts[1]), whole(counts[2])
        elif bars := _PAIR_OF_BARS.match(line):
            said.epoch, said.total_epochs = whole(bars[1]), float(whole(bars[2]))
            said.step, said.end = whole(bars[3]), whole(bars[4])
        elif said.epoch is None and (count := _LEADING_COUNT.search(line)):
            said.step = whole(count[1])

    def _follow_heading(self, line: str, said: Said, has_bar: bool) -> None:
        if said.step is not None or said.epoch is not None or has_bar:
            self._follows_heading = False
        elif said.loss is None and _HEADING.fullmatch(line):
            evaluates = _EVALUATES.search(line)
            self._follows_heading = evaluates is not None or (self._follows_heading and not _TRAINS.search(line))
        elif self._follows_heading:
            said.make_evaluation()

    def _by_patterns(self, search: Search, line: str, at: float) -> Reading | None:
        said = Said()
        for groups in search(line):
            for name, text in groups.items():
                try:
                    value = float(text or "")
                except (TypeError, ValueError):
                    continue
                said.set(name, value)
        counted = None if said.step is None else Counted(said.step, said.total_steps)
        return said.reading(at, counted, None)


def _is_of_evaluation(line: str) -> bool:
    """Whether the losses and counts of a line are of an evaluation: `Test: [10/98] Loss 0.9`."""
    evaluates, trains = _EVALUATES.search(line), _LOSS_WORD.search(line)
    return evaluates is not None and (trains is None or evaluates.start() < trains.start())


def _is_of_training(before: str, rate: str, said: Said) -> bool:
    """Whether a bar counts steps, not files or examples: by its rate, and by what stands before it."""
    if said.loss is not None:
        return True
    if "/s" in rate and not _RATE_OF_STEPS.search(rate):
        return False
    if _EVALUATES.search(before) is not None:
        return False
    if not _NAMED.search(before):
        return True
    trains, prepares = _TRAINS.search(before), _PREPARES.search(before)
    if trains is None or _TOKENIZER.search(before):
        return False
    return prepares is None or said.epoch is not None or trains.start() < prepares.start()
