"""Structured logs: one line per event, for people (`console`) or machines (`json`). They go to stderr.

::

    any thread, the event loop ──record──▶ queue (bounded) ──▶ one thread: render, cut, hide secrets ──▶ stderr

Whoever logs only appends to the queue: neither a long traceback nor a reader of stderr that has stopped reading delays
it. Lines that find the queue full are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from optimus_service.process.job_tokens import PREFIX as JOB_TOKEN_PREFIX
from optimus_service.process.user_tokens import PREFIX as USER_TOKEN_PREFIX
from optimus_service.settings import Settings

_QUEUE_LINES = 10_000
"""Lines that wait to be written: some seconds of a busy service, some megabytes."""
_FLUSH_SECONDS = 2.0
"""How long the end of the service waits for lines to be written; a reader that has stopped must not hold it up."""
_MAX_TEXT = 4_000
"""Characters of one value."""
_MAX_EVENT = 16_000
"""Characters of all values of one line together."""
_MAX_TRACEBACK = 8_000
"""Characters of a traceback for people: forty places or so."""
_MAX_MESSAGE = 1_000
"""Characters of one place or one exception in it."""
_MAX_FRAMES = 20
"""Places of a traceback for machines."""
_SAME_LINES = 10
_SAME_SECONDS = 60.0
"""So many lines with the same words a library may write in so many seconds: clients cause some of them at will."""
_MAX_KINDS = 1_000
"""Different words that are counted at one time."""
_LOUD = ("uvicorn", "alembic")
"""Libraries of which only warnings are shown: the API logs requests, the server its own start and stop."""

_BEARER = re.compile(r"(?i)(bearer\s+)[^\s\"',;)\]}]+")
_TOKEN = re.compile(rf"{JOB_TOKEN_PREFIX}[0-9a-f]{{16,}}|{USER_TOKEN_PREFIX}[0-9a-f]{{12}}-[0-9a-f]{{16,}}")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_HIDDEN = "***"


@contextmanager
def logging_to_stderr(settings: Settings) -> Iterator[None]:
    """Send our own and the libraries' log lines to stderr while the block runs; what waits is written at its end."""
    handler = _QueueHandler(Queue(_QUEUE_LINES))
    handler.addFilter(_Repetitions())
    listener = _Listener(handler, _StderrHandler(_formatter(settings)))
    root = logging.getLogger()
    handlers, configuration = root.handlers[:], structlog.get_config()
    levels = [(logger, logger.level) for logger in (root, *(logging.getLogger(name) for name in _LOUD))]
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *_ABOUT_LINE,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _hold_exception,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.handlers[:] = handlers
        for logger, level in levels:
            logger.setLevel(level)
        structlog.configure(**configuration)


# --- what a line says ------------------------------------------------------------------------------------------------

_ABOUT_LINE: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
]


def _formatter(settings: Settings) -> logging.Formatter:
    return _SecretHidingFormatter(
        _secrets(settings),
        foreign_pre_chain=[*_ABOUT_LINE, _stamp],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(settings)],
    )


def _rendering(settings: Settings) -> list[Processor]:
    if settings.log_format == "json":
        # Without local variables: they are long, and may be secrets.
        transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=_MAX_FRAMES)
        return [structlog.processors.ExceptionRenderer(transformer), _bounded, structlog.processors.JSONRenderer()]
    return [
        _bounded,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
    ]


def _stamp(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The moment at which a library's line was made, not that at which it is written."""
    made = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = made.isoformat().replace("+00:00", "Z")
    return event


def _hold_exception(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Take hold of the exception being handled: the thread that renders the line handles none."""
    if event.get("exc_info") is True:
        event["exc_info"] = sys.exc_info()
    return event


def _bounded(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Cut values that are long, and leave out what is beyond `_MAX_EVENT` characters."""
    left = _MAX_EVENT

    def cut(value: Any) -> Any:
        nonlocal left
        if isinstance(value, str):
            text = value[: max(min(_MAX_TEXT, left), 0)]
            left -= len(text)
            return text if len(text) == len(value) else f"{text}… ({len(value)} characters)"
        if isinstance(value, dict):
            return {cut(str(name)): cut(item) for name, item in value.items() if left > 0}
        if isinstance(value, list | tuple):
            return [cut(item) for item in value if left > 0]
        return value

    return {name: value if name == "exc_info" else cut(value) for name, value in event.items()}


def _write_traceback(target: TextIO, exc_info: ExcInfo) -> None:
    """As Python prints it, without local variables."""
    parts = (_shortened(part.rstrip("\n"), _MAX_MESSAGE) for part in traceback.format_exception(*exc_info))
    target.write("\n" + _shortened("\n".join(parts), _MAX_TRACEBACK))


def _shortened(text: str, length: int) -> str:
    """Its begin and its end, when it has more than `length` characters."""
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters are left out)\n{text[-half:]}"


class _SecretHidingFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders a line; secrets that got into a message (of a library, of an exception) are replaced."""

    def __init__(self, secrets: list[str], **options: Any) -> None:
        super().__init__(**options)
        self._known = re.compile("|".join(map(re.escape, secrets))) if secrets else None

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        line = _TOKEN.sub(_HIDDEN, _BEARER.sub(rf"\1{_HIDDEN}", line))
        line = _URL_PASSWORD.sub(rf"\1{_HIDDEN}", line)
        return line if self._known is None else self._known.sub(_HIDDEN, line)


def _secrets(settings: Settings) -> list[str]:
    given = (settings.token, settings.previous_token, settings.secret, settings.previous_secret)
    return [secret.get_secret_value() for secret in given if secret is not None] + list(settings.keys)


# --- how it gets out -------------------------------------------------------------------------------------------------


class _QueueHandler(QueueHandler):
    """Appends records as they are and never waits. The thread that writes them renders them, too."""

    def __init__(self, records: Queue[logging.LogRecord | None]) -> None:
        super().__init__(records)
        self.records = records
        self._lock = threading.Lock()
        self._n_dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.records.put_nowait(record)
        except Full:
            with self._lock:
                self._n_dropped += 1

    def take_dropped(self) -> int:
        """How many lines were dropped since this was asked last."""
        with self._lock:
            n_dropped, self._n_dropped = self._n_dropped, 0
        return n_dropped


class _Listener(QueueListener):
    """The thread that writes. Its end waits for so long at most: a daemon, so the process does not wait for it."""

    def __init__(self, source: _QueueHandler, target: logging.Handler) -> None:
        super().__init__(source.records, target)
        self._source = source

    def handle(self, record: logging.LogRecord) -> None:
        if n_dropped := self._source.take_dropped():
            words = f"{n_dropped} log lines were dropped: they came faster than they could be written"
            lost = logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (), None)
            super().handle(lost)
        super().handle(record)

    def stop(self) -> None:
        deadline = time.monotonic() + _FLUSH_SECONDS
        try:
            self._source.records.put(None, timeout=_FLUSH_SECONDS)
        except Full:
            return
        if self._thread is not None:
            self._thread.join(max(deadline - time.monotonic(), 0.0))


class _StderrHandler(logging.Handler):
    """Writes to the file descriptor: Python's stderr has a lock, which a write that never ends would hold at exit."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock, which `logging` takes at exit. Only the one thread that writes calls this."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        # Nobody reads stderr any more: there is nowhere else to say so.
        with suppress(OSError):
            _write_all(2, (self._rendered(record) + "\n").encode("utf-8", "backslashreplace"))

    def _rendered(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001 - one bad line must not end the thread that writes all others
            return f"a log line of {record.name} cannot be rendered: {type(error).__name__}"


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # somebody who shares it does not want writes to wait
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


class _Repetitions(logging.Filter):
    """Lets a library's line through `_SAME_LINES` times in `_SAME_SECONDS`; the next one says how many were not."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):  # our own
            return True
        key = record.name, str(record.msg)[:100]
        with self._lock:
            begun, n_lines = self._seen.get(key, (record.created, 0))
            over = not 0 <= record.created - begun < _SAME_SECONDS
            if over or key not in self._seen:
                self._forget()
            self._seen[key] = (record.created, 1) if over else (begun, n_lines + 1)
        if over and n_lines > _SAME_LINES:
            record.msg = f"{record.msg} ({n_lines - _SAME_LINES} more of these were not logged)"
        return over or n_lines < _SAME_LINES

    def _forget(self) -> None:
        if len(self._seen) >= _MAX_KINDS:
            self._seen.clear()
