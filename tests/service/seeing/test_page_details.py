"""The page in a real browser: figures and how they are read, logs, nodes, projects, colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.service.seeing.browser import barriers, opened
from tests.service.seeing.live import LiveService
from tests.service.store.store_builders import add_samples

from optimus_cli.commands.project import quota_words, whom_limits_hold
from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import MembershipFormed, Outcome, ResultReported
from optimus_scheduler.model import Allocation, Forecast, Interval
from optimus_service.requests import checked
from optimus_service.store.records import DecisionRecord, MembershipRecord, RoundRecord

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ACCURACIES = (0.1, 0.5, 0.75, 0.8)
STORED = "was-predicted"
OWN = "/home/me/project/train.py"
LOG = f"""step 1 loss 2.5
[rank0]: Traceback (most recent call last):
[rank0]:   File "{OWN}", line 12, in <module>
[rank0]:     main()
[rank0]:   File "{OWN}", line 8, in main
[rank0]:     loss = model(batch)
[rank0]:            ^^^^^^^^^^^^
[rank0]:   File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
[rank0]:     return forward_call(*args, **kwargs)
[rank0]: RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


@pytest.fixture(scope="module")
def stored(live: LiveService) -> LiveService:
    """A live service with a job that was evaluated and predicted, and has ended after 100 seconds."""
    repository, now = live.world.repository, live.world.clock()
    begun = now - 200.0
    spec = {"name": STORED, "task": "m:f", "workers": {"max": 1}, "servers": {"max": 1}}
    repository.jobs.create(STORED, write(checked(JobSpec, spec)), "n", None, "h", begun)
    members: dict[str, Any] = {"workers": (f"{STORED}-worker-0-0",), "servers": (f"{STORED}-server-0-0",)}
    membership = MembershipRecord(job_id=STORED, epoch=1, generation=1, at=begun, step=0, cause="start", **members)
    repository.memberships.report(STORED, membership)
    repository.jobs.advance(STORED, MembershipFormed(1), begun)
    samples = [
        Sample(
            membership_epoch=1, rank=0, sequence=index, workers=1, servers=1, at=begun + index, step=10 * (index + 1),
            n_steps=10, data_epoch=1.0 + index, loss=100.0**-index, n_examples=32, seconds=1.0,
            metrics={"test_accuracy": value},
        )
        for index, value in enumerate(ACCURACIES)
    ]  # fmt: skip
    add_samples(repository, STORED, samples, now)
    for age, left, hangs in ((20.0, 30.0, False), (40.0, 55.0, False), (50.0, 55.0, True), (60.0, 45.0, False)):
        _decide(live, begun + age, left, hangs=hangs)
    repository.jobs.advance(STORED, ResultReported(Outcome.SUCCEEDED, 40, 0.001, {"test_accuracy": 0.8}), begun + 100.0)
    return live


def _decide(live: LiveService, at: float, left: float, *, hangs: bool) -> None:
    ahead = Interval(left, 0.5 * left, 2.0 * left)
    decision = DecisionRecord(
        job_id=STORED, at=at, allocation=Allocation(1, 1), previous=Allocation(1, 1), reason="Unchanged",
        message="It keeps what it has.",
        forecast=Forecast(STORED, ahead, ahead, confidence=0.5, remaining_seconds=ahead, rule="max_steps"),
        is_without_end=hangs,
    )  # fmt: skip
    found = RoundRecord(at=at, trigger="period", seconds=0.1, phase_seconds={}, n_jobs=1, n_actions=0, error=None)
    live.world.repository.rounds.add(found, [decision])


def chart(page: Page, name: str) -> Any:
    """The figure with this caption."""
    return page.locator("figure.chart").filter(has=page.locator("figcaption", has_text=re.compile(f"^{name}$")))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_evaluations_have_a_picture_each(chromium: Browser, stored: LiveService) -> None:
    with opened(chromium, f"{stored.url}/#/jobs/{STORED}") as page:
        figure = chart(page, "test_accuracy")
        figure.locator("canvas").wait_for()
        label = figure.get_by_role("img").get_attribute("aria-label") or ""
        assert "4 values, from 0.1000 to 0.8000 at step 40" in label
        figure.get_by_text("As a table").click()
        cells = figure.locator("tbody td").all_text_contents()
        assert cells == ["10", "0.1000", "20", "0.5000", "30", "0.7500", "40", "0.8000"]


def test_no_end_is_predicted_of_a_job_that_has_ended(chromium: Browser, stored: LiveService) -> None:
    """As one that failed: how many steps it was predicted to make is told of it still."""
    told = httpx.get(f"{stored.url}/v1/jobs/{STORED}/predictions", trust_env=False, timeout=60).json()
    told["total_steps"] = {"mean": 60.0, "low": 60.0, "high": 60.0}
    with opened(chromium, f"{stored.url}/#/nodes") as page:
        page.route("**/predictions?**", lambda route: route.fulfill(json=told))
        page.goto(f"{stored.url}/#/jobs/{STORED}")
        figure = chart(page, "Loss by step")
        figure.locator("canvas").wait_for()
        label = figure.get_by_role("img").get_attribute("aria-label") or ""
        assert "4 points, the newest" in label
        assert "predicted" not in label


def test_a_comparison_calls_times_from_start_to_end_what_they_are(chromium: Browser, stored: LiveService) -> None:
    """Pauses, and waits after errors, are in them: the job did not train for so long."""
    with opened(chromium, f"{stored.url}/#/compare?jobs={STORED}") as page:
        results = page.get_by_role("region", name="Results", exact=True).locator("table.results")
        results.get_by_role("columnheader", name="from start to end").wait_for()
        heads = [each.strip() for each in results.locator("thead th").all_text_contents()]
        told = dict(zip(heads, results.locator("tbody th, tbody td").all_text_contents(), strict=True))
        assert {"until its start", "from start to end"} <= told.keys()
        assert "trained" not in told


def test_values_are_read_by_pointer_and_by_keyboard(chromium: Browser, stored: LiveService) -> None:
    with opened(chromium, f"{stored.url}/#/jobs/{STORED}") as page:
        figure = chart(page, "test_accuracy")
        reading = figure.locator(".reading")
        area = figure.locator(".u-over")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.34 * box["width"], box["y"] + 5)
        reading.filter(has_text=re.compile(r"step 20.*value 0\.5000")).wait_for()
        page.mouse.move(0, 0)
        reading.filter(has_text="step").wait_for(state="detached")
        slider = figure.get_by_role("slider", name="Values of test_accuracy")
        slider.focus()
        reading.filter(has_text=re.compile(r"step 40.*value 0\.8000")).wait_for()
        slider.press("ArrowLeft")
        reading.filter(has_text=re.compile(r"step 30.*value 0\.7500")).wait_for()
        assert slider.get_attribute("aria-valuetext") == "step 30: value 0.7500"
        slider.press("Home")
        reading.filter(has_text=re.compile(r"step 10.*value 0\.1000")).wait_for()


def test_a_logarithmic_scale_is_remembered(chromium: Browser, stored: LiveService) -> None:
    with opened(chromium, f"{stored.url}/#/jobs/{STORED}") as page:
        loss = chart(page, "Loss by step").locator("canvas")
        loss.wait_for()
        linear = loss.evaluate("it => it.toDataURL()")
        page.get_by_role("button", name="logarithmic").click()
        page.wait_for_function(
            "before => document.querySelector('figure.chart canvas').toDataURL() !== before", arg=linear
        )
        page.reload()
        page.locator("button[aria-pressed=true]", has_text="logarithmic").wait_for()
        loss.wait_for()
        assert loss.evaluate("it => it.toDataURL()") != linear


def test_small_numbers_of_an_axis_are_told_apart(chromium: Browser, stored: LiveService) -> None:
    with opened(chromium, f"{stored.url}/#/jobs/{STORED}") as page:
        chart(page, "Loss by step").locator("canvas").wait_for()
        page.evaluate(_NOTE_DRAWN_TEXTS)
        page.get_by_role("button", name="logarithmic").click()
        page.wait_for_function("() => drawn.has('1e-6')")
        assert {"1", "0.01", "0.0001", "1e-6"} <= {*page.evaluate("[...drawn]")}


_NOTE_DRAWN_TEXTS = """() => {
  window.drawn = new Set();
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    drawn.add(text);
    return draw.call(this, text, ...place);
  };
}"""


def test_how_the_predicted_end_moved_is_beside_what_came(chromium: Browser, stored: LiveService) -> None:
    with opened(chromium, f"{stored.url}/#/jobs/{STORED}") as page:
        region = page.get_by_role("region", name="How the predicted end moved")
        region.locator("canvas").wait_for()
        label = region.get_by_role("img").get_attribute("aria-label") or ""
        # After 20 s: 30 s left; after 60 s: 45 s left. It took 100 s.
        broken = "Where the line is broken, its end could not be said."
        assert f"First 50 s, last 1 min 45 s. {broken} It took 1 min 40 s." in label
        slider = region.get_by_role("slider")
        slider.focus()
        slider.press("Home")
        region.locator(".reading").filter(
            has_text=re.compile("predicted 50 s.*35 s – 1 min.*came 1 min 40 s")
        ).wait_for()
        region.get_by_text("As a table").click()
        ends = region.locator("tbody tr td:nth-child(2)").all_text_contents()
        assert ends == ["50 s", "1 min 35 s", "—", "1 min 45 s"], "none of the moment at which it hung"


def test_the_median_error_of_predictions_is_told_as_the_service_tells_it(chromium: Browser, live: LiveService) -> None:
    score = {"kind": "start", "part": "first step", "promises": 3, "held": 0.995}
    errors = [{**score, "part": str(error), "median_error_percent": error} for error in (12.7, 99.9, 350.0)]
    with opened(chromium, f"{live.url}/#/nodes") as page:
        page.route("**/v1/promises", lambda route: route.fulfill(json={"scores": errors, "tasks": []}))
        page.goto(f"{live.url}/#/")
        page.get_by_text("How predictions turned out").click()
        cells = page.locator("details tbody tr td:nth-child(n + 4)").filter(has_text="%")
        cells.nth(5).wait_for()
        assert cells.all_text_contents() == ["99 %", "13 %", "99 %", "100 %", "99 %", "350 %"]


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_log_shows_the_users_own_frames_first(chromium: Browser, live: LiveService) -> None:
    world = live.world
    key = next(task.key for task in world.cluster.tasks() if "-worker-0-" in task.key.name)
    world.cluster.print_line(key, LOG)
    with opened(chromium, f"{live.url}/#/jobs/{key.job_id}") as page:
        region = page.get_by_role("region", name="Logs")
        region.get_by_text("What its tasks printed").click()
        region.get_by_label("Task").select_option(key.name)
        trace = region.locator("ol.tracebacks")
        trace.get_by_text("RuntimeError: mat1 and mat2 shapes cannot be multiplied").wait_for()
        frames = [" ".join(each.split()) for each in trace.locator("ol.frames li").all_text_contents()]
        assert frames == [f"{OWN}, line 8, in mainloss = model(batch)", f"{OWN}, line 12, in <module>main()"]
        assert "1 more frame is in the text below" in (trace.text_content() or "")
        assert "site-packages" in (region.locator("pre").text_content() or "")
        position = "it => it.getBoundingClientRect().top"
        assert trace.evaluate(position) < region.locator("pre").evaluate(position)


# --- places ----------------------------------------------------------------------------------------------------------


def test_nodes_show_who_sits_where(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, f"{live.url}/#/nodes") as page:
        rows = page.locator("table.places tbody tr")
        rows.first.wait_for()
        nodes = {
            each["name"]: each
            for each in httpx.get(f"{live.url}/v1/nodes", trust_env=False, timeout=60).json()["nodes"]
        }
        assert [each.evaluate("cell => cell.firstChild.textContent") for each in rows.locator("th").all()] == list(
            nodes
        )
        link = rows.locator("a").first
        link.wait_for()
        name = link.text_content()
        link.click()
        page.get_by_role("heading", level=1, name=name or "").wait_for()


def test_projects_show_what_they_are_guaranteed_and_have(chromium: Browser, live: LiveService) -> None:
    with quotas(live, vision={"share": 0.5, "may_borrow": False}), opened(chromium, f"{live.url}/#/projects") as page:
        row = page.locator("table.places tbody tr").filter(has_text="vision")
        row.get_by_text("50 % of everything; may not borrow").wait_for()
        text = row.text_content() or ""
        assert "12 cores" in text
        assert "limits hold for" not in text
        assert "comes to" not in text
        page.get_by_role("region", name="Without a quota").get_by_text("language").wait_for()


def test_projects_show_their_limits_and_what_others_shrink(chromium: Browser, live: LiveService) -> None:
    """In the words of `optimus project show`."""
    most = {"workers_together": 9, "max_priority": 2.5}
    given: dict[str, Any] = {"vision": {"cpu": 18.0, "limits": most}, "speech": {"cpu": 18.0}}
    with quotas(live, **given), opened(chromium, f"{live.url}/#/projects") as page:
        rows = page.locator("table.places tbody tr")
        told = httpx.get(f"{live.url}/v1/projects/vision", trust_env=False, timeout=60).json()
        asked = quota_words(told["quota"])
        assert "workers together 9, max priority 2.5" in asked
        vision = rows.filter(has=page.get_by_role("rowheader", name="vision"))
        vision.get_by_text(asked).wait_for()
        [(label, bound)] = whom_limits_hold(told["quota"])
        vision.get_by_text(f"{label} {bound}", exact=True).wait_for()
        assert "comes to 12 cores now, because the quotas of all projects together exceed" in told["shrunk"]
        for row in (vision, rows.filter(has=page.get_by_role("rowheader", name="speech"))):
            row.get_by_text(told["shrunk"], exact=True).wait_for()
        assert page.get_by_text("limits hold for").count() == 1
        for width in (1400, 800, 390):
            page.set_viewport_size({"width": width, "height": 844})
            cut = 'box => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "auto"'
            assert not page.locator("div.table").evaluate(cut), f"columns are out of reach at {width} pixels"
        assert barriers(page) == []


@contextmanager
def quotas(live: LiveService, **of_projects: Any) -> Iterator[None]:
    """Projects with these quotas, for a while."""
    try:
        for name, quota in of_projects.items():
            answer = httpx.put(f"{live.url}/v1/projects/{name}", json=quota, trust_env=False)
            assert answer.is_success, answer.text
        yield
    finally:
        for name in of_projects:
            httpx.delete(f"{live.url}/v1/projects/{name}", trust_env=False)


@pytest.mark.parametrize("path", ["nodes", "projects", f"jobs/{STORED}"])
def test_there_are_no_barriers_and_nothing_is_cut_off(chromium: Browser, stored: LiveService, path: str) -> None:
    with opened(chromium, f"{stored.url}/#/{path}") as page:
        page.get_by_role("heading", level=1).wait_for()
        for details in page.locator("main details summary").all():
            details.click()
        assert barriers(page) == []
        for width in (1400, 800, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- colours ---------------------------------------------------------------------------------------------------------


def _colours(page: Page) -> dict[str, str]:
    """Of each job in the list that has one."""
    page.locator("table.jobs .swatch[class*=series-]").first.wait_for()
    found: dict[str, str] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("table.jobs tbody tr")].flatMap((row) => {
            const colour = /series-\\d+/.exec(row.querySelector(".swatch").className);
            return colour ? [[row.querySelector("a").textContent, colour[0]]] : [];
        }))"""
    )
    return found


def test_a_job_has_one_colour_everywhere(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, live.url) as page:
        page.locator(".legend a").first.wait_for()
        before = _colours(page)
        assert len(set(before.values())) == len(before)
        for item in page.locator(".legend li:has(a)").all():
            assert before[item.locator("a").inner_text()] in (item.locator(".swatch").get_attribute("class") or "")
        page.reload()
        page.locator(".legend a").first.wait_for()
        after = _colours(page)
        assert {name: after[name] for name in before if name in after} == {
            name: colour for name, colour in before.items() if name in after
        }
        name = next(iter(after))
        page.get_by_role("link", name=name, exact=True).first.click()
        heading = page.get_by_role("heading", level=1, name=name)
        assert after[name] in (heading.locator(".swatch").get_attribute("class") or "")
