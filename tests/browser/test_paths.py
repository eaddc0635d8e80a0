"""Paths of queue pairs on the map, and time."""

import json
import re
import subprocess

import pytest

from conftest import LAB, Server, wait
from test_actions import CIRCUIT, act, choose, done, stop


@pytest.fixture
def pairs(fabric):
    """RoCE connections under qp-pin, with time between their messages."""
    fabric.lab("policy", "qp-pin")
    command = [LAB, "workload", "--name", fabric.name, "host1", "host2", "--collective",
               "permutation", "--queue-pairs", "4", "--bytes", "400kB", "--rate", "10Mbit",
               "--iterations", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait(lambda: len(fabric.vtepctl("leaf1", "qp")) >= 4, "queue pairs are placed")
        yield
    finally:
        process.terminate()
        process.wait()


def captured(fabric, number):
    """The interfaces through which the spines send a queue pair's frames, by tcpdump."""
    # Behind UDP: VXLAN, Ethernet, IPv4, UDP, and 4 bytes of the BTH.
    frames = f"udp dst port 4789 and udp[62:4] & 0xffffff = {number}"
    spines = [f"spine{at}" for at in range(1, 5)]
    command = ["timeout", "3", "tcpdump", "-l", "-nn", "-i", "any", "-c", "40", frames]
    processes = {spine: subprocess.Popen(
        ["ip", "netns", "exec", f"lab-{fabric.name}-{spine}", *command], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for spine in spines}
    found = set()
    for spine, process in processes.items():
        for interface in re.findall(r" (\S+) +Out +IP ", process.communicate()[0]):
            found.add(f"{spine}:{interface}")
    return found


def marked(page, shade):
    ends = page.locator(f"#picture .{shade}").evaluate_all(
        "all => all.map(element => element.dataset.from)")
    return {end for end in ends if end.startswith("spine")}


def test_the_path_of_a_queue_pair_is_marked_as_its_frames_go(fabric, page, pairs):
    rows = page.locator("#pairs tbody tr")
    wait(lambda: rows.count() >= 4, "queue pairs are listed")
    # Earlier tests may have left some that are idle.
    busy = lambda: next((pair for pair in fabric.vtepctl("leaf1", "qp")
                         if pair["idle_ms"] < 1000 and pair.get("partner")), None)
    pair = wait(busy, "a queue pair with its other direction")
    number, partner = pair["queue_pair"], pair["partner"]
    page.fill("#filter", f"{number:#x} leaf1")
    wait(lambda: rows.count() == 1, "the filter finds it")
    rows.first.focus()
    page.keyboard.press("Enter")
    wait(lambda: marked(page, "path"), "a path is marked")
    for shade, of in (("path", number), ("back", partner)):
        # qp-pin may move the queue pair while its frames are captured.
        for attempt in range(5):
            frames = captured(fabric, of)
            if len(frames) == 2 and marked(page, shade) == frames:
                break
        else:
            raise AssertionError(f"{shade}: {marked(page, shade)} is marked, frames use {frames}")
    # The panel names the same links, and selects them.
    links = page.locator("#hops ol").first.locator("button")
    assert len(links.all_inner_texts()) == 5
    links.nth(2).click()
    assert "Link spine" in page.locator("#panel h2").inner_text()


def test_the_map_has_what_leaves_and_circuits_do(fabric, page):
    fabric.lab("policy", "five-tuple")
    lines = page.locator('[data-node="leaf1"] text')
    wait(lambda: lines.all_text_contents()[1] == "five-tuple", "the policy")
    leaf = fabric.vtepctl("leaf1", "vni")[0]
    assert lines.all_text_contents()[2].startswith(leaf["datapath"])
    choose(page, "node", "leaf1")
    chart = page.locator(".chart", has_text="leaf1, frames/s")
    wait(chart.count, "what the leaf sends")
    circuit = page.locator(f'[data-properties="{CIRCUIT}"]')
    before = circuit.text_content()
    assert before.endswith(" ms"), before
    choose(page, "from", CIRCUIT)
    act(page, "Impair", delay="40ms", loss="2%", rate="20mbit", direction="a-to-b", time="600s")
    delay = before.removesuffix(" ms")
    wait(lambda: circuit.text_content() == f"40/{delay} ms, 2/0 % loss, 20M/∞ bit/s", "it is impaired")
    stop(page, "link impair")
    wait(lambda: circuit.text_content() == before, "it is as before")


def test_the_filter_takes_rates(fabric, page, pairs):
    rows = page.locator("#pairs tbody tr")
    wait(lambda: rows.count() >= 4, "queue pairs are listed")
    page.fill("#filter", ">1G")
    assert rows.count() == 0
    page.fill("#filter", "<1G leaf1")
    wait(lambda: rows.count() >= 4, "queue pairs below 1 Gbit/s")
    page.fill("#filter", "")


def test_a_sprayed_queue_pair_has_its_shares(fabric, page):
    choose(page, "node", "leaf1")
    page.keyboard.press("Escape")
    done(page, "Set policy", policy="spray")
    sender = subprocess.Popen(
        [LAB, "roce", "send", "--name", fabric.name, "--node", "host1", "--to", "192.168.10.2",
         "--qp", "0x51", "--rate", "500", "--seconds", "120"], stdout=subprocess.DEVNULL)
    try:
        page.fill("#filter", "0x51 leaf1")
        rows = page.locator("#pairs tbody tr")
        wait(lambda: rows.count() == 1, "the filter finds it", 60)
        rows.first.focus()
        page.keyboard.press("Enter")
        wait(lambda: "sprayed" in page.locator("#panel").inner_text(), "it is sprayed", 60)
        paths = page.locator("#panel dd", has_text="% of the packets")
        wait(lambda: paths.count() >= 2, "its paths are shown")
        vtep = next(row for row in fabric.vtepctl("leaf1", "path") if row["sprayed"])
        sprayed = vtep["sprayed"]
        # Many are shown by uplink.
        number = len(sprayed) if len(sprayed) <= 16 else len({path["uplink"] for path in sprayed})
        wait(lambda: paths.count() == number, "all of them")
        wait(lambda: "% of the packets now" in paths.first.inner_text(), "the shares of the last second")
        shares = [float(text.split(" %")[0]) for text in paths.all_inner_texts()]
        assert abs(sum(shares) - 100) < 1 and max(shares) < 90, shares
        assert all("penalty" in text or "wait" in text for text in paths.all_inner_texts())
    finally:
        sender.terminate()
        sender.wait()
        page.fill("#filter", "")
        page.keyboard.press("Escape")
        done(page, "Set policy", policy="qp-hash")


def test_ten_minutes_are_scrubbed_saved_and_replayed(fabric, page, context, pairs, tmp_path):
    wait(lambda: page.locator("#pairs tbody tr").count() >= 4, "queue pairs are listed")
    page.wait_for_timeout(4000)
    load = page.locator('[data-rate-from="host1:eth1"] text')
    page.locator("#scrub").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    wait(lambda: re.search(r"s ago, \d\d:\d\d:\d\d", page.locator("#shown").inner_text()), "the past")
    assert page.locator("#panel .panel-note").is_visible()
    wait(lambda: page.locator("#panel [inert]").count(), "actions do not work in the past")
    past = load.text_content()
    page.wait_for_timeout(1500)
    assert load.text_content() == past
    assert page.locator(".chart line.now").count() == page.locator(".chart").count() >= 4
    page.get_by_role("button", name="Live").click()
    wait(lambda: page.locator("#shown").inner_text() == "live", "the present")

    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    saved = json.loads(file.read_text())
    assert saved["format"] == "lab-web-1" and len(saved["changes"]) >= 4
    server = Server("--replay", str(file))
    try:
        replay = context.new_page()
        replay.goto(server.url)
        wait(lambda: replay.locator("#pairs tbody tr").count() >= 4, "the file's queue pairs")
        assert replay.locator("#panel form").count() == 0
        replay.locator("#scrub").focus()
        replay.keyboard.press("Home")
        wait(lambda: "s ago" in replay.locator("#shown").inner_text(), "its first sample")
    finally:
        server.stop()


def test_a_pointer_on_a_chart_shows_values_and_a_click_goes_there(page):
    picture = page.locator(".chart svg").first
    page.wait_for_timeout(4000)
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 20)
    wait(lambda: page.locator(".chart .pointer[visibility=visible]").count()
         == page.locator(".chart").count(), "the pointer")
    page.mouse.click(box["x"] + box["width"] * 0.97, box["y"] + 20)
    wait(lambda: "s ago" in page.locator("#shown").inner_text(), "the past")
    page.get_by_role("button", name="Live").click()
    wait(lambda: page.locator("#shown").inner_text() == "live", "the present")
