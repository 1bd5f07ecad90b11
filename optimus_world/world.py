"""A cluster, two replicas of the service, users and accidents: everything that one seed says, in virtual time.

::

    users ─▶ network ─▶ replicas (the real service) ─▶ database (a real SQLite file)
               ▲              │
    tasks ─────┘◀── machines ─┘          faults strike each of them; the books check after every event
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx

from optimus_scheduler.model import Node, Plan, Resources, Role, Snapshot
from optimus_service.clusters.base import Cluster
from optimus_service.metrics.registry import Metrics
from optimus_service.push.long_poll import POLL_SECONDS
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.database.engine import upgrade
from optimus_world import database as databases
from optimus_world import faults, release, users
from optimus_world.books import Books, Violation
from optimus_world.cluster import ClusterSeen, Machines, RunningTask
from optimus_world.coordinator import CoordinatorAgent
from optimus_world.database import Database
from optimus_world.faults import Fault, Storm
from optimus_world.kernel import Crashed, Fiber, Kernel, Process
from optimus_world.network import Network, Peer, Wire
from optimus_world.release import ClusterOfRelease, Release
from optimus_world.replica import Host, Replica, make_settings
from optimus_world.sealed import sealed
from optimus_world.simulated import Simulated, trace_of
from optimus_world.tasks import ServerAgent, TaskAgent, WorkerAgent
from optimus_world.users import Act, Users

if TYPE_CHECKING:
    from optimus_world.control_plane import ControlPlane

BEGIN = 1_750_000_000.0
"""POSIX seconds."""
NODES = tuple(f"node-{number}" for number in range(3))
CAPACITY = Resources(8.0, 2**34)
POLICY = "optimus"
EQUAL = "decisions equal the simulator's"
KUBERNETES_EACH = 4
"""Of so many seeds one is a world with Kubernetes."""
STORM_PART = 0.75
"""Of the hours asked for: accidents happen; in the rest none do."""
LIVELY_SECONDS = 5 * 3600.0
"""Once nothing goes wrong any more, all jobs end within so long: the longest needs about two hours on its own."""
_SILENT_SECONDS = 30.0
"""A task on a lost node is missed after so long."""


class Broken(Exception):
    """An invariant was broken: the simulation stops."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What `helm upgrade` does: the database first, while the earlier release is at work, then one replica after the
    other."""

    revision: str
    """Of the repository: the earlier release."""
    at: float
    """Seconds since the beginning, when the database is brought up to date ..."""
    replaced: tuple[tuple[float, str], ...]
    """... and when each replica is replaced."""

    @classmethod
    def drawn(cls, seed: int, revision: str, until: float) -> Upgrade:
        """What this seed says."""
        chance = random.Random(f"{seed} upgrade")  # noqa: S311 - a simulation
        hosts = chance.sample(faults.HOSTS, len(faults.HOSTS))
        times = [until * chance.uniform(*part) for part in ((0.1, 0.2), (0.2, 0.4), (0.8, 0.9))]
        return cls(revision, times[0], tuple(zip(times[1:], hosts, strict=True)))

    def handed_over(self, seed: int, number: int) -> Iterator[Fault]:
        """While both releases are at work, the lead goes from one to the other and back: whoever has it stands still
        for longer than its lease, within a round. `number`: of the first."""
        chance = random.Random(f"{seed} hand-over")  # noqa: S311 - a simulation
        (begin, host), (end, other) = self.replaced
        for turn in range(4):
            at = begin + (turn + chance.random()) / 4 * (end - begin)
            who = (other, host)[turn % 2]
            yield Fault(number + turn, at, "pause", who, chance.uniform(60.0, 150.0), "begin", 0, 0.0, "round")


@dataclass(frozen=True, slots=True)
class Script:
    """All that happens to a world from outside."""

    seed: int
    hours: float
    faults: tuple[Fault, ...]
    acts: tuple[Act, ...]
    on_kubernetes: bool = False
    """Whether tasks are pods of a model of a control plane, asked by the real backend."""
    upgrade: Upgrade | None = None
    """From an earlier release, which both replicas are of at first."""
    calm_after: float | None = None
    """Hours after which nothing goes wrong any more; None: `STORM_PART` of all."""
    is_crowded: bool = False
    """Whether many users ask for more than there is: deadlines, gangs, priorities."""

    @classmethod
    def drawn(cls, seed: int, hours: float, earlier: str | None = None, *, is_crowded: bool = False) -> Script:
        """What this seed says. `earlier`: the release that it begins with, by its revision of the repository."""
        storm, on_kubernetes = 3600.0 * hours * STORM_PART, seed % KUBERNETES_EACH == 0 and earlier is None
        struck = faults.draw(seed, storm, NODES, on_kubernetes=on_kubernetes)
        upgrade = None if earlier is None else Upgrade.drawn(seed, earlier, storm)
        struck += () if upgrade is None else upgrade.handed_over(seed, len(struck))
        acts = tuple(users.draw(seed, storm, is_crowded=is_crowded))
        return cls(seed, hours, tuple(struck), acts, on_kubernetes, upgrade, is_crowded=is_crowded)

    @property
    def is_a_trace(self) -> bool:
        """Whether jobs come and nothing else happens, which is what the simulator simulates, too.

        On Kubernetes pods of coordinators take room, of which it knows nothing.
        """
        is_plain = not self.faults and not self.on_kubernetes and self.upgrade is None
        return is_plain and all(act.kind == "submit" for act in self.acts)

    @property
    def storm_seconds(self) -> float:
        return 3600.0 * (self.hours * STORM_PART if self.calm_after is None else self.calm_after)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a world."""

    script: Script
    seconds: float
    """That were simulated."""
    n_events: int
    n_commits: int
    n_calls: int
    n_jobs: int
    n_samples: int
    violation: Violation | None
    story: tuple[str, ...]
    digest: str
    """Equal for equal histories."""


class World:
    """One simulation. Use `run`."""

    def __init__(self, script: Script, directory: Path, kernel: Kernel) -> None:
        self.seed = script.seed
        self.script = script
        self.kernel = kernel
        self.story: list[str] = []
        self.violation: Violation | None = None
        self.clock_offsets = {"a": 0.0, "b": 0.0, "database": 0.0}
        self.apart: set[str] = set()
        """Nodes whose tasks reach no other node."""
        self.slow_start_seconds = 0.0
        self.armed_at_cluster: dict[str, list[Callable[[Process], None]]] = {}
        self.replicas: dict[str, Replica] = {}
        self._lives: dict[str, int] = {}
        self._holders: dict[str, str] = {}
        """Names of holders of the lease by name of the process."""
        self._agents: dict[str, TaskAgent | CoordinatorAgent] = {}
        self._directory = directory
        self._earlier = None if script.upgrade is None else release.load(script.upgrade.revision)
        self.metrics = [Metrics] if self._earlier is None else [Metrics, self._earlier.metrics]
        self.database = Database(self.kernel, self._new_database(), lambda: self.wall("database"))
        self.machines = Machines(
            self.kernel, {name: Node(name, CAPACITY) for name in NODES}, self._run_task, self.say, exited=self._exited
        )
        self.plane = self._control_plane() if script.on_kubernetes else None
        chance = random.Random(f"{script.seed} network")  # noqa: S311 - a simulation
        self.network = Network(self.kernel, chance, self._peers, node_of=self._node_of)
        self.books = Books(self, self.broken)
        self.users = Users(self)
        self.simulated = self._simulated() if script.is_a_trace else None
        self.storm = Storm(self, script.seed)
        self.database.wrote = self.books.wrote
        self.database.is_in_round = self._is_in_round
        self.database.jobs_changed = self._jobs_changed
        self._hubs_look_at = -1.0
        self.machines.started = self.books.started
        self.network.answered = self.books.answered
        self.kernel.failed = self._failed
        self.kernel.after_event = self._after_event

    # --- the story ---------------------------------------------------------------------------------------------------

    def say(self, what: str) -> None:
        """A line of the history."""
        seconds = int(self.kernel.now)
        self.story.append(f"{seconds // 3600:3d}:{seconds // 60 % 60:02d}:{self.kernel.now % 60:06.3f}  {what}")

    def broken(self, invariant: str, what: str) -> None:
        """Note the first invariant that was broken; the simulation stops after the event."""
        if self.violation is None:
            self.violation = Violation(self.kernel.now, invariant, what)
            self.say(f"BROKEN: {invariant}: {what}")

    def unexpected(self, thread: str) -> None:
        """A thread has survived an error that is a mistake in code, which it is handling now."""
        self.broken("no error is unexpected", f"{thread}: {sys.exception()!r}")

    def _failed(self, fiber: Fiber, error: Exception) -> None:
        self.broken("no thread dies", f"{fiber.process.name}/{fiber.name}: {type(error).__name__}: {error}")
        self.story.extend(traceback.format_exception(error))

    def _after_event(self) -> None:
        self.books.check()
        if self.violation is not None:
            raise Broken

    # --- what happens ------------------------------------------------------------------------------------------------

    def live(self, until: float | None = None) -> None:
        """The accidents, and then the calm in which everything has to come to its end. Raises `Broken`.

        `until`: the end, so many seconds after the beginning, whatever goes on then.
        """
        for host in faults.HOSTS:
            self.start(host)
        self.users.call("PUT", f"/v1/projects/{users.CAPPED}", users.QUOTA)
        for fault in self.script.faults:
            self.kernel.at(fault.at, partial(self.storm.strike, fault))
        if self.script.upgrade is not None:
            self.kernel.at(self.script.upgrade.at, self._upgrade)
            for at, host in self.script.upgrade.replaced:
                self.kernel.at(at, partial(self._replace, host))
        for act in self.script.acts:
            self.kernel.at(act.at, partial(self.users.begin, act))
        self._run_until(self.script.storm_seconds if until is None else until)
        if until is None:
            self._calm()

    def _run_until(self, end: float) -> None:
        while self.kernel.now < end:
            self.kernel.run(min(self.kernel.now + 900.0, end))
            self.books.check_slowly()
            self._after_event()

    def _calm(self) -> None:
        self.database.armed.clear()
        self.armed_at_cluster.clear()
        self._run_until(self.kernel.now + max([0.0, *(fault.end - self.kernel.now for fault in self.script.faults)]))
        self.database.armed.clear()
        self.armed_at_cluster.clear()
        self.database.fails_to_commit = self.database.loses_answer = 0
        self.say("nothing goes wrong from here on")
        self.books.calm_since = self.kernel.now
        end = self.kernel.now + LIVELY_SECONDS
        while self.books.unfinished() and self.kernel.now < end:
            # Again each time: a pause that a stopped replica still held may come after the first.
            for job_id in self.books.unfinished():
                self.users.call("POST", f"/v1/jobs/{job_id}/resume")
            self._run_until(min(self.kernel.now + 900.0, end))
        for job_id in self.books.unfinished():
            self.broken("a job that can run ends", f"{job_id} has not ended {LIVELY_SECONDS / 3600:.0f} h later")
        self._after_event()
        self._run_until(max(self.kernel.now + 1300.0, self.script.storm_seconds / STORM_PART))

    # --- replicas ----------------------------------------------------------------------------------------------------

    def wall(self, host: str) -> float:
        """What the clock of this machine shows."""
        return BEGIN + self.kernel.now + self.clock_offsets[host]

    def now(self) -> float:
        """POSIX seconds by a clock that nobody sets."""
        return BEGIN + self.kernel.now

    def start(self, host: str) -> None:
        """Start the service on this machine, unless it runs."""
        if host in self.replicas:
            return
        self._lives[host] = self._lives.get(host, 0) + 1
        where = Host(host, faults.HOSTS.index(host) + 1, lambda: self.wall(host))
        if self._earlier is not None:
            replica = self._earlier_replica(self._earlier, where)
        else:
            kubernetes = self.plane.settings if self.plane is not None else KubernetesSettings()
            settings = make_settings(**self._settings(), kubernetes=kubernetes)
            make_cluster = partial(self._cluster_of, host)
            replica = Replica(
                self.kernel, where, self._lives[host], settings, self.database, make_cluster, self._decided
            )
        self.replicas[host] = replica
        self._holders[replica.process.name] = replica.holder.name
        self.say(f"{replica.process.name} starts{'' if self._earlier is None else ', of the earlier release'}")

    def _settings(self) -> dict[str, Any]:
        return {
            "data_directory": self._directory,
            "database_url": self.database.url,
            "secret": "of the simulation, not a secret",
            "policy": POLICY,
            "round_seconds": 120.0,
            "learning_round_seconds": 60.0,
            "debounce_seconds": 2.0,
            "lease_seconds": 45.0,
            "cluster": "local" if self.plane is None else "kubernetes",
        }

    def _control_plane(self) -> ControlPlane:
        from optimus_world.control_plane import ControlPlane  # its client takes a second to import

        jobs = str(self._directory / "jobs")
        settings = KubernetesSettings(jobs_directory=jobs, starts_at_once=1, keep_pods_seconds=600.0)
        plane = ControlPlane(self.kernel, self.machines, self.now, settings, self.say)
        task_exited = self.machines.exited

        def exited(running: RunningTask) -> None:
            task_exited(running)
            plane.exited(running)

        self.machines.exited = exited
        return plane

    def _cluster_of(self, host: str, process: Process, clock: Callable[[], float]) -> Cluster:
        strike = partial(self._strike_at_cluster, host)
        return ClusterSeen(self.machines, strike) if self.plane is None else self.plane.cluster(process, clock, strike)

    def crash(self, process: Process, seconds: float) -> None:
        """The process is killed; the service is started again so much later."""
        host = process.name.partition("#")[0]
        self.say(f"{process.name} is killed")
        self.kernel.kill(process)
        if host in self.replicas and self.replicas[host].process is process:
            del self.replicas[host]
            self.kernel.after(seconds, lambda: self.start(host))

    def stop(self, host: str, seconds: float) -> None:
        """An orderly end, and a new start."""
        replica = self.replicas.get(host)
        if replica is not None:
            replica.loop.stop(0.0)
            replica.retention.stop(0.0)
            self.kernel.after(5.0, lambda: self.crash(replica.process, seconds))

    def _simulated(self) -> Simulated:
        is_crowded = self.script.is_crowded
        jobs = {act.at: users.specification(self.seed, act.number, is_crowded=is_crowded) for act in self.script.acts}
        quota = {users.CAPPED: users.QUOTA}
        trace = trace_of(self._directory.parent / "trace.jsonl", list(self.machines.all_nodes.values()), quota, jobs)
        return Simulated(trace, POLICY)

    # --- an upgrade --------------------------------------------------------------------------------------------------

    def _new_database(self) -> Path:
        scratch, earlier = self._directory.parent, self._earlier
        if earlier is None:
            return databases.new_file(self._directory, scratch)
        with earlier:
            return databases.new_file(self._directory, scratch, earlier.engine)

    def _upgrade(self) -> None:
        """Bring the database up to date, once nobody is in the middle of writing."""
        if self.database.is_written:
            self.kernel.after(0.01, self._upgrade)
            return
        upgrade(self.database.url)
        self._earlier = None  # which refuses to start on this database
        self.say("the database is brought up to date")

    def _replace(self, host: str) -> None:
        """By the present release, once the database is that one's."""
        if self._earlier is not None:
            self.kernel.after(1.0, partial(self._replace, host))
        else:
            self.stop(host, 1.0)

    def _earlier_replica(self, earlier: Release, where: Host) -> Replica:
        """As `Replica`, of another release."""
        settings = earlier.replica.make_settings(**self._settings())

        def make_cluster(process: Process, clock: Callable[[], float]) -> Any:
            return ClusterOfRelease(self._cluster_of(where.name, process, clock), earlier, self.kernel)

        opens = SimpleNamespace(open=earlier.open(self.database))
        self.kernel.use(earlier)
        found: Replica = earlier.replica.Replica(
            self.kernel, where, self._lives[where.name], settings, opens, make_cluster
        )
        self.kernel.use(None)
        found.process.modules = earlier
        return found

    def _decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """A round is over."""
        if self.simulated is not None:
            for difference in self.simulated.differences(snapshot, plan, self.books.name_of):
                self.broken(EQUAL, difference)

    def _peers(self) -> list[Peer]:
        return [Peer(each.process, each.app) for _, each in sorted(self.replicas.items()) if each.process.is_alive]

    def _strike_at_cluster(self, host: str) -> None:
        fiber = self.kernel.current()
        waiting = self.armed_at_cluster.get(host, [])
        if fiber is None or fiber.name != "loop":
            return
        while waiting:
            waiting.pop(0)(fiber.process)
            if not fiber.process.is_alive:
                raise Crashed
        self.kernel.sleep(self.slow_start_seconds)

    def _is_in_round(self, process: Process) -> bool:
        replica = self.replicas.get(process.name.partition("#")[0])
        return replica is not None and replica.process is process and replica.loop.is_in_round

    def _jobs_changed(self) -> None:
        """Long polls of every replica see it within the time of one query."""
        if self._hubs_look_at <= self.kernel.now:
            self._hubs_look_at = self.kernel.now + POLL_SECONDS
            self.kernel.at(self._hubs_look_at, self._hubs_look)

    def _hubs_look(self) -> None:
        generations = self.books.generations()
        for _, replica in sorted(self.replicas.items()):
            # An earlier release calls it its hub.
            polls = vars(replica).get("long_polls") or vars(replica)["hub"]
            self.kernel.at(self.kernel.now, partial(polls.look, generations), replica.process)

    def holder_of(self, process: Process) -> str:
        """By what name this process claims the lease."""
        return self._holders.get(process.name, "")

    def name_of(self, holder: str) -> str:
        """The process that claims it by this name."""
        return next((name for name, each in self._holders.items() if each == holder), holder or "nobody")

    def cut_off(self, node: str) -> None:
        """Tasks of this node do not reach the service any more."""
        self.network.cut_off.add(node)

    # --- tasks -------------------------------------------------------------------------------------------------------

    def _run_task(self, running: RunningTask) -> None:
        name = running.launch.key.name
        match running.launch.key.role:
            case Role.COORDINATOR:
                self._agents[name] = CoordinatorAgent(self, running)
            case Role.SERVER:
                self._agents[name] = ServerAgent(self, running)
            case Role.WORKER:
                self._agents[name] = WorkerAgent(self, running)

    def _exited(self, running: RunningTask) -> None:
        """Its connections end: at once, or, with its node, once it is missed."""
        agent = self._agents.pop(running.launch.key.name, None)
        is_lost = running.task.exit_code is None
        if isinstance(agent, CoordinatorAgent):
            self.kernel.after(_SILENT_SECONDS if is_lost else 0.0, agent.hang_up)
        elif agent is not None and agent.link is not None:
            link = agent.link
            if is_lost:
                self.kernel.after(
                    _SILENT_SECONDS, lambda: link.coordinator.silence(agent.name), link.coordinator.process
                )
            else:
                link.end()

    def is_cut(self, node: str, other: str) -> bool:
        return node != other and not self.apart.isdisjoint((node, other))

    def set_apart(self, node: str, *, is_apart: bool) -> None:
        """Cut the node off from all others, or no more. It reaches the service all the time."""
        self.apart.add(node) if is_apart else self.apart.discard(node)
        for _, agent in sorted(self._agents.items()):
            if isinstance(agent, TaskAgent) and agent.link is not None:
                agent.link.cut() if is_apart else agent.link.heal()

    def coordinator_of(self, job_id: str) -> CoordinatorAgent | None:
        found = [
            self._agents[each.launch.key.name]
            for each in self.machines.alive()
            if each.launch.key.job_id == job_id and each.launch.key.role is Role.COORDINATOR
        ]
        listening = [each for each in found if isinstance(each, CoordinatorAgent) and each.is_listening]
        return listening[-1] if listening else None

    def agent(self, task: str) -> TaskAgent | None:
        found = self._agents.get(task)
        return found if isinstance(found, TaskAgent) else None

    def leave(self, running: RunningTask, code: int) -> None:
        self.machines.exit(running.launch.key, code)

    def transport(self, sender: Process) -> httpx.BaseTransport:
        return Wire(self.network, sender)

    def end(self) -> None:
        """Let go of everything."""
        for replica in list(self.replicas.values()):
            self.kernel.kill(replica.process)
        self.kernel.after_event = lambda: None
        self.kernel.run(self.kernel.now)

    def _node_of(self, process: Process) -> str:
        return next((each.launch.node for each in self.machines.alive() if each.process is process), process.name)


def run(script: Script, until: float | None = None) -> Outcome:
    """Simulate it; no longer than `until` seconds after the beginning, if that is given."""
    kernel = Kernel()
    with tempfile.TemporaryDirectory(dir=_scratch()) as name, sealed(script.seed, kernel), ExitStack() as patches:
        directory = Path(name) / "data"
        directory.mkdir()
        world = World(script, directory, kernel)
        for kind in world.metrics:
            patches.enter_context(mock.patch.object(kind, "count_unexpected_error", world.unexpected))
        try:
            world.live(until)
        except Broken:
            pass
        finally:
            world.end()
        return _outcome(world)


def _scratch() -> str | None:
    """Memory, where there is a file system of it: every commit is one of a real file."""
    memory = Path("/dev/shm")  # noqa: S108
    return str(memory) if memory.is_dir() else None


def _outcome(world: World) -> Outcome:
    counts = (world.kernel.n_events, world.database.n_commits, world.network.n_calls)
    digest = hashlib.sha256("\n".join([*world.story, str(counts)]).encode()).hexdigest()[:16]
    return Outcome(
        world.script,
        world.kernel.now,
        *counts,
        len(world.books.jobs),
        world.books.n_samples,
        world.violation,
        tuple(world.story),
        digest,
    )


def without(script: Script, dropped: Sequence[object]) -> Script:
    """The same without some of its faults and acts."""
    gone = {id(each) for each in dropped}
    return replace(
        script,
        faults=tuple(each for each in script.faults if id(each) not in gone),
        acts=tuple(each for each in script.acts if id(each) not in gone),
    )
