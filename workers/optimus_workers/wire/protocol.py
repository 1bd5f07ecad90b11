"""Which messages of the control connection each end knows, when their releases differ. Pure.

A coordinator lives as long as its job, and the tasks that join it later may be of a newer release; so may a coordinator
that takes over older tasks. Each end tells the number of its protocol behind the random bytes of its nonce, where
releases before the numbers look for nothing (those speak protocol 1). Then

* what is said to an older end leaves out the messages and fields that it does not know: without them it does less;
* what a newer end says beyond what is known here is passed over;
* an end that cannot do without what the other one does not know says so, and the connection is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from optimus_workers.errors import WireError
from optimus_workers.wire import secret
from optimus_workers.wire.codec import decode_line, encode_line

PROTOCOL = 4
"""To be raised with each message or field that is added, which then has its place in the tables below."""
LEAST = 1
"""The oldest protocol that this release can work with."""
MESSAGES = {"CommandQuiet": 2, "CommandIdle": 2, "CommandHung": 2, "Limit": 3}
"""Message → the protocol since when there is it. Without these hangs are not found, stops wait for their time, and the
processes of a script end by themselves at the limit with which they began."""
FIELDS = {
    "CommandStopped": {"killed_after": 2},
    "StopCommand": {"is_asked": 2, "all_quiet": 2},
    "Hello": {"running_workers": 4, "epoch": 4},
}
"""Message → the same of its fields."""
REPEATED = frozenset({"StopCommand"})
"""Messages that are sent again only to say something in such a field: an older end is spared that."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Peer:
    """What the other end speaks."""

    protocol: int = 1
    least: int = 1
    """The oldest protocol that it can work with."""

    def refuse(self, who: str) -> None:
        """Raise `WireError` unless both ends can work with each other. `who`: the other end, in words."""
        if self.least > PROTOCOL:
            raise WireError(f"{who} is of a newer release and needs protocol {self.least}; this one speaks {PROTOCOL}")
        if self.protocol < LEAST:
            raise WireError(f"{who} is of an older release and speaks protocol {self.protocol}; {LEAST} is needed here")


def marked(nonce: bytes) -> bytes:
    """A nonce that tells the other end what this one speaks."""
    return nonce + bytes([PROTOCOL, LEAST])


def peer_of(nonce: bytes) -> Peer:
    """What the end speaks that sent this nonce."""
    mark = nonce[secret.NONCE_BYTES : secret.NONCE_BYTES + 2]
    return Peer(*mark) if len(mark) == 2 else Peer()


def line_for(peer: Peer, message: Any) -> bytes | None:
    """A message as a line that the other end understands; None: it knows nothing of it."""
    kind = type(message).__name__
    if MESSAGES.get(kind, 1) > peer.protocol:
        return None
    unknown = {name for name, since in FIELDS.get(kind, {}).items() if since > peer.protocol}
    if kind in REPEATED and any(getattr(message, name) for name in unknown):
        return None
    return encode_line(message, without=unknown)


def message_from(peer: Peer, line: bytes, kinds: dict[str, type[T]]) -> T | None:
    """The message in a line of the other end; None: of a newer release, and not known here.

    Raises:
        WireError: it is none.
    """
    return decode_line(line, kinds, of_newer=peer.protocol > PROTOCOL)
