"""The page in a real browser: what it shows, that it is live, and that everybody can use it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.service.seeing.browser import PATIENCE_MS, barriers, opened
from tests.service.seeing.crowded import AGE_SECONDS, GPU_TYPES, LAST_LINE, N_SWEEP, add_ended, add_training
from tests.service.seeing.live import LiveService, live_service
from tests.service.store.store_builders import set_wanted

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed, Outcome, ResultReported
from optimus_scheduler.model import Allocation, Directive, JobState
from optimus_scheduler.retries import LONGEST_RETRY_SECONDS
from optimus_service.requests import checked
from optimus_service.store.records import MembershipRecord
from scripts import page_types

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "service" / "optimus_service" / "web" / "static"
TOKEN = "a token of sixteen and more"
PHONE = {"width": 390, "height": 844}

# uvicorn 0.5x and websockets warn of each other's deprecations when a server runs in a thread.
pytestmark = pytest.mark.browser


def rows(page: Page) -> Any:
    return page.locator("table.jobs tbody tr")


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_the_cluster_at_a_glance(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, live.url) as page:
        page.get_by_role("heading", level=1).filter(has_text=re.compile("of 4 GPUs|Nothing is training")).wait_for()
        rows(page).first.wait_for()
        names = {each.text_content() for each in page.locator("table.jobs th[scope=row] a").all()}
        known = {each["name"] for each in httpx.get(f"{live.url}/v1/jobs", trust_env=False, timeout=60).json()["jobs"]}
        assert names == known
        page.get_by_role("img", name=re.compile("GPUs by job. Now .* in use; nodes that take tasks have 4")).wait_for()
        assert page.locator(".plot canvas").count() == 1
        assert page.get_by_role("list", name="Who has what").get_by_role("link").count() >= 1


def test_a_new_job_appears_by_itself(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, live.url) as page:
        rows(page).first.wait_for()
        spec = {"name": "late-comer", "task": "m:f", "workers": {"min": 8, "max": 8}, "servers": {"min": 15, "max": 15}}
        document = write(checked(JobSpec, spec))
        live.world.repository.jobs.create("late-comer-1", document, "n", None, "h", live.world.clock())
        live.loop.trigger("submit")
        row = rows(page).filter(has_text="late-comer")
        row.filter(has_text="queued").wait_for()
        row.filter(has_text=re.compile("waiting for resources|no feasible node")).wait_for()
        page.locator(".waits").filter(has_text=re.compile("waiting for resources|no feasible node")).wait_for()


def test_a_job_with_its_loss_its_sizes_and_its_reasons(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, f"{live.url}/#/jobs/resnet-50-x7k2p") as page:
        page.get_by_role("heading", level=1, name="resnet-50").wait_for()
        page.get_by_role("img", name=re.compile("Loss by step")).locator("canvas").wait_for()
        page.get_by_role("img", name=re.compile("Workers and servers")).locator("canvas").wait_for()
        why = page.get_by_role("region", name="Why it has that")
        explanation = httpx.get(f"{live.url}/v1/jobs/resnet-50-x7k2p/explanation", trust_env=False, timeout=60).json()
        why.get_by_text("To get more").wait_for()
        assert len(why.locator("p").all()) >= len(explanation["sentences"])
        assert page.get_by_text("The job was submitted.").count() == 1
        page.get_by_role("link", name="Cluster").click()
        rows(page).first.wait_for()


def test_a_change_of_the_batch_is_said_in_words(chromium: Browser, live: LiveService) -> None:
    repository, now = live.world.repository, live.world.clock()
    elastic = {"minimum": 32, "maximum": 256, "per_pass": 64}
    spec = {"name": "elastic", "task": "m:f", "architecture": "allreduce", "elastic_batch": elastic}
    document = write(checked(JobSpec, spec))
    # It never runs here, so that no round interferes: three memberships, and its end.
    repository.jobs.create("elastic-1", document, "n", None, "h", now - 100)
    for epoch, (cause, batch) in enumerate((("start", 32), ("batch", 256)), start=1):
        membership = MembershipRecord(
            job_id="elastic-1", epoch=epoch, generation=1, at=now - 90 + 10 * epoch, step=epoch * 100,
            workers=("elastic-1-worker-0-0",), servers=(), cause=cause, global_batch=batch,
        )  # fmt: skip
        repository.memberships.report("elastic-1", membership)
        repository.jobs.advance("elastic-1", MembershipFormed(epoch), now)
    result: dict[str, Any] = {
        "step": 300,
        "final_loss": 0.1,
        "metrics": {},
        "error": None,
        "checkpoint": None,
        "model": None,
    }
    repository.jobs.advance("elastic-1", ResultReported(outcome=Outcome.SUCCEEDED, **result), now)
    with opened(chromium, f"{live.url}/#/jobs/elastic-1") as page:
        page.get_by_text("As a table").click()
        rows = page.get_by_role("region", name="What it had").locator("tbody tr")
        rows.first.wait_for()
        words = [row.locator("td").all_text_contents()[1:3] for row in rows.all()]
    assert words == [
        ["1 worker, 256 examples a step", "another size of the global batch"],
        ["1 worker, 32 examples a step", "start"],
    ]


def test_a_job_that_is_not_there_is_said(chromium: Browser, live: LiveService) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{live.url}/#/jobs/nobody")
        page.get_by_text("nobody").first.wait_for(timeout=PATIENCE_MS)


def test_jobs_can_be_found_and_sorted_by_keyboard(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, live.url) as page:
        rows(page).first.wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.get_by_role("button", name="job", exact=True).focus()
        page.keyboard.press("Enter")
        page.locator("th[aria-sort=ascending]").filter(has_text="job").wait_for()
        names = page.locator("table.jobs th[scope=row] a").all_text_contents()
        assert names == sorted(names)
        page.get_by_role("searchbox").fill("tiny")
        rows(page).filter(has_text="resnet").wait_for(state="detached")
        assert page.locator("table.jobs th[scope=row] a").all_text_contents() == ["tiny-mlp"]


# --- for everybody ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/#/jobs/resnet-50-x7k2p", "/#/jobs/tiny-mlp-x7k2p"])
def test_nothing_is_cut_off_on_a_phone(chromium: Browser, live: LiveService, path: str) -> None:
    with opened(chromium, live.url + path, viewport=PHONE) as page:
        page.locator(".plot canvas").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("path", ["/", "/#/jobs/resnet-50-x7k2p"])
def test_no_barriers_are_found(chromium: Browser, live: LiveService, path: str) -> None:
    with opened(chromium, live.url + path) as page:
        page.locator(".plot canvas").first.wait_for()
        assert barriers(page) == []


def test_colours_follow_the_machine_or_ones_choice(chromium: Browser, live: LiveService) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(chromium, live.url, color_scheme="dark") as page:
        rows(page).first.wait_for()
        dark = page.evaluate(background)
        page.get_by_role("button", name="Colours: auto").click()
        page.get_by_role("button", name="Colours: light").wait_for()
        assert page.evaluate(background) != dark
        page.reload()
        page.get_by_role("button", name="Colours: light").wait_for()


# --- awkward data -----------------------------------------------------------------------------------------------------

WIDTHS = (1400, 800, 390)
VIEWS = (
    "",
    "failed-early",
    "failed-late",
    "one-point",
    "no-data",
    "became-nan",
    "just-started",
    "no-telemetry",
    "paused",
)
"""The cluster, and jobs of `crowded_service`."""
CRAMPED = """() => {
    // A cell with text that is narrower than a word, or so high that its text stands in a column of letters.
    const shown = (cell) => cell.offsetParent !== null && cell.textContent.trim().length > 3;
    const cells = [...document.querySelectorAll("main th, main td, main dd, main .tile, main .under")].filter(shown);
    const cramped = ({clientWidth: width, clientHeight: height}) => width < 48 || (height > 160 && height > 2 * width);
    const spilling = (cell) => cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).overflow === "visible";
    return cells.filter((cell) => cramped(cell) || spilling(cell))
        .map((cell) => [cell.textContent.slice(0, 60), cell.clientWidth, cell.clientHeight]);
}"""


def test_no_text_squeezes_another(chromium: Browser, crowded: LiveService) -> None:
    with opened(chromium, crowded.url) as page:
        for view in VIEWS:
            page.goto(f"{crowded.url}/#/jobs/{view}" if view else f"{crowded.url}/#/")
            ready = page.get_by_role("heading", name="Events") if view else rows(page).nth(N_SWEEP)
            ready.wait_for()
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
                assert page.evaluate(CRAMPED) == [], (view, width)


def test_the_list_shows_the_last_line_of_an_error_and_the_page_of_the_job_all_of_it(
    chromium: Browser, crowded: LiveService
) -> None:
    with opened(chromium, crowded.url, viewport={"width": 1400, "height": 900}) as page:
        row = rows(page).filter(has_text="OutOfMemoryError")
        row.wait_for()
        assert "Traceback" not in (row.text_content() or "")
        assert row.evaluate("row => row.clientHeight") < 120
        page.goto(f"{crowded.url}/#/jobs/failed-early")
        trouble = page.locator(".trouble")
        trouble.get_by_text(f"The job failed: worker 0 failed: {LAST_LINE}").wait_for()
        assert not trouble.get_by_text("folder_0/module.py").is_visible()
        trouble.get_by_text("The whole error").click()
        trouble.get_by_text("folder_0/module.py").wait_for()
        assert (page.locator("main").text_content() or "").count("Traceback") == 1


def test_many_gpu_types_are_one_tile_with_a_list(chromium: Browser, crowded: LiveService) -> None:
    with opened(chromium, crowded.url) as page:
        tile = page.locator(".tile").filter(has_text=f"GPUs of {len(GPU_TYPES)} types")
        tile.get_by_text("By type").click()
        assert tile.get_by_role("listitem").count() == len(GPU_TYPES)
        assert page.locator(".tile").count() < 8


def test_a_chart_begins_with_the_first_job(chromium: Browser, crowded: LiveService) -> None:
    with opened(chromium, crowded.url) as page:
        for span in ("15 min", "1 h", "7 d"):
            page.get_by_role("button", name=span, exact=True).click()
            chart = page.get_by_role("img", name=re.compile("Shown from"))
            chart.wait_for()
            found = re.search(r"Shown from (\d+):(\d+) to (\d+):(\d+)", chart.get_attribute("aria-label") or "")
            assert found
            first_hour, first_minute, last_hour, last_minute = map(int, found.groups())
            minutes = ((last_hour - first_hour) * 60 + last_minute - first_minute) % (24 * 60)
            if span == "15 min":
                assert minutes <= AGE_SECONDS / 60 + 5


@pytest.mark.parametrize("job_id", ["failed-early", "paused"])
def test_a_job_that_does_not_change_is_seldom_asked_for(chromium: Browser, crowded: LiveService, job_id: str) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.clock.install()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if f"/v1/jobs/{job_id}" in request.url else None)
        page.goto(f"{crowded.url}/#/jobs/{job_id}")
        page.clock.run_for(5_000)
        page.get_by_role("heading", name="Events").wait_for(timeout=PATIENCE_MS)
        page.get_by_role("status").filter(has_text="live").wait_for(timeout=PATIENCE_MS)
        page.clock.run_for(10_000)
        before = len(asked)
        page.clock.run_for(30_000)  # shorter than the silence after which the page connects again
        page.get_by_role("link", name="Cluster").click()
        rows(page).first.wait_for(timeout=PATIENCE_MS)
        # An active job is loaded each 15 s, and once more where a round changes its line; each 3 s would be 60.
        assert before <= 18
        assert len(asked) - before <= (0 if job_id == "failed-early" else 18)


def test_a_page_of_an_active_job_goes_on_while_the_stream_tells_nothing_of_it(
    chromium: Browser, crowded: LiveService
) -> None:
    """Its time to a limit, cost, wait and place in the queue move, though its line does not."""
    queue = {"waiting": 9, "same_start_by": "age", "next_cursor": None}
    positions = iter(range(9, 0, -1))
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.clock.install()
        page.route(
            "**/v1/queue**",
            lambda route: route.fulfill(json={**queue, "jobs": [{"id": "paused", "position": next(positions)}]}),
        )
        page.goto(f"{crowded.url}/#/jobs/paused")
        page.clock.run_for(1_000)
        page.get_by_role("link", name=" of 9 in the queue").wait_for()
        page.get_by_role("status").filter(has_text="live").wait_for()
        page.clock.run_for(10_000)
        place = page.get_by_role("link", name=" of 9 in the queue").inner_text()
        with page.expect_response(re.compile("/paused/explanation")):
            page.clock.run_for(15_000)
        page.get_by_role("link", name=place).wait_for(state="detached")
        assert page.get_by_role("link", name=" of 9 in the queue").inner_text() < place


def test_a_job_that_waits_after_an_error_counts_down_to_its_retry(chromium: Browser, crowded: LiveService) -> None:
    retry_at = crowded.world.repository.jobs.get("retried").retry_at
    assert retry_at is not None
    with chromium.new_context() as context:
        page = context.new_page()
        page.clock.install(time=retry_at - 25.0)  # the page's own clock: how long ago the job failed does not matter
        page.goto(f"{crowded.url}/#/jobs/retried")
        wait = page.get_by_role("timer", name="Next retry")
        wait.filter(has_text=re.compile(r"Retry 1 in \d+")).wait_for(timeout=PATIENCE_MS)
        assert LAST_LINE in wait.inner_text()
        page.clock.run_for(int(LONGEST_RETRY_SECONDS) * 1000)
        wait.filter(has_text="Retry 1 is due").wait_for(timeout=PATIENCE_MS)


def test_a_cancelled_job_can_be_resumed_and_a_refusal_is_shown(chromium: Browser, crowded: LiveService) -> None:
    add_ended(crowded.world, "to-resume", "to-resume", Outcome.FAILED, error="worker 0 failed", losses=[2.0, 1.5])
    cancelled = crowded.world.repository.jobs.advance("to-resume", CancelRequested(), crowded.world.clock())
    assert cancelled.state is JobState.CANCELLED
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{crowded.url}/#/jobs/to-resume")
        button = page.get_by_role("button", name="Resume from the last checkpoint")
        button.click()
        page.get_by_role("alert").filter(has_text="the job has no checkpoint").wait_for()
        directory = crowded.services.settings.data_directory / "jobs" / "to-resume" / "checkpoints"
        directory.mkdir(parents=True)
        (directory / "manifest-2.json").write_text("{}", encoding="utf-8")
        button.click()
        page.get_by_text("Going on from the last checkpoint was asked for.").first.wait_for()
        button.wait_for(state="detached")
    assert crowded.world.repository.jobs.get("to-resume").attempt == cancelled.attempt + 1


def test_a_job_is_paused_and_resumed(chromium: Browser, crowded: LiveService) -> None:
    add_training(crowded.world, "to-pause", "to-pause", [2.0, 1.5])
    pause: dict[str, Any] = {"name": "Pause", "exact": True}
    resume: dict[str, Any] = {"name": "Resume", "exact": True}
    with opened(chromium, f"{crowded.url}/#/jobs/to-pause") as page:
        page.get_by_role("button", **pause).click()
        page.get_by_role("button", **resume).wait_for()
        page.get_by_text("Paused by its owner since").first.wait_for()
        page.get_by_text("goes on after it is resumed").wait_for()  # in the place of a time until its start
        page.get_by_role("heading", name="Why it is paused").wait_for()
        assert crowded.world.repository.jobs.get("to-pause").owner_paused_at is not None
        page.get_by_role("button", **resume).click()
        page.get_by_role("button", **pause).wait_for()
    assert crowded.world.repository.jobs.get("to-pause").owner_paused_at is None


def test_the_page_asks_before_a_script_may_lose_its_steps(chromium: Browser, crowded: LiveService) -> None:
    script: dict[str, Any] = {"architecture": "script", "command": ["python", "train.py"], "task": None}
    add_training(crowded.world, "script-runs", "script-runs", [2.0, 1.5], **script)
    set_wanted(crowded.world.repository, "script-runs", Allocation(1, 0), Directive.RUN, (), crowded.world.clock())
    with opened(chromium, f"{crowded.url}/#/jobs/script-runs") as page:
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("status").filter(
            has_text=re.compile(r"It is not known to go on from a checkpoint, and loses 2 steps \(.* of work\)\.$")
        ).wait_for()
        page.get_by_role("button", name="Let it run").click()
        page.get_by_role("button", name="Pause", exact=True).click()
        assert crowded.world.repository.jobs.get("script-runs").owner_paused_at is None
        page.get_by_role("button", name="Pause it all the same").click()
        page.get_by_role("button", name="Resume", exact=True).wait_for()


def test_who_may_not_be_paused_has_no_button(chromium: Browser, crowded: LiveService) -> None:
    spec: dict[str, Any] = {"tracked": True, "task": None, "convergence": {"max_steps": 10}}
    add_training(crowded.world, "watched-only", "watched-only", [2.0, 1.5], **spec)
    with opened(chromium, f"{crowded.url}/#/jobs/watched-only") as page:
        for job_id in ("watched-only", "no-data"):
            page.goto(f"{crowded.url}/#/jobs/{job_id}")
            page.locator("p.under").filter(has_text=job_id).wait_for()
            assert page.get_by_role("button", name=re.compile("Pause|Resume")).count() == 0


def test_labels_are_seen_and_find_jobs(chromium: Browser, crowded: LiveService) -> None:
    labels = {"team": "search", "urgent": ""}
    add_training(crowded.world, "labelled", "labelled", [2.0, 1.5], labels=labels)
    with opened(chromium, crowded.url) as page:
        rows(page).filter(has_text="sweep").first.wait_for()
        page.get_by_role("button", name="team=search").click()
        rows(page).filter(has_text="sweep").first.wait_for(state="detached")
        assert page.locator("table.jobs th[scope=row] a").all_text_contents() == ["labelled"]
        assert page.get_by_role("combobox", name="label").input_value() == "team=search"
        assert page.url.endswith("#/?label=team%3Dsearch")
        page.get_by_role("link", name="labelled", exact=True).click()
        page.get_by_role("heading", level=1, name="labelled").wait_for()
        assert page.get_by_role("list", name="Labels").get_by_role("listitem").all_text_contents() == [
            "team=search",
            "urgent",
        ]
        change = {"labels": {"urgent": "yes", "team": None}}
        assert httpx.patch(f"{crowded.url}/v1/jobs/labelled", json=change, trust_env=False).status_code == 200
        page.get_by_role("listitem").filter(has_text="urgent=yes").wait_for()
        page.get_by_role("listitem").filter(has_text="team=search").wait_for(state="detached")


# --- who may see it --------------------------------------------------------------------------------------------------


def test_with_a_token_one_signs_in_first(chromium: Browser, tmp_path: Path) -> None:
    with live_service(tmp_path, token=TOKEN, history_seconds=40) as service, opened(chromium, service.url) as page:
        page.get_by_label("Token").fill("not the token at all")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").filter(has_text="does not know this token").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        rows(page).first.wait_for()
        page.reload()
        rows(page).first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()


def test_a_service_that_goes_away_is_noticed(chromium: Browser, tmp_path: Path) -> None:
    with (
        live_service(tmp_path, history_seconds=40) as service,
        opened(chromium, service.url, service_stops=True) as page,
    ):
        page.get_by_role("status").filter(has_text="live").wait_for()
        service.stop()
        page.get_by_role("status").filter(has_text="not connected").wait_for()
        rows(page).first.wait_for()


def test_only_its_own_files_may_be_loaded(live: LiveService) -> None:
    with httpx.Client(base_url=live.url, trust_env=False, timeout=60) as client:
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
        assets = re.findall(r'"(/assets/[^"]+)"', page.text)
        assert {path.rpartition(".")[2] for path in assets} == {"js", "css"}
        assert not [path for path in assets if "/docs-" in path], "the viewer of the API is for /docs only"
        assert sum(len(client.get(path).content) for path in assets) < 200_000
        assert all("immutable" in client.get(path).headers["cache-control"] for path in assets)
        assert client.get("/assets/../index.html").status_code in (200, 404)
        assert client.get("/assets/none.js").status_code == 404


# --- many jobs -------------------------------------------------------------------------------------------------------


def test_a_thousand_jobs_are_fifty_rows(chromium: Browser, tmp_path: Path) -> None:
    with live_service(tmp_path, history_seconds=0) as service:
        service.loop.stop(10)
        document = write(checked(JobSpec, {"name": "many", "task": "m:f"}))
        for number in range(1000):
            spec = {**document, "name": f"many-{number:04d}"}
            service.world.repository.jobs.create(f"many-{number:04d}", spec, "n", None, "h", service.world.clock())
        with opened(chromium, service.url) as page:
            page.get_by_text("1–50 of 1 000").wait_for()
            assert rows(page).count() == 50
            assert page.evaluate("document.querySelectorAll('*').length") < 1500
            page.get_by_role("button", name="next").click()
            page.get_by_text("51–100 of 1 000").wait_for()
            page.get_by_role("searchbox").fill("many-0777")
            page.get_by_text("51–100 of 1 000").wait_for(state="detached")
            assert rows(page).count() == 1


# --- built from what is there ----------------------------------------------------------------------------------------


def test_the_built_files_are_those_of_the_sources(tmp_path: Path) -> None:
    if not (ROOT / "web" / "node_modules" / "vite").exists():
        pytest.skip("the front end's tools are not installed (npm ci in web/)")
    built = tmp_path / "static"
    command = ["npm", "run", "build", "--", "--outDir", str(built), "--logLevel", "warn"]
    done = subprocess.run(command, cwd=ROOT / "web", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.relative_to(built): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    committed = {path.relative_to(STATIC): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    assert files == committed, "run `npm run build` in web/ and commit what it writes"


def test_the_pages_types_are_made_of_the_services_answers(tmp_path: Path) -> None:
    program = ROOT / "web" / "node_modules" / ".bin" / "openapi-typescript"
    if not program.exists():
        pytest.skip("the front end's tools are not installed (npm ci in web/)")
    source, made = tmp_path / "answers.json", tmp_path / "api-types.ts"
    source.write_text(json.dumps(page_types.document()))
    options = ["--root-types", "--root-types-no-schema-prefix", "-o", str(made)]
    subprocess.run([str(program), str(source), *options], cwd=ROOT / "web", check=True, capture_output=True)
    committed = (ROOT / "web" / "src" / "api-types.ts").read_text()
    assert made.read_text() == committed, "run `npm run types` in web/ and commit what it writes"
