"""One range of the flat vector at one version."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from optimus_workers.wire.memory import FloatMemory, private_floats, shareable_floats


@dataclass(slots=True)
class RangeState:
    """The range [first, end) at one version. Section 0: parameters, the others: optimizer state; all (end - first,)."""

    version: int
    first: int
    end: int
    sections: list[Tensor]
    memory: FloatMemory | None = None
    """Of section 0, if workers on this machine may map it."""

    @classmethod
    def zeros(cls, version: int, first: int, end: int, n_sections: int) -> RangeState:
        memory = shareable_floats(end - first)
        others = [private_floats(end - first) for _ in range(n_sections - 1)]
        return cls(version, first, end, [memory.floats, *others], memory)

    def part(self, first: int, end: int) -> list[Tensor]:
        """Views of [first, end) of each section."""
        return [section[first - self.first : end - self.first] for section in self.sections]
