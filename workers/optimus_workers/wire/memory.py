"""Memory for flat vectors: float32, zeroed, and where the system allows it such that another process can map it too.

Two tasks on one machine exchange file descriptors once (over their Unix socket) and from then on only say which part
is ready. The memory is anonymous: it is gone with the last process that has it, kill -9 included. It is sealed against
resizing, so that the other end can neither be crashed by a file that became shorter nor be made to map more than the
size that it checked.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimus_workers.errors import WireError
from optimus_workers.wire.frames import FLOAT_BYTES

if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    CAN_SHARE = hasattr(os, "memfd_create")
else:  # tasks then talk over TCP
    CAN_SHARE = False

HUGE_PAGE_BYTES = 2**21
Floats = NDArray[np.float32]
"""Shape (n,). Servers do their arithmetic with numpy: torch would take four times as much memory as all else they need
and seconds to be imported. Workers wrap such memory in tensors without a copy."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FloatMemory:
    """A float32 vector; `descriptor` opens it to others (None: it cannot be shared)."""

    floats: Floats
    descriptor: int | None = None


def shareable_floats(n_floats: int) -> FloatMemory:
    """Zeros that may be shared. The descriptor is closed with the returned object, the mapping with the array."""
    if not CAN_SHARE or n_floats == 0:
        return FloatMemory(private_floats(n_floats))
    descriptor = os.memfd_create("optimus", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, n_floats * FLOAT_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        memory = FloatMemory(_mapped(descriptor, n_floats), descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(memory, os.close, descriptor)
    return memory


def attach_floats(descriptor: int, n_floats: int) -> Floats:
    """Map what another process shares. Raises `WireError` when it is not exactly `n_floats` long, or could shrink."""
    if not CAN_SHARE:
        raise WireError("this system cannot share memory")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        n_bytes = os.fstat(descriptor).st_size
    except OSError as error:
        raise WireError(f"not shared memory: {error}") from error
    if not seals & fcntl.F_SEAL_SHRINK or n_bytes != n_floats * FLOAT_BYTES:
        raise WireError(f"shared memory of {n_bytes} bytes for {n_floats} floats, or not sealed")
    return _mapped(descriptor, n_floats) if n_floats else np.zeros(0, np.float32)


def private_floats(n_floats: int) -> Floats:
    """Zeros of this process alone, on huge pages if there are enough of them: large vectors are touched as a whole."""
    n_bytes = n_floats * FLOAT_BYTES
    if n_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(n_floats, np.float32)
    memory = mmap.mmap(-1, n_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.float32)


def _mapped(descriptor: int, n_floats: int) -> Floats:
    return np.frombuffer(mmap.mmap(descriptor, n_floats * FLOAT_BYTES), np.float32)
