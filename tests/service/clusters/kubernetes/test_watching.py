"""One watch through all that can happen to it, on a gateway that plays a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.clusters.kubernetes.kubernetes_harness import wait_for

from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes import watcher as watcher_module
from optimus_service.clusters.kubernetes.gateway import ApiRefused
from optimus_service.clusters.kubernetes.mirror import Mirror
from optimus_service.clusters.kubernetes.watcher import Watcher

Json = dict[str, Any]


def thing(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


class Script:
    """A gateway. `lists` and `watches` are played one after the other; then the server is away."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches = lists, watches
        self.asked: list[str] = []

    def pages(self, path: str, query: Any) -> Iterator[Json]:
        self.asked.append("list")
        answer = self._next(self.lists)
        for page in answer:
            yield {"metadata": {"resourceVersion": "10"}, "items": page}

    def watch(self, path: str, query: Any, version: str, seconds: int) -> _Played:
        self.asked.append(f"watch {version}")
        return _Played(self._next(self.watches))

    def _next(self, answers: list[Any]) -> Any:
        if not answers:
            raise ClusterUnavailable("away")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Played:
    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self) -> None:
        """Nobody waits here."""


GONE = ApiRefused(410, "Expired", "too old resource version")
AWAY = ClusterUnavailable("connection reset")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "_FIRST_PAUSE_SECONDS", 0.001)


def play(lists: list[Any], watches: list[Any], asked: list[str]) -> list[str]:
    """What is known in the end; the calls must have been these, and then tries that fail."""
    script = Script(lists, watches)
    mirror: Mirror[str] = Mirror(lambda found: str(found["metadata"]["name"]))
    watcher = Watcher(script, "/things", {}, mirror, 60)  # type: ignore[arg-type]
    assert watcher.problem is not None
    watcher.start()
    wait_for("the script is over", lambda: len(script.asked) > len(asked))
    watcher.close()
    assert script.asked[: len(asked)] == asked
    return sorted(mirror.values())


def test_changes_are_followed() -> None:
    events = [("ADDED", thing("c", 11)), ("MODIFIED", thing("a", 12)), ("DELETED", thing("b", 13))]
    found = play([[[thing("a", 1)], [thing("b", 2)]]], [events, []], ["list", "watch 10", "watch 13"])
    assert found == ["a", "c"]


def test_bookmarks_move_the_place_to_go_on() -> None:
    play([[[]]], [[("BOOKMARK", thing("", 99))], []], ["list", "watch 10", "watch 99"])


@pytest.mark.parametrize("gone", [GONE, [("ADDED", thing("x", 11)), GONE]])
def test_too_old_means_list_again(gone: Any) -> None:
    found = play([[[thing("a", 1)]], [[thing("b", 2)]]], [gone, []], ["list", "watch 10", "list", "watch 10"])
    assert found == ["b"]


@pytest.mark.parametrize("error", [AWAY, ValueError("garbage"), ApiRefused(403, "Forbidden", "no")])
def test_trouble_is_no_end(error: Exception) -> None:
    script = Script([error, [[thing("a", 1)]]], [[("ADDED", thing("b", 11)), AWAY], [("DELETED", thing("b", 12))]])
    mirror: Mirror[str] = Mirror(lambda each: str(each["metadata"]["name"]))
    watcher = Watcher(script, "/things", {}, mirror, 60)  # type: ignore[arg-type]
    watcher.start()
    wait_for("all was played", lambda: not script.watches and watcher.problem is not None and mirror.values() == ["a"])
    watcher.close()
    # Resumed from where it broke, not from the beginning.
    assert script.asked[:4] == ["list", "list", "watch 10", "watch 11"]
