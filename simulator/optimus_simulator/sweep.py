"""Many experiments at once: processes, as each one keeps a core busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from optimus_simulator.outcome import Outcome
from optimus_simulator.scenario import Scenario, simulate

Done = Callable[[int, Outcome], None]
"""Told the index and outcome of each scenario as it ends."""


def run_all(scenarios: Sequence[Scenario], processes: int, done: Done) -> list[Outcome]:
    """The outcomes in the order of the scenarios; the number of processes does not change them.

    Raises whatever `simulate` raises for the first scenario that fails; those that have not begun are dropped.
    """
    outcomes: dict[int, Outcome] = {}
    for index, outcome in _as_completed(scenarios, processes):
        outcomes[index] = outcome
        done(index, outcome)
    return [outcomes[index] for index in range(len(scenarios))]


def _as_completed(scenarios: Sequence[Scenario], processes: int) -> Iterator[tuple[int, Outcome]]:
    if processes <= 1 or len(scenarios) <= 1:
        yield from ((index, simulate(scenario)) for index, scenario in enumerate(scenarios))
        return
    # Spawned, not forked: a fork of a process with threads (a progress bar has one) may hang.
    with ProcessPoolExecutor(min(processes, len(scenarios)), mp_context=get_context("spawn")) as pool:
        indices: dict[Future[Outcome], int] = {pool.submit(simulate, s): i for i, s in enumerate(scenarios)}
        try:
            waiting = set(indices)
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in sorted(ended, key=indices.__getitem__):
                    yield indices[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
