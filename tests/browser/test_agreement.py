"""The parts of the page agree with each other, with what the kernel does, and after a reload."""

import re

import pytest

from conftest import wait
from test_actions import CIRCUIT, act, choose, done, form, stop
from test_pauses import sender

# For each end of a link: its number, the level of its colour, and the scale of the legend.
DRAWN = """() => {
  const scale = [...document.querySelectorAll("#legend span")].map((of) => of.textContent)
    .filter((text) => text.startsWith("up to")).at(-1);
  return [...document.querySelectorAll("[data-rate-from]")].map((rate) => {
    const half = document.querySelector(`[data-from="${rate.dataset.rateFrom}"]`);
    const level = [0, 1, 2, 3, 4].find((at) => half.classList.contains(`l${at}`));
    return [rate.dataset.rateFrom, rate.textContent, level, scale];
  });
}"""
# Whether the map marks a link as part of a path, and as down; and what the panel says of the path.
MARKED = """(end) => {
  const half = document.querySelector(`[data-from="${end}"]`);
  return [half.classList.contains("path"), half.classList.contains("broken"),
    document.getElementById("hops").textContent];
}"""


def number(text):
    """A rate of the page, in bit/s."""
    value, unit = re.search(r"([\d.]+)([kMG]?)", text).groups()
    return float(value) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]


def follow(page, queue_pair):
    act(page, "Follow", number=queue_pair)
    links = page.locator("#hops ol").first.locator("button")
    wait(lambda: links.count() == 5, "its path is listed")
    return links


@pytest.fixture
def stream(fabric):
    """A stream that qp-hash places, to queue pair 0x71."""
    fabric.lab("policy", "qp-hash")
    process = sender(fabric, "0x71", "2000")
    yield process
    process.terminate()
    process.wait()


def test_the_number_of_a_link_has_the_colour_that_the_legend_gives_it(fabric, page):
    fabric.lab("policy", "qp-hash")
    process = sender(fabric, "0x72", "4000")
    try:
        levels = set()
        for _ in range(60):
            page.wait_for_timeout(80)
            for end, text, level, scale in page.evaluate(DRAWN):
                share = number(text) / number(scale)
                # Numbers are rounded to three digits.
                for expected in (share * 0.994, share * 1.006):
                    if (0 if expected < 0.01 else min(4, int(expected * 4 - 1e-9) + 1)) == level:
                        break
                else:
                    raise AssertionError((end, text, level, scale))
                levels.add(level)
        assert len(levels) > 1, levels
    finally:
        process.terminate()
        process.wait()


def test_a_path_never_takes_a_link_that_is_down_without_saying_so(fabric, page, stream):
    links = follow(page, "0x71")
    end = links.nth(2).inner_text().split(" ")[0]
    fabric.lab("link down", end)
    try:
        seen = []
        for _ in range(60):
            page.wait_for_timeout(100)
            path, broken, text = page.evaluate(MARKED, end)
            assert not (path and broken) or "is down now" in text, (seen, text)
            seen.append((path, broken))
        assert seen[-1] == (False, True), seen
        assert links.count() == 5, "it has another path"
        rows = page.locator("#events tbody tr", has_text="is down")
        assert rows.filter(has_text="the link spine").count(), "an event tells it"
    finally:
        fabric.lab("link up", end)
    wait(lambda: page.locator("#events tbody tr", has_text="is up again").count(), "this, too")


def test_a_reload_keeps_the_last_minutes_and_what_is_selected(fabric, page, stream):
    follow(page, "0x71")
    page.wait_for_timeout(5000)
    page.reload()
    wait(lambda: page.locator("#panel h2").inner_text() == "Queue pair 0x71", "it is followed")
    wait(lambda: int(page.locator("#scrub").get_attribute("max") or 0) >= 4, "the past is known")
    chart = page.locator(".chart", has=page.get_by_role("heading", name="Queue pair"))
    wait(lambda: "no packet yet" not in chart.inner_text(), "what arrived before is shown")
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    wait(lambda: "s ago" in page.locator("#shown").inner_text(), "the past")
    assert page.locator("#panel .panel-note").is_visible()
    page.get_by_role("button", name="Live").click()
    page.keyboard.press("Escape")
    page.reload()
    wait(lambda: page.locator("#panel h2").inner_text().startswith("Fabric"), "nothing is selected")


def test_frames_that_a_circuit_loses_are_dropped_ones(fabric, page, stream):
    links = follow(page, "0x71")
    end = links.nth(2).inner_text().split(" ")[0]
    assert end.split(":")[1].startswith("dci"), end
    links.nth(2).click()
    act(page, "Impair", loss="50%", time="600s")
    figure = page.locator("#panel dd", has_text="dropped/s")
    rate = lambda: max(int(re.search(r"(\d+) dropped/s", text)[1]) for text in figure.all_inner_texts())
    wait(lambda: rate() > 20, "half of the frames are lost")
    stop(page, "link impair")
    wait(lambda: rate() == 0, "none are lost")


def test_a_form_says_what_is_missing_and_runs_nothing(page):
    choose(page, "from", CIRCUIT)
    result = act(page, "Impair")
    assert result.inner_text().strip() == "Give a delay, a jitter, a loss or a rate."
    assert page.locator("#commands tr").count() == 0


def test_a_running_stream_can_be_stopped_from_any_panel(fabric, page):
    act(page, "Send", numbers="0x73", rate="500", seconds="600")
    choose(page, "node", "leaf1")
    running = page.locator("#panel .running li", has_text="roce send")
    wait(lambda: running.count() == 1, "the panel lists it")
    page.reload()
    wait(lambda: running.count() == 1, "it is listed after a reload")
    running.get_by_role("button").click()
    wait(lambda: not fabric.processes("host1", "lab"), "it has ended")
    wait(lambda: running.count() == 0, "it is listed no more")
    page.keyboard.press("Escape")
    assert "Mbit" in form(page, "Run").locator("[name=rate]").input_value()
    done(page, "Set policy", policy="qp-hash")
