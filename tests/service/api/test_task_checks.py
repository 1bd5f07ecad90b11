"""Asking whether tasks can load some code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.service.clusters.cluster_harness import wait_until

from optimus_service.api.http.problems import Problem
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import TaskObjection


class Question:
    """Stands for the cluster; counts what it is asked."""

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, import_path: str, _working_directory: str | None) -> str | None:
        self.asked.append(import_path)
        assert self.may_answer.wait(30)
        return self.answer


def test_good_news_is_remembered_for_a_while() -> None:
    question, now = Question(), [0.0]
    checks = TaskChecks(question, clock=lambda: now[0])
    for _ in range(3):
        assert checks.why_not_loadable("m:f", None) is None
    assert question.asked == ["m:f"]
    assert checks.why_not_loadable("m:f", "/elsewhere") is None
    now[0] = 61.0
    assert checks.why_not_loadable("m:f", None) is None
    assert len(question.asked) == 3


def test_bad_news_is_not_remembered() -> None:
    question = Question("no such module")
    checks = TaskChecks(question)
    assert checks.why_not_loadable("m:f", None) == "no such module"
    question.answer = None
    assert checks.why_not_loadable("m:f", None) is None


def test_equal_questions_at_one_time_are_asked_once_and_others_do_not_wait() -> None:
    question = Question()
    checks = TaskChecks(question)
    question.may_answer.clear()
    with ThreadPoolExecutor(8) as pool:
        same = [pool.submit(checks.why_not_loadable, "m:f", None) for _ in range(6)]
        other = pool.submit(checks.why_not_loadable, "n:f", None)
        while len(question.asked) < 2:  # bounded by the test's time limit
            pass
        question.may_answer.set()
        assert [each.result(30) for each in [*same, other]] == [None] * 7
    assert sorted(question.asked) == ["m:f", "n:f"]


def test_only_so_many_answers_are_remembered() -> None:
    question = Question()
    checks = TaskChecks(question, clock=lambda: 0.0)
    for number in range(300):
        checks.why_not_loadable(f"m{number}:f", None)
    checks.why_not_loadable("m299:f", None)
    assert len(question.asked) == 300
    checks.why_not_loadable("m0:f", None)
    assert len(question.asked) == 301


def test_a_check_that_hangs_holds_no_turn() -> None:
    """A network file system whose server is away is waited for without end, and by a process that cannot be killed."""
    hanging, working = Question(), Question()
    hanging.may_answer.clear()
    asked = lambda path, directory: (hanging if directory == "/hangs" else working)(path, directory)  # noqa: E731
    checks = TaskChecks(asked, hangs_seconds=0.05)

    async def submissions() -> None:
        async def submit(path: str, directory: str) -> str | None:
            return await checks.in_turn(checks.why_not_loadable, path, directory)

        refused = await asyncio.gather(*(submit(f"m{n}:f", "/hangs") for n in range(20)), return_exceptions=True)
        assert all(isinstance(each, Problem) and each.status_code == 503 for each in refused)
        assert await submit("m:f", "/works") is None

    asyncio.run(submissions())
    assert len(hanging.asked) <= 4, "one thread per turn; the others are refused at once"
    hanging.may_answer.set()
    wait_until("the directory is looked at again", lambda: _loadable(checks, "m0:f", "/hangs"))


def test_slow_trials_leave_turns_for_other_submissions() -> None:
    """Six submissions whose tasks do not come back in time: nobody else waits for them longer than for a turn."""
    may_end = threading.Event()
    tried: list[object] = []

    def slow(job: Mapping[str, Any]) -> TaskObjection | None:
        tried.append(job["task"])
        assert may_end.wait(60)
        return TaskObjection("task", "no")

    checks = TaskChecks(Question(), slow, trial_wait_seconds=0.05)

    async def submissions() -> None:
        async def submit(name: str) -> TaskObjection | None:
            return await checks.in_turn(checks.why_not_trainable, {"task": name, "working_directory": None})

        slow_ones = [asyncio.create_task(submit(name)) for name in ("a:f", "a:f", "b:f", "b:f", "c:f", "d:f")]
        done, _ = await asyncio.wait([asyncio.create_task(submit("mine:f"))], timeout=30)
        assert [each.result() for each in done] == [None], "it goes untried; the job itself will report it"
        may_end.set()
        assert sum(each is not None for each in await asyncio.gather(*slow_ones)) == 2

    asyncio.run(submissions())
    assert len(tried) == 2


def _loadable(checks: TaskChecks, path: str, directory: str) -> bool:
    try:
        return checks.why_not_loadable(path, directory) is None
    except Problem:
        return False
