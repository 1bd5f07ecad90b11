"""What goes wrong in a world, drawn from its seed before it begins: a list that can be shortened and run again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optimus_scheduler.model import Trouble
from optimus_world.database import PLACES
from optimus_world.kernel import Process
from optimus_world.network import Trouble as NetworkTrouble

if TYPE_CHECKING:
    from optimus_world.control_plane import ControlPlane
    from optimus_world.world import World

MEAN_SECONDS = 240.0
"""Between two faults, and between two acts of users."""
HOSTS = ("a", "b")
_MOMENTS = ("begin", "before", "after", "cluster")


@dataclass(frozen=True, slots=True)
class Fault:
    """One accident, with all that was drawn for it."""

    number: int
    at: float
    """Seconds since the beginning."""
    kind: str
    host: str = "a"
    seconds: float = 0.0
    """How long it lasts, or by how much a clock is set."""
    moment: str = "now"
    """When it strikes: now, or at a transaction of the host (begin, before or after its commit), or a call to the
    cluster."""
    after_n: int = 0
    """So many such moments later."""
    strength: float = 0.0
    thread: str = ""
    """Only at transactions of this thread: `loop`, or `round` for the loop within a round, or a part of a round
    (`optimus_world.database.PLACES`); empty: of any."""

    def words(self) -> str:
        """One line for people."""
        return f"{self.kind} {_WORDS[self.kind](self)}"

    @property
    def end(self) -> float:
        return self.at + (0.0 if self.kind == "clock step" else self.seconds)


def _when(fault: Fault) -> str:
    moments = {
        "now": "at once",
        "begin": "before a transaction begins",
        "before": "before a commit",
        "after": "after a commit, before its answer",
        "cluster": "at a call to the cluster",
    }
    later = f" (number {fault.after_n + 1} from here)" if fault.moment != "now" else ""
    of = f" of its {fault.thread}" if fault.thread and fault.moment != "now" else ""
    return moments[fault.moment] + of + later


_WORDS: dict[str, Callable[[Fault], str]] = {
    "crash": lambda fault: f"of replica {fault.host} {_when(fault)}; back after {fault.seconds:.0f} s",
    "pause": lambda fault: f"of replica {fault.host} for {fault.seconds:.0f} s, {_when(fault)}",
    "restart": lambda fault: f"of replica {fault.host}: an orderly stop, and a start {fault.seconds:.0f} s later",
    "network": lambda fault: f"loses, delays or doubles {fault.strength:.0%} of messages for {fault.seconds:.0f} s",
    "partition": lambda fault: f"cuts {fault.host} off from the service for {fault.seconds:.0f} s",
    "read-only": lambda fault: f"database for {fault.seconds:.0f} s",
    "disk full": lambda fault: f"under the database for {fault.seconds:.0f} s",
    "failed commit": lambda fault: f"of the next {fault.after_n + 1} transactions: the disk takes nothing",
    "lost commit answer": lambda fault: f"of the next {fault.after_n + 1} transactions: they are done, and seem not",
    "clock step": lambda fault: f"of host {fault.host} by {fault.seconds:+.0f} s",
    "node loss": lambda fault: f"of {fault.host} for {fault.seconds:.0f} s",
    "evicted": lambda fault: f"task number {fault.after_n}",
    "crashed task": lambda fault: f"number {fault.after_n}",
    "paused task": lambda fault: f"number {fault.after_n} for {fault.seconds:.0f} s",
    "cluster away": lambda fault: f"for {fault.seconds:.0f} s",
    "cluster answers lost": lambda fault: f"for {fault.seconds:.0f} s",
    "split": lambda fault: f"cuts {fault.host} off from other nodes for {fault.seconds:.0f} s",
    "watch gap": lambda _: "of the API server: all watches break off, and what they missed is not known any more",
    "pod deleted": lambda fault: f"number {fault.after_n}, by somebody else",
    "anchor deleted": lambda fault: f"of job number {fault.after_n}, by somebody else, and all that belongs to it",
    "quota": lambda fault: f"of the namespace is used up for {fault.seconds:.0f} s: 403 for each new pod",
    "throttled": lambda fault: f"API server answers 429 for {fault.seconds:.0f} s",
    "slow cluster": lambda fault: f"for {fault.seconds:.0f} s: each start takes {5 * fault.strength:.1f} s",
}


def draw(seed: int, until: float, nodes: tuple[str, ...], *, on_kubernetes: bool = False) -> list[Fault]:
    """The faults of a world, none after `until` seconds: those of the first kind by time, then those of the second.

    Each kind has a stream of its own, so that another kind leaves the faults of a seed as they were.
    """
    found: list[Fault] = []
    streams = {"faults": _RATES, "more faults": _MORE_RATES}
    if on_kubernetes:
        streams["faults of the API server"] = _API_SERVER_RATES
    for stream, rates in streams.items():
        chance = random.Random(f"{seed} {stream}")  # noqa: S311 - a simulation
        mean = MEAN_SECONDS * sum(_RATES.values()) / sum(rates.values())
        at = 60.0 + chance.expovariate(1.0 / mean)
        while at < until:
            kind = chance.choices(list(rates), list(rates.values()))[0]
            make = _drawn if rates is _RATES else _drawn_more
            found.append(make(chance, len(found), at, kind, nodes))
            at += chance.expovariate(1.0 / mean)
    return found


_RATES = {
    "crash": 4,
    "pause": 5,
    "restart": 1,
    "network": 3,
    "partition": 2,
    "read-only": 1,
    "disk full": 1,
    "failed commit": 2,
    "lost commit answer": 1,
    "clock step": 2,
    "node loss": 2,
    "evicted": 2,
    "crashed task": 2,
    "paused task": 1,
    "cluster away": 1,
    "cluster answers lost": 1,
    "slow cluster": 1,
}


_API_SERVER_RATES = {"watch gap": 3, "pod deleted": 3, "quota": 1, "throttled": 1, "anchor deleted": 1}
_MORE_RATES = {"pause": 4, "crash": 2, "split": 3}


def _drawn_more(chance: random.Random, number: int, at: float, kind: str, nodes: tuple[str, ...]) -> Fault:
    """Replicas that stand still, or end, with exit notices or actions of a plan in hand; nodes that are cut off."""
    seconds = chance.choice((chance.uniform(5.0, 40.0), chance.uniform(60.0, 400.0)))
    if kind in _API_SERVER_RATES:
        return Fault(number, at, kind, seconds=seconds, after_n=chance.randrange(12))
    if kind == "split":
        return Fault(number, at, kind, chance.choice(nodes), seconds)
    host, moment = chance.choice(HOSTS), chance.choice(("begin", "before", "after"))
    return Fault(number, at, kind, host, seconds, moment, chance.randrange(3), 0.0, chance.choice(sorted(PLACES)))


def _drawn(chance: random.Random, number: int, at: float, kind: str, nodes: tuple[str, ...]) -> Fault:
    host = chance.choice(HOSTS)
    moment = chance.choice(("now", *_MOMENTS)) if kind in ("crash", "pause") else "now"
    thread = chance.choice(("", "loop", "round"))
    seconds = chance.choice((chance.uniform(1.0, 30.0), chance.uniform(15.0, 600.0)))
    if kind == "clock step":
        seconds = chance.choice((-1.0, 1.0)) * chance.choice((2.0, 60.0, 7200.0, 90000.0))
        host = chance.choice((*HOSTS, "database"))
    if kind in ("node loss", "partition"):
        host = chance.choice(nodes)
    return Fault(number, at, kind, host, seconds, moment, chance.randrange(0, 12), chance.uniform(0.05, 0.5), thread)


# --- what each does ---------------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Carries faults out on a world."""

    world: World
    seed: int
    struck: list[str] = field(default_factory=list)

    def strike(self, fault: Fault) -> None:
        self.world.say(f"fault {fault.number}: {fault.words()}")
        getattr(self, "_" + fault.kind.replace(" ", "_").replace("-", "_"))(fault)

    def _crash(self, fault: Fault) -> None:
        self._at_moment(fault, lambda process: self.world.crash(process, fault.seconds))

    def _pause(self, fault: Fault) -> None:
        self._at_moment(fault, lambda process: self._pause_now(process, fault.seconds))

    def _pause_now(self, process: Process, seconds: float) -> None:
        self.world.say(f"{process.name} stands still for {seconds:.0f} s")
        self.world.kernel.pause(process, seconds)

    def _at_moment(self, fault: Fault, strike: Callable[[Process], None]) -> None:
        replica = self.world.replicas.get(fault.host)
        if fault.moment == "now":
            if replica is not None:
                strike(replica.process)
        elif fault.moment == "cluster":
            self.world.armed_at_cluster.setdefault(fault.host, []).append(strike)
        else:
            self.world.database.arm(fault.host, fault.moment, fault.after_n, fault.thread, strike)

    def _restart(self, fault: Fault) -> None:
        self.world.stop(fault.host, fault.seconds)

    def _network(self, fault: Fault) -> None:
        chance = random.Random(f"{self.seed} network {fault.number}")  # noqa: S311 - a simulation
        trouble = NetworkTrouble(fault.strength, fault.strength, fault.strength, chance)
        self.world.network.troubles.append(trouble)
        self._later(fault, lambda: self.world.network.troubles.remove(trouble))

    def _partition(self, fault: Fault) -> None:
        self.world.cut_off(fault.host)
        self._later(fault, lambda: self.world.network.cut_off.discard(fault.host))

    def _split(self, fault: Fault) -> None:
        self.world.set_apart(fault.host, is_apart=True)
        self._later(fault, lambda: self.world.set_apart(fault.host, is_apart=False))

    def _read_only(self, fault: Fault) -> None:
        self.world.database.is_read_only = True
        self._later(fault, lambda: setattr(self.world.database, "is_read_only", False))

    def _disk_full(self, fault: Fault) -> None:
        self.world.database.is_full = True
        self._later(fault, lambda: setattr(self.world.database, "is_full", False))

    def _failed_commit(self, fault: Fault) -> None:
        self.world.database.fails_to_commit += fault.after_n + 1

    def _lost_commit_answer(self, fault: Fault) -> None:
        self.world.database.loses_answer += fault.after_n + 1

    def _clock_step(self, fault: Fault) -> None:
        self.world.clock_offsets[fault.host] += fault.seconds

    def _node_loss(self, fault: Fault) -> None:
        self.world.machines.lose_node(fault.host)
        self._later(fault, lambda: self.world.machines.down.discard(fault.host))

    def _evicted(self, fault: Fault) -> None:
        alive = self.world.machines.alive()
        if alive:
            key = alive[fault.after_n % len(alive)].task.key
            self.world.say(f"{key.name} is evicted")
            self.world.machines.exit(key, 137, Trouble("Evicted", "the node was short of memory"))

    def _crashed_task(self, fault: Fault) -> None:
        alive = self.world.machines.alive()
        if alive:
            key = alive[fault.after_n % len(alive)].task.key
            self.world.say(f"{key.name} crashes")
            self.world.machines.exit(key, 1)

    def _paused_task(self, fault: Fault) -> None:
        alive = self.world.machines.alive()
        if alive:
            self._pause_now(alive[fault.after_n % len(alive)].process, fault.seconds)

    def _cluster_away(self, fault: Fault) -> None:
        self.world.machines.unavailable = True
        self._later(fault, lambda: setattr(self.world.machines, "unavailable", False))

    def _cluster_answers_lost(self, fault: Fault) -> None:
        self.world.machines.loses_answers = True
        self._later(fault, lambda: setattr(self.world.machines, "loses_answers", False))

    def _slow_cluster(self, fault: Fault) -> None:
        self.world.slow_start_seconds = 5 * fault.strength
        self._later(fault, lambda: setattr(self.world, "slow_start_seconds", 0.0))

    # --- of a world with Kubernetes -----------------------------------------------------------------------------------

    @property
    def _plane(self) -> ControlPlane:
        assert self.world.plane is not None, "the fault is of a world with Kubernetes"
        return self.world.plane

    def _watch_gap(self, _fault: Fault) -> None:
        self._plane.cut_watches()

    def _pod_deleted(self, fault: Fault) -> None:
        self._delete("pods", fault)

    def _anchor_deleted(self, fault: Fault) -> None:
        self._delete("configmaps", fault)

    def _delete(self, kind: str, fault: Fault) -> None:
        there = self._plane.server.objects(kind)
        if there:
            name = there[fault.after_n % len(there)]["metadata"]["name"]
            self.world.say(f"somebody deletes {name} of the {kind}")
            self._plane.delete(kind, name)

    def _quota(self, fault: Fault) -> None:
        self._plane.server.refuses_pods = True
        self._later(fault, lambda: setattr(self._plane.server, "refuses_pods", False))

    def _throttled(self, fault: Fault) -> None:
        self._plane.answers_429 = True
        self._later(fault, lambda: setattr(self._plane, "answers_429", False))

    def _later(self, fault: Fault, repair: Callable[[], object]) -> None:
        def over() -> None:
            self.world.say(f"fault {fault.number} is over")
            repair()

        self.world.kernel.after(fault.seconds, over)
