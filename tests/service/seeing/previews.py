"""What says what would happen, in a world that trains by formula."""

from __future__ import annotations

from collections.abc import Iterable

from tests.service.loop.loop_world import World

from optimus_scheduler.ahead.queue import Hindrances
from optimus_service import server
from optimus_service.insight.predictions.dry_run import Preview
from optimus_service.settings import Settings


def preview_of(world: World, settings: Settings | None = None, stalled: Iterable[str] = ()) -> Preview:
    """`settings`: None: those of the world."""
    return server.make_preview(
        settings or world.settings,
        world.repository,
        world.known,
        world.cluster,
        world.clock,
        lambda: Hindrances(dict.fromkeys(stalled)),
    )
