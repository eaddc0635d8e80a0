"""Paths of queue pairs on the map, and pauses in the charts."""

import json
import re
import subprocess
import threading
import time

import pytest

from conftest import LAB, Server, wait
from test_actions import act, choose, done


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
    number = fabric.vtepctl("leaf1", "qp")[0]["queue_pair"]
    page.fill("#filter", f"{number:#x} leaf1")
    wait(lambda: rows.count() == 1, "the filter finds it")
    rows.first.focus()
    page.keyboard.press("Enter")
    wait(lambda: marked(page, "path"), "a path is marked")
    partner = fabric.vtepctl("leaf1", "qp")[0]["partner"]
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


class Watch(threading.Thread):
    """When a host has received packets, by its kernel's counter, every 5 ms."""

    def __init__(self, fabric, host):
        super().__init__()
        self.command = ["ip", "netns", "exec", f"lab-{fabric.name}-{host}", "python3", "-c", """
import time
last, since = None, time.time()
while True:
    now = int(open("/sys/class/net/eth1/statistics/rx_packets").read())
    if last is not None and now > last:
        print(time.time() - since, flush=True)
        since = time.time()
    last = now
    time.sleep(0.005)
"""]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.longest = 0.0
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.longest = max(self.longest, float(line))

    def stop(self):
        self.process.terminate()
        self.join()
        return self.longest


def test_how_long_traffic_stopped_can_be_read_from_the_chart(fabric, page):
    fabric.lab("policy", "qp-hash")
    stream = subprocess.Popen(
        [LAB, "roce", "send", "--name", fabric.name, "--node", "host1", "--to", "192.168.10.2",
         "--queue-pairs", "1", "--rate", "1000", "--seconds", "60"], stdout=subprocess.DEVNULL)
    try:
        note = page.locator(".chart", has_text="Received by hosts").locator(".key span", has_text="host2")
        value = note.locator("output").first
        wait(lambda: "M" in value.inner_text(), "the chart shows the traffic")
        time.sleep(2)
        watch = Watch(fabric, "host2")
        time.sleep(1)
        choose(page, "from", "leaf2:hp1")
        done(page, "Cut", time="2.5s")
        wait(lambda: re.search(r"longest pause ([\d.]+) s", note.first.inner_text()), "the pause")
        time.sleep(2)
        stopped = watch.stop()
        shown = float(re.search(r"longest pause ([\d.]+) s", note.first.inner_text())[1])
        assert 2.3 < stopped < 8, stopped
        assert abs(shown - stopped) <= 0.25, (shown, stopped)
        # The same from the line itself: how long it is on the ground.
        chart = page.locator(".chart", has_text="Received by hosts")
        points = chart.locator("polyline.l2").first.get_attribute("points")
        points = [tuple(map(float, point.split(","))) for point in points.split()]
        ground = max(y for _, y in points)
        top = min(y for _, y in points)
        high = [x for x, y in points if y <= ground - (ground - top) / 10]
        # 260 units are a minute.
        drawn = max(after - before for before, after in zip(high, high[1:])) * 60 / 260
        assert abs(drawn - stopped) < 0.8, (drawn, stopped)
        assert chart.locator("line.action title", has_text="--for 2.5s").count() == 1
    finally:
        stream.terminate()
        stream.wait()


def test_somebody_finds_queue_pair_0x11_and_cuts_its_link(fabric, page):
    """With the page alone: from a stream to the answer how long its traffic stopped."""
    fabric.lab("policy", "qp-pin")
    act(page, "Send", **{"from": "host1", "to": "host2", "numbers": "0x11", "rate": "1000",
                         "seconds": "60"})
    page.get_by_role("link", name="queue pair").click()
    page.fill("#filter", "0x11")
    rows = page.locator("#pairs tbody tr")
    wait(lambda: rows.count() == 1, "the filter finds it")
    rows.first.click()
    assert page.locator("#panel h2").inner_text() == "Queue pair 0x11"
    wait(lambda: marked(page, "path"), "its path is marked")
    box = page.locator("#picture").bounding_box()
    assert 40 < box["y"] < 200, "the map is in view"
    links = page.locator("#hops ol").first.locator("button")
    uplink = links.nth(1).inner_text().split(" ")[0]
    assert re.fullmatch(r"leaf1:up\d", uplink)
    links.nth(1).click()
    note = page.locator(".chart", has_text="Received by hosts").locator(".key span", has_text="host2")
    wait(lambda: "no pause" in note.first.inner_text(), "traffic does not stop")
    watch = Watch(fabric, "host2")
    time.sleep(1)
    act(page, "Cut", time="4s")
    wait(lambda: not fabric.carrier(uplink), "the link is down")
    time.sleep(3)
    stopped = watch.stop()
    shown = re.search(r"longest pause ([\d.]+) s|no pause of 0.3 s", note.first.inner_text())
    if shown[1]:
        assert abs(float(shown[1]) - stopped) <= 0.25, (shown[0], stopped)
    else:
        assert stopped < 0.5, stopped
    wait(lambda: fabric.carrier(uplink), "the link is up again")
    page.locator("#commands tr", has_text="--qp 0x11").get_by_role("button", name="Stop").click()
    wait(lambda: not fabric.processes("host1", "lab"), "the stream has ended")


def test_ten_minutes_are_scrubbed_saved_and_replayed(fabric, page, context, pairs, tmp_path):
    wait(lambda: page.locator("#pairs tbody tr").count() >= 4, "queue pairs are listed")
    page.wait_for_timeout(4000)
    load = page.locator('[data-rate-from="host1:eth1"] text')
    page.locator("#scrub").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    wait(lambda: "s ago" in page.locator("#shown").inner_text(), "the past")
    past = load.text_content()
    page.wait_for_timeout(1500)
    assert load.text_content() == past
    assert page.locator(".chart line.now").count() == 4
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
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 20)
    wait(lambda: page.locator(".chart .pointer[visibility=visible]").count() == 4, "the pointer")
    page.mouse.click(box["x"] + box["width"] * 0.97, box["y"] + 20)
    wait(lambda: "s ago" in page.locator("#shown").inner_text(), "the past")
    page.get_by_role("button", name="Live").click()
    wait(lambda: page.locator("#shown").inner_text() == "live", "the present")
