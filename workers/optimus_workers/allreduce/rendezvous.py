"""How the members of a process group find each other: through the coordinator, to which every member is connected.

torch's process groups want a key-value store for their rendezvous. Its usual one listens on a port of its own without
authentication. Here an entry of a member (the address at which it listens) travels over its control connection, whose
both ends have proved that they know the job token, and the coordinator forwards it to the other members of the same
membership.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.wire.messages import Publish, Published

WAIT_SECONDS = 60.0
"""The longest wait for an entry of another member; the end of the membership ends it earlier."""


class Rendezvous:
    """The entries of all members, by (membership epoch, key). Used by several threads."""

    def __init__(self, send: Callable[[Publish], None]) -> None:
        """`send`: takes entries for the other members."""
        self._send = send
        self._changed = threading.Condition()  # guards the two below; notified when they change
        self._entries: dict[tuple[int, str], bytes] = {}
        self._over = 0

    def publish(self, epoch: int, key: str, value: bytes) -> None:
        """Publish an entry to the other members of membership `epoch`."""
        self._send(Publish(epoch, key, value.hex()))
        self._put(epoch, key, value)

    def received(self, message: Published) -> None:
        """Take an entry of another member. Raises `WireError` if its value is not hexadecimal."""
        try:
            value = bytes.fromhex(message.value)
        except ValueError as error:
            raise WireError("what a member publishes must be hexadecimal") from error
        self._put(message.epoch, message.key, value)

    def _put(self, epoch: int, key: str, value: bytes) -> None:
        with self._changed:
            if epoch > self._over:
                self._entries[epoch, key] = value
                self._changed.notify_all()

    def close(self, epoch: int) -> None:
        """The memberships up to this one are over: `wait` for one of their entries fails from now on."""
        with self._changed:
            self._over = max(self._over, epoch)
            self._entries = {at: value for at, value in self._entries.items() if at[0] > self._over}
            self._changed.notify_all()

    def wait(self, epoch: int, key: str, timeout_seconds: float = WAIT_SECONDS) -> bytes:
        """The entry, once it is there. Raises `ConnectionOver` when the membership ends or the time is up before."""
        give_up_at = time.monotonic() + timeout_seconds
        with self._changed:
            while (epoch, key) not in self._entries:
                left = give_up_at - time.monotonic()
                if epoch <= self._over or left <= 0:
                    raise ConnectionOver(f"no member of epoch {epoch} published {key}")
                self._changed.wait(left)
            return self._entries[epoch, key]

    def published(self, epoch: int, prefix: str) -> list[bytes]:
        """The entries so far whose keys begin with `prefix`."""
        with self._changed:
            return [value for (at, key), value in self._entries.items() if at == epoch and key.startswith(prefix)]


class RendezvousStore(Store):
    """The rendezvous of one membership as torch's `Store`. Every key has one writer and is written once."""

    def __init__(self, rendezvous: Rendezvous, epoch: int) -> None:
        super().__init__()
        self._rendezvous = rendezvous
        self._epoch = epoch

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._rendezvous.publish(self._epoch, _without_count(key), content)

    def get(self, key: str) -> bytes:
        return self._rendezvous.wait(self._epoch, _without_count(key))

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=WAIT_SECONDS)) -> None:
        for key in keys:
            self._rendezvous.wait(self._epoch, _without_count(key), min(timeout.total_seconds(), WAIT_SECONDS))

    def check(self, keys: list[str]) -> bool:
        return all(self._rendezvous.published(self._epoch, _without_count(key)) for key in keys)

    def delete_key(self, _: str) -> bool:
        """Entries go when their membership is over."""
        return False


def _without_count(key: str) -> str:
    """torch puts before each key how many groups this process has tried to make, which differs among members."""
    count, separator, rest = key.partition("//")
    return rest if separator and count.isdecimal() else key
