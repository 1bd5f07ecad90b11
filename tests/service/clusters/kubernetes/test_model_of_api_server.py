"""The simulation's model of the API server (docs/faults.md) answers as a real one does, to calls drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from optimus_world.api_server import ApiServer
from optimus_world.control_plane import Connection
from optimus_world.kernel import Kernel
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness

from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway

Call = Callable[[Gateway, str, dict[str, str]], Any]
"""Makes a call in the namespace of this path; the uids of objects that were made, by kind and name."""
KINDS = ("configmaps", "secrets", "pods")
NAMES = ("a", "b", "c")
MINE = "of=the-test"
_KINDS_OF_CALLS = ("create", "create", "get", "list", "pages", "patch", "delete", "delete-mine", "delete-other")


def a_body(kind: str, name: str, label: str) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": {"name": name, "labels": {"of": "the-test", "label": label}}}
    if kind == "pods":  # it never has a node: what kubelets do is no part of this
        containers = [{"name": "task", "image": "none"}]
        body["spec"] = {"containers": containers, "nodeSelector": {"no": "node"}, "terminationGracePeriodSeconds": 5}
    return body


def drawn(seed: int, n_calls: int) -> Iterator[tuple[str, Call]]:
    """What is asked for, in words, and how."""
    chance = random.Random(seed)
    for _ in range(n_calls):
        kind, name, label = chance.choice(KINDS), chance.choice(NAMES), chance.choice("xyz")
        path, what = f"/{kind}/{name}", chance.choice(_KINDS_OF_CALLS)
        selector = chance.choice((MINE, f"{MINE},label={label}", f"{MINE},label!={label}"))
        calls: dict[str, Call] = {
            "create": partial(_create, path, a_body(kind, name, label)),
            "get": partial(_get, path),
            "list": partial(_list, f"/{kind}", selector),
            "pages": partial(_pages, f"/{kind}", selector),
            "patch": partial(_patch, path, {"metadata": {"labels": {"label": label}}}),
            "delete": partial(_delete, path, None),
            "delete-mine": partial(_delete, path, "the last made"),
            "delete-other": partial(_delete, path, "another"),
        }
        yield f"{what} {path} {label} {selector}", calls[what]


def _create(path: str, body: dict[str, Any], server: Gateway, at: str, uids: dict[str, str]) -> Any:
    found = server.create((at + path).rpartition("/")[0], body)
    uids[path] = found["metadata"]["uid"]
    return _summary(found)


def _get(path: str, server: Gateway, at: str, _uids: object) -> Any:
    return _summary(server.get(at + path))


def _list(path: str, selector: str, server: Gateway, at: str, _uids: object) -> Any:
    return [_summary(item) for page in server.pages(at + path, {"labelSelector": selector}) for item in page["items"]]


def _pages(path: str, selector: str, server: Gateway, at: str, _uids: object) -> Any:
    """All, two at a time. A real server says that there is more where more is that the selector leaves out."""
    found, more = [], dict[str, str]()
    while True:
        page = server.get(at + path, {"labelSelector": selector, "limit": "2", **more})
        assert len(page["items"]) <= 2
        found += [_summary(item) for item in page["items"]]
        if not page["metadata"].get("continue"):
            return found
        more = {"continue": page["metadata"]["continue"]}


def _patch(path: str, body: dict[str, Any], server: Gateway, at: str, _uids: object) -> Any:
    return _summary(server.patch(at + path, body))


def _delete(path: str, of: str | None, server: Gateway, at: str, uids: dict[str, str]) -> None:
    uid = uids.get(path, "never made") if of == "the last made" else of
    server.delete(at + path, None if uid is None else {"preconditions": {"uid": uid}})


def _summary(found: dict[str, Any]) -> Any:
    metadata = found["metadata"]
    phase = (found.get("status") or {}).get("phase")
    return metadata["name"], metadata["labels"], "deletionTimestamp" in metadata, phase


def _answer(call: Call, server: Gateway, at: str, uids: dict[str, str]) -> Any:
    try:
        return call(server, at, uids)
    except ApiRefused as refused:
        return refused.status, refused.reason


def _seen(server: Gateway, path: str, version: str) -> list[Any]:
    """What a watch since that version shows, without what a real scheduler writes into the status of pods."""
    events = list(server.watch(path, {"labelSelector": f"{MINE},label!=x"}, version, 1))
    passed_over = ("BOOKMARK", "MODIFIED") if path.endswith("/pods") else ("BOOKMARK",)
    return [(kind, found["metadata"]["name"]) for kind, found in events if kind not in passed_over]


def a_model() -> Gateway:
    kernel = Kernel()
    server = ApiServer(lambda: 1_750_000_000.0 + kernel.now)
    machines = SimpleNamespace(unavailable=False, loses_answers=False)
    nothing = lambda _stream: None  # noqa: E731 - nobody counts the open watches
    plane = SimpleNamespace(
        kernel=kernel, server=server, machines=machines, answers_429=False, opened=nothing, closed=nothing
    )
    connection = Connection(cast(Any, plane), lambda: None)
    return Gateway(cast(Any, SimpleNamespace()), 5.0, connect=lambda _: cast(Any, connection))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_model_answers_as_the_real_one(kubernetes: KubernetesHarness, seed: int) -> None:
    at = f"/api/v1/namespaces/{kubernetes.namespace}"
    servers = (kubernetes.admin, a_model())
    begun = [server.get(f"{at}/configmaps")["metadata"]["resourceVersion"] for server in servers]
    uids: tuple[dict[str, str], ...] = ({}, {})
    for words, call in drawn(seed, 120):
        real, model = (_answer(call, server, at, mine) for server, mine in zip(servers, uids, strict=True))
        assert model == real, words
    for kind in KINDS:
        real, model = (_seen(server, f"{at}/{kind}", since) for server, since in zip(servers, begun, strict=True))
        assert model == real, f"a watch of {kind}"
