"""Where long polls wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from typing import Any

import pytest
from tests.service.api.api_harness import until

from optimus_service.push import long_poll as long_poll
from optimus_service.push.long_poll import MAX_WAITERS_OF_JOB, LongPolls, TooManyWaiters
from optimus_service.store.errors import DatabaseNotAvailable

LONG = 60.0
"""A time limit that no test waits for."""


class Generations:
    """Stands for the database; counts how often it is asked."""

    def __init__(self, **generations: int) -> None:
        self.generations = generations
        self.available = True
        self.asked = 0

    def __call__(self, job_ids: Collection[str]) -> dict[str, int]:
        self.asked += 1
        if not self.available:
            raise DatabaseNotAvailable("switched off")
        return {job_id: self.generations[job_id] for job_id in job_ids if job_id in self.generations}


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(limited())


async def until_waiting(long_polls: LongPolls, n_waiters: int = 1) -> None:
    await until(lambda: long_polls.n_waiters >= n_waiters)


def test_a_notification_from_another_thread_wakes_those_it_is_news_for() -> None:
    async def test() -> None:
        long_polls = LongPolls(Generations())
        waiting = [asyncio.create_task(long_polls.wait("a", after, LONG)) for after in (1, 2, 5)]
        other = asyncio.create_task(long_polls.wait("b", 1, LONG))
        await until_waiting(long_polls, 4)
        thread = threading.Thread(target=long_polls.notify, args=("a", 3))
        thread.start()
        assert await waiting[0] == 3
        assert await waiting[1] == 3
        thread.join()
        assert long_polls.n_waiters == 2
        long_polls.close()
        assert [await waiting[2], await other] == [5, 1]

    run(test())


def test_the_timeout_answers_with_what_the_caller_knew() -> None:
    async def test() -> None:
        long_polls = LongPolls(Generations(a=1))
        assert await long_polls.wait("a", 7, 0.001) == 7
        assert long_polls.n_waiters == 0

    run(test())


def test_changes_of_other_replicas_are_seen_in_the_database() -> None:
    async def test() -> None:
        database = Generations(a=1)
        long_polls = LongPolls(database, poll_seconds=0.001)
        running = asyncio.create_task(long_polls.run())
        waiting = [asyncio.create_task(long_polls.wait("a", 1, LONG)) for _ in range(8)]
        await until_waiting(long_polls, 8)
        database.generations["a"] = 2
        assert set(await asyncio.gather(*waiting)) == {2}
        running.cancel()

    run(test())


def test_the_database_is_asked_once_a_period_and_not_at_all_without_waiters() -> None:
    async def test() -> None:
        database = Generations(a=1)
        long_polls = LongPolls(database, poll_seconds=0.001)
        running = asyncio.create_task(long_polls.run())
        for _ in range(100):  # turns of the event loop without anybody waiting
            await asyncio.sleep(0)
        assert database.asked == 0
        waiting = [asyncio.create_task(long_polls.wait(f"job-{n}", 1, LONG)) for n in range(200)]
        await until_waiting(long_polls, 200)
        await until(lambda: database.asked > 0)
        assert database.asked < 200
        long_polls.close()
        await asyncio.gather(*waiting)
        running.cancel()

    run(test())


def test_a_database_that_comes_back_is_asked_again() -> None:
    async def test() -> None:
        database = Generations(a=2)
        database.available = False
        long_polls = LongPolls(database, poll_seconds=0.001)
        running = asyncio.create_task(long_polls.run())
        waiting = asyncio.create_task(long_polls.wait("a", 1, LONG))
        await until(lambda: database.asked >= 3)
        assert not waiting.done()
        database.available = True
        assert await waiting == 2
        running.cancel()

    run(test())


def test_a_closed_hub_lets_nobody_wait() -> None:
    async def test() -> None:
        long_polls = LongPolls(Generations())
        waiting = asyncio.create_task(long_polls.wait("a", 1, LONG))
        await until_waiting(long_polls)
        thread = threading.Thread(target=long_polls.close)
        thread.start()
        assert await waiting == 1
        thread.join()
        assert await long_polls.wait("a", 1, LONG) == 1
        long_polls.close()

    run(test())


def test_a_waiter_that_goes_away_is_forgotten() -> None:
    async def test() -> None:
        long_polls = LongPolls(Generations())
        waiting = asyncio.create_task(long_polls.wait("a", 1, LONG))
        await until_waiting(long_polls)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert long_polls.n_waiters == 0
        long_polls.notify("a", 9)

    run(test())


def test_waiters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(long_poll, "MAX_WAITERS", 1)
        long_polls = LongPolls(Generations())
        waiting = asyncio.create_task(long_polls.wait("a", 1, LONG))
        await until_waiting(long_polls)
        with pytest.raises(TooManyWaiters):
            await long_polls.wait("a", 1, LONG)
        long_polls.close()
        await waiting

    run(test())


def test_one_job_does_not_take_the_places_of_others() -> None:
    """A coordinator whose connections break asks again and again; who asked last is still there."""

    async def test() -> None:
        long_polls = LongPolls(Generations())
        asked: list[asyncio.Task[int]] = []
        while len(asked) < 3 * MAX_WAITERS_OF_JOB - 1:
            asked.append(asyncio.create_task(long_polls.wait("a", 1, LONG)))
            await until(lambda: long_polls.n_waiters == min(len(asked), MAX_WAITERS_OF_JOB))
        assert await asyncio.gather(*asked[:-MAX_WAITERS_OF_JOB]) == [1] * (2 * MAX_WAITERS_OF_JOB - 1)
        assert not any(each.done() for each in asked[-MAX_WAITERS_OF_JOB:])
        asked.append(asyncio.create_task(long_polls.wait("b", 1, LONG)))
        await until_waiting(long_polls, MAX_WAITERS_OF_JOB + 1)
        long_polls.notify("a", 2)
        assert await asyncio.gather(*asked[-MAX_WAITERS_OF_JOB - 1 : -1]) == [2] * MAX_WAITERS_OF_JOB
        long_polls.close()
        await asked[-1]

    run(test())


def test_a_notification_without_an_event_loop_does_no_harm() -> None:
    long_polls = LongPolls(Generations())
    long_polls.notify("a", 1)
    asyncio.run(long_polls.wait("a", 1, 0.001))  # the event loop that it knew is closed now
    long_polls.notify("a", 2)
    long_polls.close()
