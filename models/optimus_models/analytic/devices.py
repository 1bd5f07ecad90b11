"""Peak speed of the devices that jobs run on, from their makers' data sheets (single precision, dense)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Device:
    """What the arithmetic needs to know of a processor."""

    name: str
    flops_per_second: float
    """Peak float32 operations per second (a multiply-add is two)."""
    memory_bytes_per_second: float


_TERA, _GIGA = 1e12, 1e9

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device("K80", 4.37 * _TERA, 240 * _GIGA),  # one of its two processors, boost clock
            Device("P100", 9.3 * _TERA, 732 * _GIGA),
            Device("V100", 15.7 * _TERA, 900 * _GIGA),
            Device("T4", 8.1 * _TERA, 320 * _GIGA),
            Device("A100", 19.5 * _TERA, 1555 * _GIGA),
            Device("H100", 66.9 * _TERA, 3350 * _GIGA),
            Device("H200", 66.9 * _TERA, 4800 * _GIGA),
            Device("TITAN X", 10.97 * _TERA, 480 * _GIGA),  # Pascal
            Device("GTX 1080 Ti", 11.34 * _TERA, 484 * _GIGA),
        )
    }
)
"""By name."""

CPU_CORE = Device("CPU core", 96 * _GIGA, 10 * _GIGA)
"""One core with 256-bit multiply-adds at 3 GHz; what training reaches of it is measured (`percent_of_peak`)."""
