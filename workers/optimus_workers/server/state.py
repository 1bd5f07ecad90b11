"""One range of the flat vector at one version."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimus_workers.ranges import Range
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.memory import FloatMemory, Floats, private_floats, shareable_floats


@dataclass(slots=True)
class RangeState:
    """The range [first, end) at one version. Section 0: parameters, the others: optimizer state; all (end - first,)."""

    version: int
    first: int
    end: int
    sections: list[Floats]
    memory: FloatMemory | None = None
    """Of section 0, if workers on this machine may map it."""
    # A view takes some microseconds to make, several times that when the caches are cold from copying: too much for
    # what is wanted again at every step.
    _parts: dict[Range, list[Floats]] = field(default_factory=dict, repr=False)
    _payloads: dict[Range, memoryview] = field(default_factory=dict, repr=False)

    @classmethod
    def zeros(cls, version: int, first: int, end: int, n_sections: int) -> RangeState:
        memory = shareable_floats(end - first)
        others = [private_floats(end - first) for _ in range(n_sections - 1)]
        return cls(version, first, end, [memory.floats, *others], memory)

    def part(self, first: int, end: int) -> list[Floats]:
        """Views of [first, end) of each section. Do not write to the list."""
        found = self._parts.get((first, end))
        if found is None:
            found = [section[first - self.first : end - self.first] for section in self.sections]
            self._parts[first, end] = found
        return found

    def payload(self, part: Range) -> memoryview:
        """The parameters of a part as bytes."""
        found = self._payloads.get(part)
        if found is None:
            found = self._payloads[part] = as_bytes(self.part(*part)[0])
        return found
