"""Who used how much, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from optimus_contract import answers
from optimus_models.cost import SECONDS_PER_HOUR
from optimus_scheduler.forecast.prices import has_prices, price
from optimus_scheduler.settings import Settings
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented
from optimus_service.api.services import CallerDep, ServicesDep
from optimus_service.insight.format import moment
from optimus_service.store.jobs.charging import month_of
from optimus_service.store.records import UsageRecord

router = APIRouter(route_class=StrictRoute, tags=["cluster"])

_MONTH = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])$")


def _month(value: object) -> object:
    if isinstance(value, str) and not _MONTH.fullmatch(value):
        raise ValueError("must be a month such as 2026-11")
    return value


MonthQuery = Annotated[
    str | None,
    BeforeValidator(_month),
    Query(description="in UTC; default: this one", json_schema_extra={"pattern": _MONTH.pattern}, examples=["2026-11"]),
]


@router.get("/v1/usage", responses=documented(422))
def show_usage(services: ServicesDep, caller: CallerDep, month: MonthQuery = None) -> answers.Usage:
    """What jobs of the projects that the caller may read were given in a month, by project, owner and GPU type.

    Counted is what jobs have been given, from the moment a round gives it until it is taken away or the job ends; what
    deleted jobs had stays. Jobs that run elsewhere (tracked ones) are not counted.
    """
    now = services.clock()
    chosen, prices = month or month_of(now), services.settings.scheduling
    lines = [_line(record, prices) for record in services.repository.usage.of_month(chosen, now, caller.projects)]
    return answers.Usage(month=chosen, until=moment(now), total=_total(lines, prices), lines=lines)


def _line(record: UsageRecord, prices: Settings) -> answers.UsageLine:
    core_hours, gpu_hours = record.core_seconds / SECONDS_PER_HOUR, record.gpu_seconds / SECONDS_PER_HOUR
    return answers.UsageLine(
        owner=record.owner,
        project=record.project,
        gpu_type=record.gpu_type,
        worker_hours=record.worker_seconds / SECONDS_PER_HOUR,
        core_hours=core_hours,
        gpu_hours=gpu_hours,
        cost=price(core_hours, gpu_hours, record.gpu_type, prices) if has_prices(prices) else None,
    )


def _total(lines: Iterable[answers.UsageLine], prices: Settings) -> answers.UsageAmounts:
    lines = list(lines)
    return answers.UsageAmounts(
        worker_hours=sum(line.worker_hours for line in lines),
        core_hours=sum(line.core_hours for line in lines),
        gpu_hours=sum(line.gpu_hours for line in lines),
        cost=sum(line.cost or 0.0 for line in lines) if has_prices(prices) else None,
    )
