"""One virtual clock, one queue of events, and processes whose threads are fibers (greenlets).

::

    Kernel.run ─▶ earliest event ─▶ callback, or a fiber goes on until it sleeps, parks or ends ─▶ next event

Only one fiber runs at a time and only these calls let another one run, so the same seed gives the same history. A fiber
may stand anywhere in real code (a commit, a call to the cluster): its process can be paused or killed right there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from greenlet import getcurrent, greenlet


class Crashed(BaseException):
    """The process of the fiber was killed: it goes no further. No `except Exception` keeps it alive."""


class Modules(Protocol):
    """Modules that show in the place of others of the same names."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Process:
    """What is paused and killed as a whole: a replica of the service, or a task."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.paused_until = 0.0
        """Of virtual time: it gets no further before."""
        self.fibers: set[Fiber] = set()
        self.modules: Modules | None = None
        """Whose modules it sees; None: those of the present release."""


class Fiber:
    """A thread of a process."""

    def __init__(self, process: Process, name: str, body: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.greenlet = greenlet(body)
        self.waits_for = 0
        """Grows with each wait, so that what ends an earlier one is told from what ends this one."""


class Kernel:
    """The clock and the queue. Times are seconds since the beginning of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_events = 0
        self.after_event: Callable[[], None] = lambda: None
        self.failed: Callable[[Fiber, Exception], None] = _raise
        """Is told of what a fiber raises: nothing that the fiber's code did not foresee."""
        self._queue: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._fibers: dict[greenlet, Fiber] = {}
        self._modules: Modules | None = None

    # --- events ------------------------------------------------------------------------------------------------------

    def at(self, when: float, callback: Callable[[], None], process: Process | None = None) -> None:
        """Call back then; if it is an event of `process`, once that is not paused, and never after its death."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), process, callback))

    def after(self, seconds: float, callback: Callable[[], None], process: Process | None = None) -> None:
        """As `at`, in so many seconds."""
        self.at(self.now + seconds, callback, process)

    def run(self, until: float) -> None:
        """All events up to then."""
        while self._queue and self._queue[0][0] <= until:
            when, _, process, callback = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            if process is not None and not process.is_alive:
                continue
            if process is not None and process.paused_until > self.now:
                self.at(process.paused_until, callback, process)
                continue
            self.n_events += 1
            self.use(None if process is None else process.modules)
            callback()
            self.use(None)
            self.after_event()
        self.now = max(self.now, until)

    # --- processes ---------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, function: Callable[[], None]) -> Fiber:
        """A new thread of the process; it begins with an event of its own."""

        def body() -> None:
            try:
                function()
            except Crashed:
                pass
            except Exception as error:  # noqa: BLE001 - it is handed to the simulation, which fails by it
                self.failed(fiber, error)
            finally:
                process.fibers.discard(fiber)
                self._fibers.pop(fiber.greenlet, None)

        fiber = Fiber(process, name, body)
        process.fibers.add(fiber)
        self._fibers[fiber.greenlet] = fiber
        self.at(self.now, lambda: self._go_on(fiber, None), process)
        return fiber

    def kill(self, process: Process) -> None:
        """From now on the process does nothing more. Its threads are unwound without a further word to anybody."""
        if not process.is_alive:
            return
        process.is_alive = False
        self.at(self.now, lambda: self._unwind(process))

    def pause(self, process: Process, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so long."""
        process.paused_until = max(process.paused_until, self.now + seconds)

    def current(self) -> Fiber | None:
        """The fiber that runs; None: the simulation itself."""
        return self._fibers.get(getcurrent())

    def check_alive(self) -> None:
        """Raises `Crashed` in a fiber whose process was killed."""
        fiber = self.current()
        if fiber is not None and not fiber.process.is_alive:
            raise Crashed

    def use(self, modules: Modules | None) -> None:
        """From here on these show; None: those of the present release."""
        if modules is self._modules:
            return
        if self._modules is not None:
            self._modules.__exit__()
        self._modules = modules
        if modules is not None:
            modules.__enter__()

    # --- what fibers wait by -----------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        self.park(seconds)

    def park(self, seconds: float | None = None) -> bool:
        """Wait until `wake`, or for so long; whether it was waked. Outside of fibers: at once."""
        fiber = self.current()
        if fiber is None:
            return False
        self.check_alive()
        fiber.waits_for += 1
        if seconds is not None:
            self._resume_at(self.now + seconds, fiber, waked=False)
        modules = self._modules
        waked = bool(fiber.greenlet.parent.switch()) if fiber.greenlet.parent is not None else False
        self.use(modules)
        self.check_alive()
        return waked

    def wake(self, fiber: Fiber) -> None:
        """End the fiber's present wait."""
        self._resume_at(self.now, fiber, waked=True)

    def _resume_at(self, when: float, fiber: Fiber, *, waked: bool) -> None:
        ticket = fiber.waits_for

        def resume() -> None:
            if fiber.waits_for == ticket and not fiber.greenlet.dead:
                fiber.waits_for += 1
                self._go_on(fiber, waked)

        self.at(when, resume, fiber.process)

    def _go_on(self, fiber: Fiber, value: Any) -> None:
        fiber.greenlet.parent = getcurrent()
        fiber.greenlet.switch(*(() if value is None else (value,)))

    def _unwind(self, process: Process) -> None:
        for fiber in sorted(process.fibers, key=lambda each: each.name):
            if fiber.greenlet and not fiber.greenlet.dead:
                fiber.greenlet.parent = getcurrent()
                fiber.greenlet.throw(Crashed())
        for fiber in process.fibers:
            self._fibers.pop(fiber.greenlet, None)
        process.fibers.clear()


def _raise(_fiber: Fiber, error: Exception) -> None:
    raise error


class Signal:
    """As `threading.Event`, for fibers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._is_set = False
        self._waiting: list[Fiber] = []

    def set(self) -> None:
        """From now on nobody waits."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._kernel.wake(fiber)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set now, or within the time."""
        fiber = self._kernel.current()
        if not self._is_set and fiber is not None:
            self._waiting.append(fiber)
            self._kernel.park(timeout)
        return self._is_set


class FiberCondition:
    """As `threading.Condition`, for fibers: only one runs at a time, so nothing has to be locked."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: list[Fiber] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_error: object) -> None:
        """Nothing is locked."""

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._kernel.wake(fiber)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until the predicate holds, or for so long; what it says then."""
        end = None if timeout is None else self._kernel.now + timeout
        while not predicate():
            left = None if end is None else end - self._kernel.now
            fiber = self._kernel.current()
            if fiber is None or (left is not None and left <= 0.0):
                break
            self._waiting.append(fiber)
            self._kernel.park(left)
        return predicate()


class FiberLock:
    """As `threading.Lock`, for fibers; first come, first served."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.holder: Fiber | None = None
        self._waiting: list[Fiber] = []

    def acquire(self, timeout: float | None = None) -> bool:
        """Whether it is held, at once or within the time."""
        fiber = self._kernel.current()
        end = None if timeout is None else self._kernel.now + timeout
        while self.holder is not None and self.holder.process.is_alive and fiber is not None:
            left = None if end is None else end - self._kernel.now
            if left is not None and left <= 0.0:
                return False
            self._waiting.append(fiber)
            self._kernel.park(left)
            if fiber in self._waiting:
                self._waiting.remove(fiber)
        self.holder = fiber
        return True

    def release(self) -> None:
        """Let the next one have it. Nothing by a fiber that has lost it, as its process was killed."""
        if self.holder is not self._kernel.current():
            return
        self.holder = None
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._kernel.wake(fiber)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()
