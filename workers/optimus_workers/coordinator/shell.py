"""The coordinator's input and output: sockets, files and HTTP. `transitions` decides what to do."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from optimus_contract.membership import WantedMembership
from optimus_workers.coordinator.checkpoint_io import put_manifest, read_checkpoint
from optimus_workers.coordinator.events import (
    Append,
    AskWanted,
    Effect,
    Effects,
    Event,
    Log,
    MembershipRefused,
    MessageArrived,
    ReadCheckpoint,
    ReportCheckpoints,
    ReportMembership,
    ReportNote,
    ReportProfile,
    ReportResult,
    ReportSilence,
    Send,
    Stop,
    TaskArrived,
    TaskLost,
    TaskSilent,
    Ticked,
    WantedArrived,
    WriteManifest,
)
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Journal, Reported, Superseded, replay
from optimus_workers.coordinator.service_calls import Reporter, UsageReporter, watch_wanted
from optimus_workers.coordinator.transitions import InvalidTransition, begin, handle
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import TERMINATED, USER_CODE_FAILED, WireError
from optimus_workers.service_client import ServiceClient
from optimus_workers.wire import secret
from optimus_workers.wire.codec import MAX_LINE_BYTES, decode_line, encode_line
from optimus_workers.wire.control import SILENCE_SECONDS
from optimus_workers.wire.messages import Challenge, Hello, MessageTypes, Ping, Pong, ToTask, Welcome
from optimus_workers.wire.protocol import Peer, line_for, marked, message_from, peer_of
from optimus_workers.wire.sockets import HANDSHAKE_SECONDS, SHORTAGES
from optimus_workers.wire.values import TaskRole

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
"""How late a deadline of the state machine may be noticed."""
PING_SECONDS = 5.0
USAGE_SECONDS = 1.0
"""After pings: when the usage that servers answered is reported."""
LEASE_SECONDS = 30.0
"""A task that says nothing for this long, pings notwithstanding, counts as lost (hung, or cut off)."""
MAX_HANDSHAKES = 2048
"""Connections that have not shown yet that they know the job token: as many as a job has workers and servers. One more,
and the one that has taken longest is cut off."""
SHORTAGE_LOG_SECONDS = 10.0
"""Between two lines of the log about connections that cannot be accepted: asyncio has a thousand at once."""
LOOK_SECONDS = 1.0
"""How often a coordinator looks whether it was replaced, when it has nothing to write."""
LISTEN_SECONDS = 1.5
"""After SIGTERM: tasks of the same node get theirs at about the same time."""
HAND_OVER_SECONDS = 10.0
"""After SIGTERM: the longest stay, for those that leave."""
BIND_SECONDS = 30.0
"""The coordinator before this one may take a moment to be gone."""
MAX_UNSENT_BYTES = 8 * MAX_LINE_BYTES
"""A task that does not read its messages counts as lost."""
REPORT_SECONDS = 3600.0
"""How long a coordinator that is done stays to report to a service that is away."""


async def run_coordinator(environment: TaskEnvironment) -> int:
    """Coordinate the job until it ends; the exit code."""
    try:
        shell = _Shell(environment)
    except Superseded as error:
        log.error("%s", error)  # noqa: TRY400 - its text says all
        return TERMINATED
    return await shell.run()


class _Shell:
    def __init__(self, environment: TaskEnvironment) -> None:
        self._environment = environment
        self._journal = Journal(environment.job_directory, environment.incarnation)
        self._checkpoints = environment.checkpoints
        self._manifests = asyncio.Lock()
        self._origin = environment.origin
        self._loop = asyncio.get_running_loop()
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._peers: dict[str, Peer] = {}
        """What those speak that have ever had a connection."""
        self._heard_at: dict[str, float] = {}
        """When each with a connection said something last: the loop's time, put off while this process stood still."""
        self._handshakes: dict[asyncio.StreamWriter, None] = {}
        """The oldest first."""
        self._shortage_logged_at = float("-inf")
        self._jobs: set[asyncio.Task[None]] = set()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._is_superseded = False
        self._leave_from: float | None = None
        """After SIGTERM: when the process may exit (the loop's time)."""
        self._clock = _steady_clock()
        client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        refused = self._from_thread(lambda reason: self._happened(MembershipRefused(reason)))
        past = replay(self._journal.take_over(environment.attempt))
        # The service may know of fewer attempts than the journal, if its database is an older backup.
        self._reporter = Reporter(client, self._from_thread(self._reported), refused, past.attempt)
        self._usage = UsageReporter(client, environment.task_name)
        settings = JobSettings.from_spec(environment.spec)
        self._state, self._first_effects = begin(settings, past, self._clock())

    async def run(self) -> int:
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        self._loop.set_exception_handler(self._loop_in_trouble)
        server = await self._listen()
        self._ask_wanted = watch_wanted(self._reporter.wanted, self._from_thread(self._wanted))
        self._carry_out_all(self._first_effects)
        ticker = asyncio.create_task(self._tick())
        try:
            code = await self._exit_code
        finally:
            ticker.cancel()
            server.close()
        if code != TERMINATED and not await asyncio.to_thread(self._reporter.drain, REPORT_SECONDS):
            log.error("the job's end could not be reported to the service")
        self._journal.close()
        # The service then learns of the failure from the exit code, and of its reason from the log.
        return USER_CODE_FAILED if self._reporter.is_result_refused else code

    async def _listen(self) -> asyncio.Server:
        host, port = self._environment.coordinator_address
        give_up_at = self._loop.time() + BIND_SECONDS
        while True:
            try:
                return await asyncio.start_server(
                    self._serve, host, port, limit=MAX_LINE_BYTES, reuse_address=True, backlog=1024
                )
            except OSError:
                if self._loop.time() > give_up_at:
                    raise
                await asyncio.sleep(0.2)

    def _from_thread(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same call, made on the event loop; for use by other threads. Nothing once the loop is closed."""

        def schedule(argument: Any) -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, argument)

        return schedule

    # --- events ------------------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        if self._is_superseded:
            return
        try:
            self._carry_out_all(handle(self._state, event, self._clock()))
        except InvalidTransition as error:
            # A task may send anything at any time; the event has changed nothing.
            log.warning("ignored: %s", error)
        except Exception as error:
            # The event is not at fault: the coordinator itself is broken, and its replacement takes over.
            if not self._exit_code.done():
                self._exit_code.set_exception(error)
            raise

    def _carry_out_all(self, effects: Effects) -> None:
        for effect in effects:
            if not self._in_force(effect):
                return

    async def _tick(self) -> None:
        next_ping = next_look = self._loop.time()
        next_usage = next_ping + USAGE_SECONDS
        ticked_at = next_ping
        while True:
            stood_still, ticked_at = self._loop.time() - ticked_at, self._loop.time()
            if stood_still > PING_SECONDS:
                # What the tasks have said meanwhile is read before anything is judged by the time.
                self._stood_still(stood_still)
                await asyncio.sleep(TICK_SECONDS)
                continue
            self._happened(Ticked())
            self._look_at_leases()
            if self._loop.time() >= next_look:
                next_look = self._loop.time() + LOOK_SECONDS
                self._in_force()
            self._leave_if_settled()
            if self._loop.time() >= next_ping:
                next_ping = self._loop.time() + PING_SECONDS
                for name in list(self._writers):
                    self._send(name, Ping())
                next_usage = min(next_usage, self._loop.time() + USAGE_SECONDS)
            if self._loop.time() >= next_usage:
                next_usage = float("inf")
                self._usage.report()
            await asyncio.sleep(TICK_SECONDS)

    def _stood_still(self, seconds: float) -> None:
        """This process was stopped: it was not the tasks that said nothing. Those that have hung up meanwhile would
        count as lost, whereas the coordinator that follows this one takes their training over as it is."""
        log.warning("this coordinator was stopped for %.0f s", seconds)
        if seconds > SILENCE_SECONDS - 2 * PING_SECONDS:
            self._end(TERMINATED)
        for name in self._heard_at:
            self._heard_at[name] += seconds

    def _look_at_leases(self) -> None:
        lapsed = self._loop.time() - LEASE_SECONDS
        for name in [name for name, heard_at in self._heard_at.items() if heard_at < lapsed]:
            log.warning("%s has not been heard of for %.0f s", name, LEASE_SECONDS)
            self._happened(TaskSilent(name, LEASE_SECONDS))
            self._forget(name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One task's control connection, from its first byte to its last."""
        self._handshakes[writer] = None
        self._cut_off(keep=MAX_HANDSHAKES)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                hello, peer = await self._shake_hands(reader, writer)
        except (WireError, OSError, EOFError, TimeoutError) as error:
            log.warning("refused a connection: %s", error)
            writer.transport.abort()
            return
        finally:
            self._handshakes.pop(writer, None)
        self._forget(hello.task)  # an older connection of the same task is a dead one
        self._writers[hello.task], self._peers[hello.task] = writer, peer
        self._heard_at[hello.task] = self._loop.time()
        self._happened(TaskArrived(hello))
        try:
            await self._read(hello.task, reader, writer, peer)
        except EOFError:
            log.info("%s disconnected", hello.task)
        except (WireError, OSError) as error:
            log.warning("%s: %s", hello.task, error)
        if self._writers.get(hello.task) is writer:
            self._forget(hello.task)

    def _cut_off(self, keep: int) -> None:
        """Hang up on those that have been longest in their handshake, except `keep` of them."""
        for writer in list(self._handshakes)[: max(0, len(self._handshakes) - keep)]:
            del self._handshakes[writer]
            writer.transport.abort()

    def _loop_in_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Errors that asyncio cannot raise. Out of descriptors, it goes on accepting after a second by itself."""
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):
            return  # before Python 3.12, of each connection that is open when this process ends
        if not isinstance(error, OSError) or error.errno not in SHORTAGES:
            loop.default_exception_handler(context)
            return
        self._cut_off(keep=0)
        if loop.time() >= self._shortage_logged_at + SHORTAGE_LOG_SECONDS:
            self._shortage_logged_at = loop.time()
            log.warning("no connection can be accepted now, trying again: %s", error)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Hello, Peer]:
        nonce = marked(secret.new_nonce())
        writer.write(encode_line(Challenge(nonce.hex())))
        hello = decode_line(await _line(reader), {"Hello": Hello})
        try:
            proof, answer = bytes.fromhex(hello.proof), bytes.fromhex(hello.nonce)
        except ValueError as error:
            raise WireError("proof and nonce must be hexadecimal") from error
        token, context = self._environment.job_token, f"control {hello.task}"
        if not secret.same(proof, secret.caller_proof(token, nonce, answer, context)):
            raise WireError(f"{hello.task[:100]} does not know the job token")
        if hello.role is TaskRole.SERVER and hello.address is None:
            raise WireError(f"server {hello.task} has no address")
        peer = peer_of(answer)
        peer.refuse(hello.task)
        writer.write(encode_line(Welcome(secret.listener_proof(token, nonce, answer, context).hex())))
        return hello, peer

    async def _read(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        while True:
            line = await _line(reader)
            if self._writers.get(name) is not writer:
                raise EOFError  # it was hung up on
            self._heard_at[name] = self._loop.time()
            message = message_from(peer, line, MessageTypes.from_task)
            if message is None:
                continue
            if isinstance(message, Pong):
                self._usage.heard(name, message)
            self._happened(MessageArrived(name, message))

    def _forget(self, name: str) -> None:
        writer = self._writers.pop(name, None)
        self._heard_at.pop(name, None)
        if writer is not None:
            writer.close()
            self._usage.forget(name)
            self._happened(TaskLost(name))

    def _wanted(self, wanted: WantedMembership) -> None:
        self._happened(WantedArrived(wanted))

    def _reported(self, epoch: int) -> None:
        self._in_force(Append(Reported(epoch)))

    # --- effects -----------------------------------------------------------------------------------------------------

    def _in_force(self, effect: Effect | None = None) -> bool:
        """Carry out the effect, unless a later coordinator has begun: then this one stops and does nothing more."""
        try:
            if effect is None or isinstance(effect, WriteManifest):
                self._journal.check()
            if effect is not None:
                self._carry_out(effect)
        except Superseded as error:
            log.error("%s", error)  # noqa: TRY400 - its text says all
            self._is_superseded = True
            self._end(TERMINATED)
        return not self._is_superseded

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect.task, effect.message)
            case Append():
                self._journal.append(effect.record)
            case ReportProfile():
                self._reporter.profile(effect.profile)
            case ReportMembership():
                log.info("membership: %s", effect.formed)
                self._reporter.membership(effect.formed)
            case ReportResult():
                log.info("result: %s", effect.ended)
                self._reporter.result(effect.ended)
            case AskWanted():
                self._ask_wanted()
            case ReadCheckpoint():
                self._start(self._answer(read_checkpoint(self._checkpoints, self._origin, effect.epoch)))
            case WriteManifest():
                self._start(self._answer(put_manifest(self._checkpoints, effect.manifest, self._manifests)))
            case ReportCheckpoints():
                self._reporter.checkpoints(effect.news)
            case ReportSilence():
                self._reporter.silence(effect.news)
            case ReportNote():
                log.info("%s", effect.note.message)
                self._reporter.note(effect.note)
            case Log():
                log.info(effect.text)
            case Stop():
                self._end(effect.code)

    def _terminate(self) -> None:
        """SIGTERM: the node is being drained, and its tasks ask to leave at the same time. They are dismissed first,
        within limits; the others stay, and this coordinator's replacement takes them over."""
        if not self._writers:
            self._end(TERMINATED)
            return
        self._leave_from = self._loop.time() + LISTEN_SECONDS
        self._loop.call_later(HAND_OVER_SECONDS, self._end, TERMINATED)

    def _leave_if_settled(self) -> None:
        if self._leave_from is not None and self._loop.time() >= self._leave_from and self._state.is_settled:
            self._end(TERMINATED)

    def _end(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    def _send(self, name: str, message: ToTask) -> None:
        writer = self._writers.get(name)
        if writer is None:
            return  # disconnected meanwhile: a `TaskLost` follows
        line = line_for(self._peers[name], message)
        if line is None:
            return  # the task is of a release that knows nothing of it
        writer.write(line)
        if writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("%s does not read its messages", name)
            writer.transport.abort()

    def _start(self, job: Any) -> None:
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _answer(self, job: Coroutine[Any, Any, Event]) -> None:
        self._happened(await job)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line. Raises `WireError` when it is too long, `EOFError` at the end."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise WireError("a line is too long") from error


def _steady_clock() -> Callable[[], float]:
    """Seconds since the Unix epoch that do not jump when the machine's clock is set."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
