"""Messages between tasks or users and the replicas of the service: slow, lost, late and doubled, as faults say.

A call is made by a fiber of the caller and answered by one of a replica. Behind it is the service's own ASGI
application, which is called in place: what it would do in threads, it does in that fiber.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from optimus_world.kernel import Kernel, Process, Signal

LATENCY_SECONDS = 0.005
LATEST_SECONDS = 120.0
"""How late the copy of a message may come."""


@dataclass
class Trouble:
    """What is wrong with the network for a while: the parts of all messages that ..."""

    lost: float = 0.0
    """... do not arrive, ..."""
    unanswered: float = 0.0
    """... are answered in vain, ..."""
    doubled: float = 0.0
    """... come a second time, later."""
    chance: random.Random = field(default_factory=random.Random)


@dataclass
class Peer:
    """A replica, as callers see it."""

    process: Process
    app: FastAPI


@dataclass
class Network:
    """Who can be called, and what happens to calls."""

    kernel: Kernel
    chance: random.Random
    peers: Callable[[], list[Peer]]
    """Replicas whose address is given out."""
    answered: Callable[[str, httpx.Request, int, bytes], None] = lambda *_: None
    """Is told of each answer that reaches a caller: sender, request, status, body."""
    troubles: list[Trouble] = field(default_factory=list)
    cut_off: set[str] = field(default_factory=set)
    """Processes (their names, or nodes) that reach no replica."""
    node_of: Callable[[Process], str] = lambda process: process.name
    n_calls: int = 0

    def call(self, sender: Process, request: httpx.Request, patience: float) -> httpx.Response:
        """Make a call for a fiber of `sender`.

        Raises:
            httpx.ConnectError: no replica can be reached.
            httpx.ReadTimeout: there was no answer within `patience` seconds.
        """
        self.n_calls += 1
        request.read()
        peers = self.peers()
        if not peers or sender.name in self.cut_off or self.node_of(sender) in self.cut_off:
            self.kernel.sleep(1.0)
            raise httpx.ConnectError("no replica can be reached", request=request)
        peer = self.chance.choice(peers)
        lost, unanswered = self._strikes("lost"), self._strikes("unanswered")
        if self._strikes("doubled"):
            later = self.kernel.now + LATEST_SECONDS * self.chance.random() ** 3
            self.kernel.at(later, lambda: self._copy(peer, request), peer.process)
        done, found = Signal(self.kernel), list[httpx.Response]()

        def answer() -> None:
            found.append(ask(peer.app, request))
            if not unanswered:
                done.set()

        if not lost:
            self.kernel.after(LATENCY_SECONDS, lambda: self._begin(peer.process, answer), peer.process)
        if not done.wait(patience):
            raise httpx.ReadTimeout("no answer", request=request)
        response = found[0]
        self.answered(sender.name, request, response.status_code, response.content)
        return response

    def _copy(self, peer: Peer, request: httpx.Request) -> None:
        self.kernel.spawn(peer.process, "request again", lambda: _ignore(ask(peer.app, request)))

    def _begin(self, process: Process, answer: Callable[[], None]) -> None:
        self.kernel.spawn(process, "request", answer)

    def _strikes(self, kind: str) -> bool:
        return any(trouble.chance.random() < getattr(trouble, kind) for trouble in self.troubles)


class Wire(httpx.BaseTransport):
    """What a real client of the service sends by."""

    def __init__(self, network: Network, sender: Process) -> None:
        self._network, self._sender = network, sender

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        patience: Mapping[str, Any] = request.extensions.get("timeout", {})
        return self._network.call(self._sender, request, float(patience.get("read") or 10.0))


def ask(app: FastAPI, request: httpx.Request) -> httpx.Response:
    """The application's answer. It awaits nothing that is not done in place (see `sealed`)."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": request.content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.url.path,
        "raw_path": request.url.raw_path,
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    running = app(scope, receive, send)
    try:
        running.send(None)
    except StopIteration:
        status = next(message["status"] for message in sent if message["type"] == "http.response.start")
        body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return httpx.Response(status, content=body, request=request, headers={"Content-Type": "application/json"})
    raise RuntimeError(f"{request.method} {request.url.path} waits for something outside of the simulation")


def _ignore(_response: httpx.Response) -> None:
    """Nobody waits for the answer to a copy."""
