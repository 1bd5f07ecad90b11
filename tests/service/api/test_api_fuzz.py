"""Whatever is sent, the answer is a proper one: never a 500, never NaN, errors always problem documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.service.api.api_harness import Api, Surroundings, job_spec, membership, sample, telemetry
from tests.service.api.conftest import serve
from tests.service.conftest import BACKENDS

from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository

MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "telemetry"): telemetry(sample()),
    ("POST", "membership"): membership("job"),
    ("PUT", "profile"): {"n_parameters": 1, "n_examples": 1, "global_batch_size": 1, "steps_per_epoch": 1.0},
    ("POST", "result"): {"outcome": "failed", "step": 1, "final_loss": 0.5, "metrics": {"x": 1.0}, "error": "e"},
}

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, -0.0]),
)
texts = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=5),
    st.sampled_from(["NaN", "Infinity", "512Mi", "\0", "\ud800", "a" * 5000, "1e400", "null", "../..", "m:f"]),
)
values: SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def paths_in(value: Any) -> Iterator[tuple[str | int, ...]]:
    """The place of every value within a document."""
    yield ()
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from ((name, *rest) for rest in paths_in(part))


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A valid document with some values replaced, fields left out and fields added."""
    result = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths_in(result))))
        kind = draw(st.sampled_from(["replace", "remove", "add"]))
        if not path:
            return draw(values) if kind == "replace" else result
        holder = result
        for part in path[:-1]:
            holder = holder[part]
        if kind == "replace":
            holder[path[-1]] = draw(values)
        elif kind == "remove":
            del holder[path[-1]]
        elif isinstance(holder, dict):
            holder[draw(texts)] = draw(values)
    return result


@pytest.fixture(scope="module", params=BACKENDS)
def one_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One API for all examples of a test: what one leaves behind must not matter to the next."""
    folder = tmp_path_factory.mktemp("fuzz")
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), folder / "fuzz.db")
        url = f"sqlite:///{folder / 'fuzz.db'}"
    else:
        url = request.getfixturevalue("postgres_cluster").url(request.getfixturevalue("migrated_postgres"))
    repository = Repository(create_engine_from_url(url))
    with serve(repository, Settings(data_directory=folder, database_url=url), Surroundings()) as api:
        yield api
    repository.close()


def check(answer: Any) -> None:
    """An exception inside the app would have reached the test already."""
    assert answer.status_code < 500, answer.text
    if answer.content:
        json.loads(answer.text, parse_constant=refuse)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in an answer")


def look_at_everything(api: Api, job_id: str) -> None:
    for what in ("", "/events", "/predictions?workers=1&servers=1", "/allocations"):
        answer = api.get(f"/v1/jobs/{job_id}{what}")
        assert answer.status_code == 200, answer.text
        check(answer)


@MANY
@given(body=changed(job_spec(workers={"min": 1, "resources": {"cpu": 1}}, task_args={"a": 1}, environment={"A": "b"})))
def test_any_submission_is_answered_properly(one_api: Api, body: Any) -> None:
    answer = one_api.post("/v1/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    check(answer)
    if answer.status_code == 201:
        look_at_everything(one_api, answer.json()["id"])


@MANY
@given(call=st.sampled_from(sorted(BODIES)), data=st.data())
def test_any_report_of_a_task_is_answered_properly(one_api: Api, call: tuple[str, str], data: st.DataObject) -> None:
    method, what = call
    body = data.draw(changed(BODIES[call]))
    job_id = one_api.submit()
    one_api.start(job_id)
    content = json.dumps(body)
    headers = {"Content-Type": "application/json"}
    for _ in range(2):
        check(one_api.as_task(method, job_id, what, content=content, headers=headers))
    look_at_everything(one_api, job_id)


@MANY
@given(body=st.binary(max_size=200))
def test_any_bytes_are_answered_properly(one_api: Api, body: bytes) -> None:
    answer = one_api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    check(answer)
    assert 400 <= answer.status_code < 500


@MANY
@given(
    path=st.sampled_from(["/v1/jobs", "/v1/jobs/x/events", "/v1/jobs/x/predictions", "/v1/rounds", "/v1/jobs/x/logs"]),
    names=st.lists(
        st.sampled_from(
            ["limit", "cursor", "state", "name", "project", "workers", "servers", "task", "tail_bytes", "x"]
        ),
        max_size=3,
    ),
    data=st.data(),
)
def test_any_query_is_answered_properly(one_api: Api, path: str, names: list[str], data: st.DataObject) -> None:
    given_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    params = [(name, str(data.draw(st.one_of(given_texts, numbers)))) for name in names]
    check(one_api.get(path, params=params))
