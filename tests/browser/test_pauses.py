"""How long traffic stopped: of a host, and of one queue pair."""

import re
import signal
import subprocess
import threading
import time

import pytest

from conftest import LAB, wait
from test_actions import act, choose, done, stop
from test_paths import marked


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


def test_what_a_busy_machine_misses_is_no_pause(fabric, server, page):
    """The server stands still again and again, or the page: no step of what hosts receive is a pause."""
    fabric.lab("policy", "qp-hash")
    process = sender(fabric, "0x41", "1000")
    try:
        note = page.locator(".chart", has_text="Received by hosts").locator(".key span", has_text="host2")
        wait(lambda: "no pause" in note.first.inner_text(), "the host receives")
        for busy in (700, 900, 1600, 2500, 800):
            page.evaluate("(time) => { const end = Date.now() + time; while (Date.now() < end); }", busy)
            time.sleep(1.3)
            assert "no pause" in note.first.inner_text(), (busy, note.first.inner_text())
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(busy / 1000)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(1.3)
            assert "no pause" in note.first.inner_text(), (busy, note.first.inner_text())
        # A host that has nothing to send makes no pause.
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        assert "no pause" in note.first.inner_text(), note.first.inner_text()
        # A pause is seen although the page stands still meanwhile.
        fabric.on("leaf2", "ip", "link", "set", "hp1", "down")
        page.evaluate("(time) => { const end = Date.now() + time; while (Date.now() < end); }", 1200)
        fabric.on("leaf2", "ip", "link", "set", "hp1", "up")
        found = wait(lambda: re.search(r"longest pause ([\d.]+) s", note.first.inner_text()), "the pause")
        assert 1 <= float(found[1]) <= 4, found[0]
    finally:
        process.terminate()
        process.wait()


class Arrivals(threading.Thread):
    """When packets of a queue pair arrive at a host, by tcpdump, while it is a context."""

    def __init__(self, fabric, host, number):
        super().__init__()
        # Behind UDP: 4 bytes of the BTH.
        frames = f"udp dst port 4791 and udp[12:4] & 0xffffff = {number}"
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", f"lab-{fabric.name}-{host}", "tcpdump", "-l", "-nn", "-tt",
             "--immediate-mode", "-i", "eth1", frames], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        self.times = []

    def __enter__(self):
        self.start()
        wait(lambda: self.times, "a packet arrives")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.join()

    def run(self):
        for line in self.process.stdout:
            # Headers that tcpdump knows may have lines of their own.
            stamp = re.match(r"\d+\.\d+ ", line)
            if stamp:
                self.times.append(float(stamp[0]))

    def longest(self):
        """The longest time between two packets so far, in seconds."""
        times = list(self.times)
        return max((after - before for before, after in zip(times, times[1:])), default=0)


def chart(page, title):
    return page.locator(".chart", has=page.get_by_role("heading", name=title))


def of_pair(page):
    """What the chart of a queue pair says: its result in seconds, and the whole note."""
    note = chart(page, "Queue pair").locator(".key b").inner_text()
    pause = re.search(r"(?:longest pause|no packet for) ([\d.]+) s", note)
    return float(pause[1]) if pause else 0 if "no pause" in note else None, note


def pauses(page):
    """The pauses that its chart lists, the last one first."""
    return chart(page, "Queue pair").locator(".pauses li").all_inner_texts()


class Lossy:
    """Packets of a queue pair are lost in front of the fabric, while it is a context: host1 sends them
    to an address that no bridge forwards, instead of its sender."""

    PROGRAM = """
import socket, struct, sys, time
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind(("eth1", 0))
ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 64, 0, 0, 64, 17, 0, bytes([192, 168, 10, 1]), bytes([192, 168, 10, 2]))
udp = struct.pack("!HHHH", 50000, 4791, 44, 0)
bth = struct.pack("!BBHII", 4, 0, 0xffff, int(sys.argv[1]), 0)
print("sends", flush=True)
while True:
    port.send(bytes.fromhex("0180c200000e020000000001") + b"\\x08\\x00" + ip + udp + bth + bytes(24))
    time.sleep(0.002)
"""

    def __init__(self, fabric, sender, number):
        self.fabric, self.sender, self.number = fabric, sender, number

    def __enter__(self):
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", f"lab-{self.fabric.name}-host1", "python3", "-c", self.PROGRAM,
             str(self.number)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "sends\n"
        self.sender.send_signal(signal.SIGSTOP)

    def __exit__(self, *_):
        self.sender.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


def counters(fabric, host):
    """Packet sockets in a host's namespace that are bound to an interface, as the kernel lists them."""
    lines = fabric.on(host, "cat", "/proc/net/packet").splitlines()[1:]
    return len([line for line in lines if line.split()[4] != "0"])


@pytest.fixture
def stream(fabric, page):
    """With the page alone: a stream to the queue pairs 0x11 to 0x14, 250 packets a second each."""
    fabric.lab("policy", "qp-pin")
    act(page, "Send", **{"from": "host1", "to": "host2", "numbers": "0x11 0x12 0x13 0x14",
                         "rate": "1000", "seconds": "120"})
    yield
    page.locator("#commands tr", has_text="--qp 0x11").get_by_role("button", name="Stop").click()
    wait(lambda: not fabric.processes("host1", "lab"), "the stream has ended")


def find(page, number):
    """Finds a queue pair in the table, and selects it."""
    page.get_by_role("link", name="queue pair").click()
    page.fill("#filter", number)
    rows = page.locator("#pairs tbody tr")
    # Not the row that was found before.
    row = rows.filter(has_text=number)
    wait(lambda: rows.count() == 1 and row.count() == 1, "the filter finds it")
    row.click()
    assert page.locator("#panel h2").inner_text() == f"Queue pair {number}"
    wait(lambda: marked(page, "path"), "its path is marked")


def test_somebody_finds_queue_pair_0x11_and_cuts_its_link(fabric, page, stream):
    """With the page alone: from a stream to the answer how long its traffic stopped."""
    find(page, "0x11")
    box = page.locator("#picture").bounding_box()
    assert 40 < box["y"] < 200, "the map is in view"
    links = page.locator("#hops ol").first.locator("button")
    uplink = links.nth(1).inner_text().split(" ")[0]
    assert re.fullmatch(r"leaf1:up\d", uplink)
    links.nth(1).click()
    assert "queue pair 0x11" in page.locator("#panel .follows").inner_text()
    wait(lambda: of_pair(page)[0] is not None, "the chart shows its packets")
    with Arrivals(fabric, "host2", 0x11) as arrivals:
        time.sleep(2)
        act(page, "Cut", time="4s")
        wait(lambda: not fabric.carrier(uplink), "the link is down")
        assert marked(page, "path"), "its new path is marked while the link is selected"
        wait(lambda: fabric.carrier(uplink), "the link is up again")
        time.sleep(2)
        (shown, note), stopped = of_pair(page), arrivals.longest()
    assert "now none" not in note and f"after the cut of {uplink}" in note, note
    if shown or stopped > 0.06:
        assert abs(shown - stopped) <= 0.04, (note, stopped)
        assert any(re.search(rf"s at [\d:]+, \d\.\d s after the cut of {uplink}", row)
                   for row in pauses(page)), pauses(page)
        assert chart(page, "Queue pair").locator("rect.pause").count()


def sender(fabric, number, rate="500"):
    return subprocess.Popen(
        [LAB, "roce", "send", "--name", fabric.name, "--node", "host1", "--to", "192.168.10.2",
         "--qp", number, "--rate", rate, "--seconds", "120"], stdout=subprocess.DEVNULL)


def test_a_pause_of_one_queue_pair_is_not_one_of_its_host(fabric, page):
    fabric.lab("policy", "qp-pin")
    senders = [sender(fabric, number) for number in ("0x21", "0x22")]
    try:
        find(page, "0x21")
        wait(lambda: of_pair(page)[0] is not None, "the chart shows its packets")
        hosts = chart(page, "Received by hosts").locator(".key span", has_text="host2")
        wait(lambda: "no pause" in hosts.first.inner_text(), "the host receives")
        with Arrivals(fabric, "host2", 0x21) as arrivals:
            time.sleep(1)
            # Its packets are lost, and no others are.
            with Lossy(fabric, senders[0], 0x21):
                fact = page.locator("#panel dd", has_text="no packet at host2 for")
                wait(lambda: fact.count(), "the panel shows that it has stopped")
                wait(lambda: "now none for" in of_pair(page)[1], "the chart shows that it has stopped")
            wait(lambda: "now none" not in of_pair(page)[1], "its packets arrive again")
            time.sleep(1)
            (shown, note), stopped = of_pair(page), arrivals.longest()
        assert stopped > 0.3 and abs(shown - stopped) <= 0.04, (note, stopped)
        assert "no pause" in hosts.first.inner_text(), "the other queue pair has gone on"
        # The same from the picture: how wide the pause is. 260 units are a minute.
        widths = [float(band.get_attribute("width"))
                  for band in chart(page, "Queue pair").locator("rect.pause").all()]
        assert abs(max(widths) * 60 / 260 - stopped) < 0.2, (widths, stopped)
        lost = page.locator("#panel dd", has_text="since it is followed").inner_text()
        # The sender makes up for its pause, and does not send these again.
        assert int(re.match(r"about (\d+) of", lost)[1]) > 0.5 * 300 * stopped, (lost, stopped)
        # Its sender stops: it has nothing to send, which is no pause.
        senders[0].send_signal(signal.SIGSTOP)
        wait(lambda: "host1 sends none now" in of_pair(page)[1], "it says who has stopped")
        time.sleep(2)
        senders[0].send_signal(signal.SIGCONT)
        wait(lambda: "none now" not in of_pair(page)[1], "its packets arrive again")
        assert of_pair(page)[0] == shown, of_pair(page)
    finally:
        for process in senders:
            process.terminate()
            process.wait()


def test_a_pause_before_a_cut_is_not_its_result(fabric, page):
    """And a pause has its time, and what was before it."""
    fabric.lab("policy", "qp-hash")
    process = sender(fabric, "0x61")
    try:
        act(page, "Follow", number="0x61")
        wait(lambda: of_pair(page)[0] is not None, "the chart shows its packets")
        with Lossy(fabric, process, 0x61):
            time.sleep(2)
        wait(lambda: (of_pair(page)[0] or 0) > 0.9, "the pause is shown")
        assert re.search(r"longest pause [\d.]+ s at \d\d:\d\d:\d\d", of_pair(page)[1]), of_pair(page)
        time.sleep(6)
        page.locator('[data-from="leaf2:hp1"]').press("Enter")
        assert of_pair(page)[0] > 0.9
        done(page, "Cut", time="1s")
        wait(lambda: re.search(r"no packet for .* after the cut of", of_pair(page)[1]), "its result")
        shown, note = of_pair(page)
        wait(lambda: any(re.fullmatch(rf"{shown:.2f} s at [\d:]+, \d\.\d s after the cut of \S+", row)
                         for row in pauses(page)), "it is listed")
        old = pauses(page)[-1]
        assert re.fullmatch(r"[\d.]+ s at \d\d:\d\d:\d\d", old) and float(old.split()[0]) > 0.9, pauses(page)
        # A command that fails is no cut.
        result = act(page, "Cut", time="never")
        wait(lambda: "bad" in (result.locator("span").first.get_attribute("class") or ""), "it fails")
        wait(lambda: page.locator(".chart line.failed").count(), "it has another mark")
    finally:
        process.terminate()
        process.wait()


def test_nothing_is_counted_while_no_page_looks(fabric, page, stream):
    before = counters(fabric, "host2")
    find(page, "0x11")
    wait(lambda: counters(fabric, "host2") == before + 1, "its packets are counted")
    page.keyboard.press("Escape")
    wait(lambda: counters(fabric, "host2") == before, "none is counted")
    find(page, "0x12")
    wait(lambda: counters(fabric, "host2") == before + 1, "its packets are counted")
    page.goto("about:blank")
    wait(lambda: counters(fabric, "host2") == before, "the page is closed")
    page.go_back()
    page.wait_for_selector("#commands tr")


def test_a_queue_pair_of_any_policy_is_followed_by_its_number(fabric, page):
    fabric.lab("policy", "qp-hash")
    process = sender(fabric, "0x31")
    try:
        act(page, "Follow", number="0x31")
        assert page.locator("#panel h2").inner_text() == "Queue pair 0x31"
        wait(lambda: of_pair(page)[0] is not None, "the chart shows its packets")
        links = page.locator("#hops ol").first.locator("button")
        wait(lambda: links.count() == 5, "its path is listed")
        uplink = links.nth(1).inner_text().split(" ")[0]
        links.nth(1).click()
        act(page, "Cut", time="600s")
        moved = lambda: marked(page, "path") and page.locator(
            f'#picture .path[data-from="{uplink}"]').count() == 0
        wait(moved, "its new path is marked")
    finally:
        stop(page, "link down")
        process.terminate()
        process.wait()
    wait(lambda: fabric.carrier(uplink), "the link is up again")
    # Who forwards is not asked where no vtepd is.
    fabric.lab("policy", "kernel")
    page.keyboard.press("Escape")
    act(page, "Follow")
    wait(lambda: "not known" in page.locator("#hops").inner_text(), "it says that it is not known")
