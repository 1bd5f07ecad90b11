"""Users of a world: they submit jobs, and cancel, pause, change, retry and delete them at bad moments."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from optimus_world.kernel import Process
from optimus_world.network import Wire
from optimus_world.replica import URL

if TYPE_CHECKING:
    from optimus_world.world import World

MEAN_SECONDS, CROWDED_MEAN_SECONDS = 420.0, 150.0
"""Between two acts."""
REPEAT_SECONDS = 5.0
_TRIES = 150
CAPPED = "capped"
"""The project whose quota may not be exceeded."""
CAPPED_CORES = 6
QUOTA = {"cpu": CAPPED_CORES, "memory_bytes": 2**34, "may_borrow": False}


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a user does."""

    number: int
    at: float
    kind: str
    job: int
    """Which: the number of the act that submitted it."""

    def words(self) -> str:
        return f"{self.kind} job of act {self.job}" if self.kind != "submit" else "submit a job"


_RATES = {"submit": 6, "cancel": 2, "pause": 1, "change": 2, "delete": 1, "resume": 1}
_CROWDED_RATES = _RATES | {"submit": 60}


def draw(seed: int, until: float, *, is_crowded: bool = False) -> list[Act]:
    """What users of a world do, by time, before `until` seconds. `is_crowded`: there are many more."""
    chance = random.Random(f"{seed} users")  # noqa: S311 - a simulation
    rates, mean = (_CROWDED_RATES, CROWDED_MEAN_SECONDS) if is_crowded else (_RATES, MEAN_SECONDS)
    acts, at = [Act(0, 5.0, "submit", 0), Act(1, 20.0, "submit", 1)], 30.0
    while at < until:
        kind = chance.choices(list(rates), list(rates.values()))[0]
        submitted = [act.number for act in acts if act.kind == "submit"]
        job = len(acts) if kind == "submit" else chance.choice(submitted[-4:])
        acts.append(Act(len(acts), at, kind, job))
        at += chance.expovariate(1.0 / mean)
    return acts


def specification(seed: int, number: int, *, is_crowded: bool = False) -> dict[str, Any]:
    """What the job of act `number` asks for."""
    if is_crowded:
        return _demanding(random.Random(f"{seed} demanding {number}"), number)  # noqa: S311 - a simulation
    chance = random.Random(f"{seed} job {number}")  # noqa: S311 - a simulation
    rule = chance.choice(("loss", "steps", "seconds"))
    convergence: dict[str, Any] = {"max_steps": chance.randrange(60, 260)}
    if rule == "loss":
        convergence |= {"loss_decrease": {"below": 0.02}}
    if rule == "seconds":
        convergence |= {"max_seconds": 10_000.0}
    return {
        "name": f"job-{number}",
        "project": chance.choice(("default", CAPPED)),
        "task": "models:train",
        "workers": {"max": chance.randrange(2, 6), "resources": {"cpu": 1, "memory_bytes": 2**28}},
        "servers": {"max": chance.randrange(1, 4), "resources": {"cpu": 1, "memory_bytes": 2**28}},
        "convergence": convergence,
        "checkpoint_seconds": 120.0,
    }


def _demanding(chance: random.Random, number: int) -> dict[str, Any]:
    """One of a crowd: gangs, deadlines, priorities, tasks of other sizes, budgets of time."""
    most = chance.randrange(1, 6), chance.randrange(1, 4)
    least = [chance.choice((1, 1, each)) for each in most]
    cores = chance.choice((1, 1, 2))
    while least[0] * cores + least[1] > CAPPED_CORES:
        least[0] -= 1
    convergence: dict[str, Any] = {"max_steps": chance.randrange(20, 260)}
    match chance.choice(("steps", "steps", "steps", "loss", "seconds")):
        case "loss":
            convergence |= {"loss_decrease": {"below": 0.02}}
        case "seconds":
            convergence = {"max_seconds": 10_000.0, "max_steps": 1000}
    spec: dict[str, Any] = {
        "name": f"job-{number}",
        "project": chance.choice(("default", "default", CAPPED)),
        "task": "models:train",
        "workers": {"min": least[0], "max": most[0], "resources": {"cpu": cores, "memory_bytes": 2**28}},
        "servers": {"min": least[1], "max": most[1], "resources": {"cpu": 1, "memory_bytes": 2**28}},
        "convergence": convergence,
        "checkpoint_seconds": 120.0,
        "priority": chance.choice((1, 1, 1, 4, 10)),
    }
    if chance.random() < 0.3:
        spec["deadline_seconds"] = chance.choice((600, 1800, 3600, 7200))
    return spec


class Users:
    """Carries acts out on a world, and repeats what was not answered, as the command line does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = Process("users")
        transport = Wire(world.network, self._process)
        self._client = httpx.Client(base_url=URL, transport=transport, timeout=10.0)
        self.job_ids: dict[int, str] = {}
        """Of acknowledged submissions, by the number of their act."""

    def begin(self, act: Act) -> None:
        """Let a user act."""
        self._spawn(f"act {act.number}", lambda: self._act(act))

    def call(self, method: str, path: str, body: Any = None) -> None:
        """Let somebody make one more call, repeated until it is answered."""
        self._spawn(f"{method} {path}", lambda: self._answered(method, path, body))

    def _spawn(self, name: str, act: Callable[[], object]) -> None:
        self._world.kernel.spawn(self._process, name, lambda: _drop(act()))

    def _act(self, act: Act) -> None:
        if act.kind == "submit":
            self._submit(act)
            return
        job_id = self.job_ids.get(act.job)
        if job_id is None:
            return
        self._world.say(f"act {act.number}: {act.kind} {job_id}")
        self._world.books.asked(act.kind, job_id)
        path = f"/v1/jobs/{job_id}"
        match act.kind:
            case "cancel" | "pause" | "resume":
                answer = self._answered("POST", f"{path}/{act.kind}")
            case "change":
                answer = self._answered("PATCH", path, {"priority": 2, "workers": {"max": 3}})
            case _:
                answer = self._answered("DELETE", path)
        if answer is not None and answer.is_success:
            self._world.books.told(act.kind, job_id)

    def _submit(self, act: Act) -> None:
        script = self._world.script
        body = specification(script.seed, act.number, is_crowded=script.is_crowded)
        key = {"Idempotency-Key": f"act-{act.number}"}
        answer = self._answered("POST", "/v1/jobs", body, key)
        if answer is None:
            return
        if not answer.is_success:
            self._world.broken("submissions are taken", f"{answer.status_code} {answer.text}")
            return
        self.job_ids[act.number] = answer.json()["id"]
        self._world.say(f"act {act.number}: submitted {self.job_ids[act.number]}")
        self._world.books.submitted(f"act-{act.number}", self.job_ids[act.number])

    def _answered(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response | None:
        """The answer, once there is one that is not to be repeated; None: nobody answers for long."""
        content = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **(headers or {})} if content is not None else headers or {}
        for _ in range(_TRIES):
            try:
                answer = self._client.request(method, path, content=content, headers=sent)
            except httpx.RequestError:
                self._world.kernel.sleep(REPEAT_SECONDS)
                continue
            if answer.status_code < 500 and answer.status_code != 429:
                return answer
            self._world.kernel.sleep(REPEAT_SECONDS)
        return None


def _drop(_value: object) -> None:
    """A thread has no value."""
