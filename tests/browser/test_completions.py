"""How long operations took, on the axis of the other charts."""

import json
import re
import subprocess
import time

import pytest

from conftest import LAB, wait
from test_actions import choose, done
from test_pauses import chart

ITERATIONS = "Completion time of iterations"
STREAMS = "Completion time of streams"
SERIES = "permutation, host1, host2"


def milliseconds(text):
    """The last time in a text."""
    number, unit = re.findall(r"([\d.]+) (ms|s)\b", text)[-1]
    return float(number) * {"ms": 1, "s": 1000}[unit]


def key(page, title, series):
    return chart(page, title).locator(".key > span", has_text=series)


def test_iterations_of_a_collective_operation_and_one_that_a_cut_makes_longer(fabric, page):
    fabric.lab("policy", "qp-hash")
    wait(lambda: page.locator(".chart").count(), "the charts")
    assert chart(page, ITERATIONS).count() == 0, "charts without operations are not there"
    # An iteration takes 0.8 s. Connections bear a cut of seven timeouts of a second.
    workload = subprocess.Popen(
        [LAB, "workload", "--name", fabric.name, "host1", "host2", "--collective", "permutation",
         "--bytes", "1MB", "--rate", "10Mbit", "--iterations", "1000", "--timeout", "18", "-o", "json"],
        stdout=subprocess.PIPE, text=True)
    try:
        wait(lambda: key(page, ITERATIONS, SERIES).count(), "the chart has the operation")
        lines = chart(page, ITERATIONS).locator("line.lasting.l2")
        wait(lambda: lines.count() >= 4, "iterations")
        usual = milliseconds(key(page, ITERATIONS, SERIES).inner_text())
        assert 700 < usual < 2000, usual
        choose(page, "from", "leaf2:hp1")
        done(page, "Cut", time="3s")
        wait(lambda: milliseconds(key(page, ITERATIONS, SERIES).inner_text()) > usual + 2000,
             "an iteration that the cut makes longer")
        # The mark of the command is within the iteration that it hit.
        marks = chart(page, ITERATIONS).locator("line.action")
        mark = float(marks.filter(has_text="leaf2:hp1").last.get_attribute("x1"))
        spans = lines.evaluate_all("all => all.map((of) => [+of.getAttribute('x1'), +of.getAttribute('x2')])")
        start, end = max(spans, key=lambda span: span[1] - span[0])
        assert start - 1 <= mark <= end, (start, mark, end)
        time.sleep(1.5)
    finally:
        workload.terminate()
        told = [json.loads(line)["nanoseconds"] / 1e6 for line in workload.communicate()[0].splitlines()]
    # The page has the longest one as the program itself says it, to three digits.
    assert milliseconds(key(page, ITERATIONS, SERIES).inner_text()) == pytest.approx(max(told), rel=0.006)
    page.reload()
    page.wait_for_selector("#leaves tbody tr")
    wait(lambda: chart(page, ITERATIONS).count(), "the chart of what the server has seen")


def test_streams_and_requests_of_connections(fabric, page):
    fabric.lab("policy", "qp-hash")
    sent = json.loads(fabric.lab("roce send", "--node", "host1", "--to", "192.168.10.2", "--rate", "1000",
                                 "--queue-pairs", "4", "--frames", "1500", "-o", "json"))
    of_stream = key(page, STREAMS, "frames, host1 to 192.168.10.2")
    wait(lambda: of_stream.count(), "the stream has ended")
    assert milliseconds(of_stream.inner_text()) == pytest.approx(sent["nanoseconds"] / 1e6, rel=0.006)
    server = subprocess.Popen([LAB, "roce", "serve", "--name", fabric.name, "--node", "host2", "--once"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert "waiting" in server.stderr.readline()
        session = json.loads(fabric.lab(
            "roce connect", "--node", "host1", "--to", "192.168.10.2", "--count", "20",
            "--rate", "50Mbit", "-o", "json"))
    finally:
        server.wait(20)
    of_session = key(page, STREAMS, "write, host1 to 192.168.10.2")
    wait(lambda: of_session.count(), "the requests are complete")
    assert milliseconds(of_session.inner_text()) == pytest.approx(session["seconds"] * 1e3, rel=0.006)
