"""Each action of the page, and what the kernel then says."""

import re
import subprocess

from conftest import LAB, wait

LINK = "leaf1:up1"
CIRCUIT = "spine1:dci1"


def choose(page, kind, name):
    """Selects on the map, with the keyboard."""
    page.keyboard.press("Escape")
    page.locator(f'[data-{kind}="{name}"]').focus()
    page.keyboard.press("Enter")


def form(page, button):
    return page.locator("#panel form", has=page.get_by_role("button", name=button, exact=True))


def act(page, button, **fields):
    """Fills the form of a button, and submits it."""
    place = form(page, button)
    for name, value in fields.items():
        entry = place.locator(f'[name="{name}"]')
        if entry.evaluate("element => element.tagName") == "SELECT":
            entry.select_option(value)
        else:
            entry.fill(value)
    place.get_by_role("button", name=button, exact=True).click()
    return place.locator("xpath=following-sibling::*[@role='status']")


def done(page, button, **fields):
    """Acts, and waits until the page says that it is done. Returns the command."""
    result = act(page, button, **fields)
    wait(lambda: result.inner_text().startswith(("done", "goes on")), f"{button} {fields}")
    return result.locator("code").inner_text()


def stop(page, command):
    """Stops a command in the list."""
    row = page.locator("#commands tr", has_text=command)
    row.get_by_role("button", name="Stop").first.click()


def sent(fabric, host):
    return int(fabric.on(host, "cat", "/sys/class/net/eth1/statistics/tx_bytes"))


def test_a_link_is_cut_for_a_time_and_for_good(fabric, page):
    choose(page, "from", LINK)
    act(page, "Cut", time="600s")
    wait(lambda: not fabric.carrier(LINK), "the link is down")
    half = page.locator(f'[data-from="{LINK}"]')
    wait(lambda: "broken" in half.get_attribute("class"), "the map shows it")
    stop(page, "link down")
    wait(lambda: fabric.carrier(LINK), "the link is up")

    command = done(page, "Cut", time="")
    assert command == f"{LAB} link down --name {fabric.name} {LINK}"
    assert not fabric.carrier(LINK)
    done(page, "Restore")
    assert fabric.carrier(LINK)


def ping(fabric):
    """Round trips over the circuit in ms, and the share that was lost."""
    routes = fabric.on("spine1", "ip", "-br", "-4", "addr", "show", "dev", "dci1").split()
    address, number = routes[2].split("/")[0].rsplit(".", 1)
    text = fabric.on("spine1", "ping", "-n", "-c", "100", "-l", "40", "-s", "1200", "-i", "0.01",
                     "-W", "5", f"{address}.{int(number) ^ 1}", check=False)
    times = [float(time) for time in re.findall(r"time=([\d.]+)", text)]
    return times, 1 - len(times) / 100


def test_a_circuit_is_impaired_in_several_ways_for_a_time(fabric, page):
    times, lost = ping(fabric)
    assert min(times) < 20 and max(times) < 100 and lost < 0.05, (times, lost)
    choose(page, "from", CIRCUIT)
    act(page, "Impair", delay="40ms", loss="20%", rate="1mbit", direction="a-to-b", time="600s")
    figure = page.locator("#panel dd", has_text="40 ms")
    wait(lambda: figure.count(), "the page shows the circuit")
    times, lost = ping(fabric)
    # One way. 40 frames of 1,242 bytes take 0.4 s at 1 Mbit/s.
    assert 40 < min(times) < 80 and max(times) > 250 and 0.05 < lost < 0.45, (times, lost)
    stop(page, "link impair")
    wait(lambda: not figure.count(), "the circuit is as before")
    times, lost = ping(fabric)
    assert min(times) < 20 and lost < 0.05, (times, lost)


def policies(fabric):
    """The policy of the VNI on each leaf, as vtepd says, and whether it runs."""
    found = {}
    for leaf in ("leaf1", "leaf2"):
        if fabric.processes(leaf, "vtepd"):
            taken = fabric.vtepctl(leaf, "policy", "show", check=False)
            found[leaf] = taken[0]["taken"]["policy"]["name"] if taken else "starts"
        else:
            found[leaf] = None
    return found


def test_policies_of_all_leaves_and_of_one(fabric, page):
    done(page, "Set policy", policy="five-tuple")
    assert policies(fabric) == {"leaf1": "five-tuple", "leaf2": "five-tuple"}
    choose(page, "node", "leaf2")
    done(page, "Set policy", policy="qp-bins", datapath="userspace")
    assert policies(fabric) == {"leaf1": "five-tuple", "leaf2": "qp-bins"}
    datapaths = [fabric.vtepctl(leaf, "vni")[0]["datapath"] for leaf in ("leaf1", "leaf2")]
    assert datapaths == ["offload", "userspace"]
    place = page.locator('[data-node="leaf2"] .policy')
    wait(lambda: place.text_content() == "qp-bins", "the map shows the policy")


def test_a_vtepd_is_killed_and_started_and_ended(fabric, page):
    wait(lambda: None not in policies(fabric).values(), "vtepd runs")
    other = fabric.processes("leaf2", "vtepd")
    choose(page, "node", "leaf1")
    done(page, "Kill vtepd")
    wait(lambda: not fabric.processes("leaf1", "vtepd"), "it is killed")
    node = page.locator('[data-node="leaf1"]')
    wait(lambda: "lost" in (node.get_attribute("class") or ""), "the map shows it")
    done(page, "Set policy", policy="qp-hash")
    assert policies(fabric)["leaf1"] == "qp-hash"
    done(page, "Set policy", policy="kernel")
    assert policies(fabric)["leaf1"] is None
    assert fabric.processes("leaf2", "vtepd") == other
    page.keyboard.press("Escape")
    done(page, "Set policy", policy="qp-hash")
    assert policies(fabric) == {"leaf1": "qp-hash", "leaf2": "qp-hash"}


def test_a_stream_is_started_and_stopped(fabric, page):
    before = sent(fabric, "host1")
    act(page, "Send", queue_pairs="4", rate="1000", seconds="600")
    wait(lambda: sent(fabric, "host1") > before + 1_000_000, "the stream runs")
    wait(lambda: page.locator("#commands button", has_text="Stop").count(), "it can be stopped")
    stop(page, "roce send")
    running = f"{LAB} roce send --name {fabric.name}"
    wait(lambda: subprocess.run(["pgrep", "-f", running], capture_output=True).returncode, "it ends")
    before = sent(fabric, "host1")
    page.wait_for_timeout(1000)
    assert sent(fabric, "host1") < before + 10_000


def test_a_collective_operation_runs(fabric, page):
    before = {host: sent(fabric, host) for host in ("host1", "host2")}
    command = done(page, "Run", collective="all-gather", bytes="1MiB", rate="100Mbit", iterations="3")
    assert command.endswith("--iterations 3 host1 host2"), command
    for host, bytes_sent in before.items():
        # Each rank has half of the buffer, and there is a warm-up.
        assert sent(fabric, host) > bytes_sent + 4 * 500_000, host


def test_the_command_of_an_action_is_shown_and_runs_nothing(fabric, page):
    choose(page, "from", LINK)
    form(page, "Cut").get_by_role("button", name="Show the command of Cut").click()
    code = page.locator("#panel code")
    wait(lambda: code.count(), "the command")
    assert code.inner_text() == f"{LAB} link down --name {fabric.name} --for 10s {LINK}"
    assert fabric.carrier(LINK)
