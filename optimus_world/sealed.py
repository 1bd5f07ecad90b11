"""Keeps everything out that differs from run to run: random names, threads of the web framework, the log."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import anyio.to_thread
import structlog

from optimus_service.loop import loop
from optimus_world.kernel import Kernel, Signal

T = TypeVar("T")


@contextmanager
def sealed(seed: int, kernel: Kernel) -> Iterator[None]:
    """While a simulation with this seed runs: names are drawn from the seed, and calls of threads are made in place."""
    chance = random.Random(f"{seed} names")  # noqa: S311 - a simulation

    def token_hex(n_bytes: int | None = None) -> str:
        return chance.randbytes(n_bytes or 32).hex()

    def choice(items: Sequence[T]) -> T:
        return chance.choice(items)

    async def in_place(call: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
        return call(*arguments)

    async def waited_for(answer: Future[T]) -> T:
        done = Signal(kernel)
        answer.add_done_callback(lambda _: done.set())
        done.wait()
        return answer.result()

    before = structlog.get_config()
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, cache_logger_on_first_use=False)
    try:
        with (
            mock.patch.object(secrets, "token_hex", token_hex),
            mock.patch.object(secrets, "choice", choice),
            mock.patch.object(anyio.to_thread, "run_sync", in_place),
            mock.patch.object(asyncio, "wrap_future", waited_for),
            # Looks of a process at something that seldom changes are rarer than real ones, so that hours are cheap.
            mock.patch.object(loop, "_FOLLOW_SECONDS", 15.0),
            mock.patch.object(loop, "WATCH_SECONDS", 5.0),
            mock.patch.object(random, "uniform", chance.uniform),
        ):
            yield
    finally:
        structlog.configure(**before)
