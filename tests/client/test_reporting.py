"""`optimus_client.report` and the request to stop, in processes of their own and with the agent's own listener."""

from __future__ import annotations

import http.server
import json
import math
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tests.client.agent import Agent, run, wait_until

from optimus_workers.wire.ports import reserve_port


def test_what_is_reported_arrives(heard: Agent) -> None:
    code = """
import optimus_client
optimus_client.resumes()
optimus_client.report(total_steps=100, total_epochs=2)
for step in range(1, 4):
    optimus_client.report(step=step, loss=1 / step, examples=64, epoch=step / 50, learning_rate=1e-3)
optimus_client.report(step=4, metrics={"accuracy": 0.5, "bad": "words"})
optimus_client.report(step=5, loss=float("nan"))
"""
    run(code, heard.variables)
    assert sorted(set(heard.steps)) == [1, 2, 3, 4, 5]
    third = next(each for each in heard.readings if each.step == 3)
    assert (third.loss, third.examples, third.epoch, third.learning_rate) == (1 / 3, 64, 0.06, 1e-3)
    assert (third.total_steps, third.total_epochs, third.resumes, third.rank) == (100, 2.0, True, 0)
    assert next(each for each in heard.readings if each.step == 4).metrics == {"accuracy": 0.5}
    assert math.isnan(next(each for each in heard.readings if each.step == 5).loss or 0.0)


def test_an_announcement_needs_no_reading(heard: Agent) -> None:
    run("import optimus_client; optimus_client.resumes()", heard.variables)
    (announced,) = heard.readings
    assert (announced.resumes, announced.step) == (True, None)


def test_values_are_those_of_the_call(heard: Agent) -> None:
    """Tensors that the script changes in place, and scalars of numpy."""
    code = """
import numpy, torch, optimus_client
total = torch.zeros((), requires_grad=True) * 1.0
array = numpy.zeros(())
for step in range(1, 4):
    with torch.no_grad():
        total += 1
    array += 1
    optimus_client.report(step=numpy.int64(step), loss=total, learning_rate=array, examples=torch.tensor(8))
optimus_client.report(step=4, loss=torch.zeros(3), epoch=object(), metrics=[1])
"""
    run(code, heard.variables)
    found = [(each.step, each.loss, each.learning_rate, each.examples) for each in heard.readings]
    assert found == [(1, 1.0, 1.0, 8), (2, 2.0, 2.0, 8), (3, 3.0, 3.0, 8), (4, None, None, None)]


def test_only_rank_0_reports_losses(heard: Agent) -> None:
    code = "import optimus_client as o; o.report(step=1, loss=1.0, learning_rate=0.1, metrics={'a': 1.0}, epoch=0.5)"
    run(code, {**heard.variables, "RANK": "2"})
    (reading,) = heard.readings
    assert (reading.rank, reading.step, reading.epoch) == (2, 1, 0.5)
    assert (reading.loss, reading.learning_rate, dict(reading.metrics)) == (None, None, {})


def test_outside_optimus_it_does_nothing() -> None:
    code = """
import sys, threading, optimus_client
optimus_client.report(step=1, loss=1.0)
optimus_client.resumes()
optimus_client.stopped(1)
assert optimus_client.flush() and not optimus_client.stop_requested()
assert threading.active_count() == 1 and "http.client" not in sys.modules
"""
    run(code, {})


def test_a_child_after_fork_reports_for_itself(heard: Agent) -> None:
    code = """
import os, sys, optimus_client
optimus_client.report(step=1)
if os.fork() == 0:
    optimus_client.report(step=2)
    sys.exit(0)
os.wait()
optimus_client.report(step=3)
"""
    run(code, heard.variables)
    assert sorted(heard.steps) == [1, 2, 3]


def test_reports_wait_for_an_agent_that_is_away(tmp_path: Path) -> None:
    """They are kept, the newest of them where there are too many."""
    port = reserve_port("127.0.0.1")
    received: list[dict[str, Any]] = []
    script = tmp_path / "away"

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Not needed."""

    def come_back() -> None:
        wait_until(script.exists)
        with http.server.HTTPServer(("127.0.0.1", port), Listener) as server:
            server.timeout = 0.2
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and sum(len(each["readings"]) for each in received) < 10_000:
                server.handle_request()

    server = threading.Thread(target=come_back)
    server.start()
    code = f"""
import pathlib, optimus_client
for step in range(12_000):
    optimus_client.report(step=step)
assert not optimus_client.flush(0.3)
pathlib.Path({str(script)!r}).touch()
assert optimus_client.flush(30)
"""
    run(code, {"OPTIMUS_REPORT_URL": f"http://127.0.0.1:{port}"})
    server.join()
    assert [each["step"] for post in received for each in post["readings"]] == list(range(2_000, 12_000))


def test_an_agent_that_never_answers_holds_up_nothing() -> None:
    """Neither a call nor the end of the process: each that waited would take the two seconds of a request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = """
import optimus_client
for step in range(1000):
    optimus_client.report(step=step, loss=0.5)
"""
        run(code, {"OPTIMUS_REPORT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"})


def test_a_call_costs_microseconds(heard: Agent, record_property: Any) -> None:
    code = """
import time, torch, optimus_client
def cost(loss):
    best = float("inf")
    for _ in range(20):
        begun = time.thread_time()
        for step in range(200):
            optimus_client.report(step=step, loss=loss)
            optimus_client.stop_requested()
        best = min(best, (time.thread_time() - begun) / 200)
    return 1e6 * best
print(cost(0.5), cost(torch.tensor(0.5, requires_grad=True)))
"""
    numbers, tensors = map(float, run(code, heard.variables).split())
    record_property("summary", f"report and stop_requested: {numbers:.1f} µs; with a tensor {tensors:.1f} µs")
    assert numbers < 50
    assert tensors < 100


def test_the_stop_file_is_seen(heard: Agent) -> None:
    code = """
import os, pathlib, time, optimus_client
clock, now = time.monotonic, time.monotonic()
time.monotonic = lambda: now
assert not optimus_client.stop_requested()
pathlib.Path(os.environ["OPTIMUS_STOP_FILE"]).touch()
now += 0.09
assert not optimus_client.stop_requested(), "it looks at most ten times a second"
now += 0.02
assert optimus_client.stop_requested()
time.monotonic = clock
optimus_client.report(step=7)
optimus_client.stopped(7)
os._exit(0)
"""
    run(code, heard.variables)
    assert heard.steps == [7]
    assert heard.stopped_at == [7]


def test_a_script_ends_at_the_step_of_a_limit_that_is_changed_meanwhile(heard: Agent, tmp_path: Path) -> None:
    file = tmp_path / "stop-at-step"
    code = f"""
import pathlib, time
import optimus_client
from optimus_client.agreement import Agreement
file, agreement = pathlib.Path({str(file)!r}), Agreement()
def goes_on(step):
    optimus_client.report(step=step)
    return not optimus_client.stop_requested() and agreement.ask(step) == (False, False)
assert goes_on(4)
file.write_text("9")
assert goes_on(5) and goes_on(8), "raised, which is seen at the limit at the latest"
file.write_text("")
assert goes_on(9) and goes_on(1000), "taken away"
file.write_text("1002")
time.sleep(0.2)
assert goes_on(1001) and not goes_on(1002), "set anew"
"""
    run(code, {**heard.variables, "OPTIMUS_STOP_AT_STEP": "5", "OPTIMUS_STOP_AT_STEP_FILE": str(file)})


def test_a_script_ends_at_the_step_of_its_job_s_limit(heard: Agent) -> None:
    code = """
import optimus_client
from optimus_client.agreement import Agreement
for step in range(1, 5):
    optimus_client.report(step=step)
    assert not optimus_client.stop_requested() and Agreement().ask(step) == (False, False)
assert Agreement().ask(5) == (True, True), "it saves, too"
optimus_client.report(step=5)
assert optimus_client.stop_requested()
"""
    run(code, {**heard.variables, "OPTIMUS_STOP_AT_STEP": "5"})
