"""The pictures of the page and of a report in docs/. VTEPD_UPDATE_DOCS=1 makes them anew."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import png
import wireshark
from conftest import LAB, PICTURES, PROFILE, TARGET, lab, wait
from test_paths import marked

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTES = 150_000
# Commands as they are for those who have lab in their PATH, however often the page writes them.
SHORT = """lab => {
  const short = () => document.querySelectorAll("#panel code").forEach((code) => {
    if (code.textContent.includes(lab)) code.textContent = code.textContent.replace(lab, "lab");
  });
  new MutationObserver(short).observe(document.body, { subtree: true, childList: true });
}"""


@pytest.fixture
def view(browser):
    context = browser.new_context(viewport={"width": 1100, "height": 640}, color_scheme="light")
    yield context.new_page()
    context.close()


@pytest.fixture
def traffic(fabric):
    """Sixteen queue pairs in each direction, at a rate that does not change."""
    fabric.lab("policy", "qp-pin")
    streams = [subprocess.Popen(
        [LAB, "roce", "send", "--name", fabric.name, "--node", f"host{own}", "--to",
         f"192.168.10.{other}", "--queue-pairs", "16", "--rate", "2000", "--seconds", "120"],
        stdout=subprocess.DEVNULL) for own, other in ((1, 2), (2, 1))]
    yield
    for stream in streams:
        stream.terminate()
        stream.wait()


def keep(page, name, last):
    """The page down to an element, as a picture of the documents."""
    page.evaluate("scrollTo(0, 0)")
    box = last.bounding_box()
    width = page.viewport_size["width"]
    shot = page.screenshot(full_page=True, clip={
        "x": 0, "y": 0, "width": width, "height": box["y"] + box["height"] + 2})
    packed = png.smaller(shot)
    assert len(packed) < len(shot) and png.lines(packed)[1] == png.lines(shot)[1]
    save(packed, name)


def save(data, name):
    """Keeps a picture, for the documents if they are updated."""
    picture, image = PICTURES / name, ROOT / "docs" / "images" / name
    picture.write_bytes(data)
    assert picture.stat().st_size < BYTES, f"{name} has {picture.stat().st_size} bytes"
    if os.environ.get("VTEPD_UPDATE_DOCS"):
        shutil.copyfile(picture, image)
    assert image.is_file(), f"{image} is made with VTEPD_UPDATE_DOCS=1"


def test_the_picture_of_the_page(view, server, traffic):
    view.goto(server.url)
    view.evaluate(SHORT, LAB)
    rows = view.locator("#pairs tbody tr")
    head = view.locator("#pairs h2")
    wait(lambda: head.inner_text() == "Queue pairs: 32", "queue pairs are listed")
    # Loads are means of a second.
    view.wait_for_timeout(5000)
    rows.first.press("Enter")
    wait(lambda: marked(view, "path"), "a path is marked")
    assert LAB not in view.locator("#panel").inner_text()
    keep(view, "web.png", view.locator("#panel"))


def test_the_picture_of_a_report(view, tmp_path):
    """The first experiment of the tutorial."""
    tutorial = (ROOT / "docs" / "guide" / "tutorial.md").read_text()
    (tmp_path / "first.toml").write_text(re.search(r'```toml\n(name = "first".*?)```', tutorial,
                                                   re.DOTALL)[1])
    lab("new", "--leaves", "2", "--spines", "4", "--name", "fabric", str(tmp_path / "fabric"))
    lab("run", str(tmp_path / "first.toml"), "--out", str(tmp_path / "first"))
    view.goto((tmp_path / "first" / "report.html").as_uri())
    keep(view, "report.png", view.locator("svg.chart"))


def test_the_picture_of_wireshark(fabric, traffic, tmp_path):
    """A capture of a leaf with its decisions, and packets in the colours of their queue pairs."""
    if not (shutil.which("wireshark") and shutil.which("Xvfb")):
        pytest.skip("apt-get install wireshark xvfb")
    wait(lambda: len(fabric.vtepctl("leaf1", "qp")) == 16, "queue pairs are placed")
    wait(lambda: all(pair["state"] == "pinned" for pair in fabric.vtepctl("leaf1", "qp")),
         "their paths are known")
    capture, pairs = tmp_path / "leaf1.pcapng", tmp_path / "qp.json"
    pairs.write_text(json.dumps(fabric.vtepctl("leaf1", "qp")))
    program = str(TARGET / PROFILE / "vtepctl")
    fabric.on("leaf1", program, "capture", "-c", "200", "-w", str(capture))
    wireshark.configure(tmp_path, ROOT / "deploy" / "wireshark", pairs)
    save(wireshark.shot(capture, tmp_path, "vtepd_qp || vtepd"), "wireshark.png")
