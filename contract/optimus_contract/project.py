"""What a project is guaranteed, and what its members may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from optimus_contract.allowance import NO_PROJECT_LIMITS, ProjectLimits
from optimus_contract.fields import SIZE, GpuType
from optimus_contract.message import FINITE, About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQuota(Message):
    """What a project is guaranteed of the cluster (`PUT /v1/projects/{name}`).

    A `share` of everything, amounts of single resources, or both: an amount overrules the share for its resource.
    Cores and memory that are not named follow the largest part that is.
    """

    share: Annotated[float | None, FINITE, About(ge=0, le=1, examples=(0.25,))] = None
    cpu: Annotated[float | None, FINITE, About("CPU cores", ge=0, le=1e9)] = None
    memory_bytes: Annotated[
        int | None, SIZE, About("bytes, or a string like 512Gi", ge=0, le=2**60, examples=("512Gi",))
    ] = None
    gpus: Annotated[
        dict[GpuType, Annotated[int, About(ge=0, le=10**6)]],
        About("by type", max_length=50, examples=({"a100": 8},), json_schema={"propertyNames": {"maxLength": 63}}),
    ] = field(default_factory=dict)
    may_borrow: Annotated[bool, About("whether it may have more than that while others leave it idle")] = True
    limits: ProjectLimits = NO_PROJECT_LIMITS

    def check(self) -> None:
        given = (self.share, self.cpu, self.memory_bytes, self.gpus or None)
        if all(each is None for each in given) and self.limits == NO_PROJECT_LIMITS:
            raise ValueError("give at least one of share, cpu, memory_bytes, gpus, limits")
