"""The page of an experiment while it runs, and of results: of lab run and of lab sim."""

import collections
import csv
import json
import re
import signal
import subprocess

import pytest

from conftest import LAB, PICTURES, Server, lab, wait
from test_documents import keep

EXPERIMENT = """
name = "{name}"
title = "Two fabrics"
question = "How even are the loads?"
topologies = ["small/small.clab.yml", "large/large.clab.yml"]

[[dataplane]]
policy = "kernel"

[[dataplane]]
policy = "qp-hash"

[traffic]
rate = 2000

[sweep]
queue-pairs = [16]

[repetitions]
min = 3
max = 3
"""

SIMULATION = """
name = "small"
title = "A small fabric"
question = "Which scheme is faster?"
seeds = 2

[fabric]
kind = "leaf-spine"
leaves = 4
hosts = 2
spines = 2
rate = "100Gbit/s"
delay = "1us"

[[traffic]]
kind = "permutation"
bytes = 2_000_000

[[variant]]
scheme = "ecmp"
values = 1

[[variant]]
scheme = "prime-like"
"""


def summary(place):
    """The rows of summary.csv about the tier with the most links."""
    with open(place / "summary.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    widest = collections.defaultdict(list)
    for row in rows:
        widest[row["fabric"], row["dataplane"]].append(row)
    return {key: max(reversed(all), key=lambda row: int(row["links"])) for key, all in widest.items()}


def table(page):
    """The results on the page: the runs and the mean by fabric and dataplane."""
    rows = page.locator("#experiment tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.textContent))")
    return {(row[0], row[2]): (row[3], row[4]) for row in rows}


def rounded(number):
    return f"{float(f'{float(number):.3g}'):g}"


class Loads:
    """What the page shows in the SVG's titles: what each end sends."""

    def __init__(self, page, unit):
        titles = page.locator("#picture [data-from] title").all_text_contents()
        scales = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
        found = [re.match(rf"(\S+) to \S+: ([\d.]+)([kMG]?) {unit} sent", title) for title in titles]
        self.sent = {of[1]: float(of[2]) * scales[of[3]] for of in found if of}


def first_run(page):
    """Goes to the first run of results."""
    wait(lambda: " of " in page.locator("#shown").inner_text(), "the results")
    page.locator("#scrub").focus()
    page.keyboard.press("Home")


@pytest.fixture(scope="module")
def results(tmp_path_factory, browser):
    """An experiment with two fabrics that was watched while it ran, and what its page showed."""
    place = tmp_path_factory.mktemp("experiment")
    lab("new", "--leaves", "2", "--spines", "2", "--name", "small", str(place / "small"))
    lab("new", "--leaves", "2", "--spines", "3", "--name", "large", str(place / "large"))
    (place / "two.toml").write_text(EXPERIMENT.format(name="watched"))
    process = subprocess.Popen([LAB, "run", str(place / "two.toml"), "--out", str(place / "out"),
                                "--web"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, said, seen = context.new_page(), [], {"nodes": [], "loads": {}}
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        # Notes about the machine may come first.
        lines = iter(process.stderr.readline, "")
        page.goto(next(of[1] for of in map(re.compile("live page: (http://.+)").search, lines) if of))
        seen["early"] = page.locator("#picture").inner_text()
        nodes = page.locator("#picture [data-node]")
        status = page.locator("#experiment p")
        # The page follows from the first fabric to the second one.
        for spines in (2, 3):
            wait(lambda: nodes.count() == 4 + spines, f"a fabric with {spines} spines", 120)
            wait(lambda: re.search(r"Now: \S+, 16 queue pairs", status.inner_text() or ""),
                 "a run", 60)
            seen["loads"][spines] = wait(lambda: [load for end, load in Loads(page, "bit/s").sent.items()
                                                  if load > 1e5], "its load is on the map", 60)
            assert page.locator("#panel form").count() == 0
            # Each run is a stream, which the page hears of.
            streams = page.locator(".chart", has_text="Completion time of streams")
            wait(lambda: streams.locator(".lasting").count(), "the end of a run", 60)
            # The order of the dataplanes is drawn.
            assert re.search("stream, (kernel|qp-hash)", streams.inner_text())
        page.set_viewport_size({"width": 1100, "height": 640})
        keep(page, "run.png", page.locator("#map"))
        seen["half"] = table(page)
        wait(lambda: "has ended" in (status.inner_text() or ""), "the end", 180)
        seen["end"], seen["table"] = status.inner_text(), table(page)
        assert process.wait(60) == 0, process.stderr.read()
        wait(lambda: page.locator("#status").inner_text() == "ended", "the server has ended", 20)
        assert said == [], said
        yield place / "out", seen
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        context.close()


def test_a_page_follows_an_experiment(results):
    place, seen = results
    assert "No fabric is up" in seen["early"]
    # In the second fabric, the results of the first one are complete.
    small = {key: runs for key, (runs, _) in seen["half"].items() if key[0] == "small"}
    assert small == {("small", "kernel"): "3", ("small", "qp-hash"): "3"}
    assert f"12 runs are complete. The experiment has ended: Report: {place}" in seen["end"]
    expected = {key: (row["repetitions"], rounded(row["mmr_mean"]))
                for key, row in summary(place).items()}
    assert len(expected) == 4
    assert {key: (runs, f"{float(mean):g}") for key, (runs, mean) in seen["table"].items()} == expected


def test_results_of_an_experiment_are_replayed(results, context):
    place, _ = results
    runs = [json.loads(line) for line in (place / "runs.jsonl").read_text().splitlines()]
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    for fabric, options in (("small", ()), ("large", ("--fabric", "large"))):
        server = Server("--replay", str(place), *options)
        try:
            page.goto(server.url)
            links = page.evaluate("fetch('fabric').then((of) => of.json()).then((of) => of.fabric.links)")
            far = {link[end]: link[other] for link in links for end, other in ("ab", "ba")}
            own = [run for run in runs if run["fabric"] == fabric]
            first_run(page)
            for number, run in enumerate(own, 1):
                wait(lambda: page.locator("#shown").inner_text().startswith(
                    f"{number} of {len(own)}: {run['dataplane']}, "), f"run {number}")
                page.wait_for_timeout(300)
                shown = Loads(page, "frames/s").sent
                # The receiving leaf counts what its uplinks receive.
                ends = [*run["tiers"][0]["links"].items(),
                        *((far[end], frames) for end, frames in run["tiers"][-1]["links"].items())]
                for end, frames in ends:
                    assert shown[end] == pytest.approx(frames / run["seconds"], rel=0.006, abs=1), end
                page.keyboard.press("ArrowRight")
            page.locator('[data-from="leaf1:up1"]').press("Enter")
            wait(lambda: "frames/s sent" in page.locator("#panel").inner_text(), "the link's figures")
            assert page.locator(".chart").count() == 4
            assert len(table(page)) == 4
            page.screenshot(path=PICTURES / f"replay-{fabric}.png", full_page=True)
        finally:
            server.stop()
    assert said == [], said


def test_results_of_a_simulation_are_replayed(tmp_path, context):
    (tmp_path / "small.toml").write_text(SIMULATION)
    lab("sim", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"))
    lines = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    server = Server("--replay", str(tmp_path / "out"))
    try:
        page.goto(server.url)
        first_run(page)
        first = [line for line in lines if line["seed"] == 1]
        assert len(first) == 2
        for number, line in enumerate(first, 1):
            wait(lambda: page.locator("#shown").inner_text().startswith(
                f"{number} of 2: {line['scheme']}, "), line["scheme"])
            page.wait_for_timeout(300)
            shown = Loads(page, "bit/s").sent
            loads = [load for end, load in shown.items() if re.match(r"leaf\d+:spine", end)]
            assert len(loads) == 8
            # The simulator's own figure of the same loads.
            assert max(loads) * 8 / sum(loads) == pytest.approx(line["mmr"]["leaf-spine"], rel=0.01)
            page.keyboard.press("ArrowRight")
        page.screenshot(path=PICTURES / "replay-sim.png", full_page=True)
        assert len(table(page)) == 2
    finally:
        server.stop()
    assert said == [], said

    # Results that this lab does not repeat are refused.
    damaged = dict(lines[0], packets=lines[0]["packets"] + 1)
    (tmp_path / "out/results.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [damaged, *lines[1:]]))
    refused = subprocess.run([LAB, "web", "--replay", str(tmp_path / "out")], capture_output=True,
                             text=True, timeout=60)
    assert refused.returncode != 0 and "has another result now" in refused.stderr
