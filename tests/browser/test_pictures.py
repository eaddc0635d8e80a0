"""Pictures of the page in both themes and widths, for people to look at."""

import subprocess

import pytest

from conftest import LAB, PICTURES, wait


@pytest.fixture(scope="module")
def traffic(fabric):
    fabric.lab("policy", "qp-pin")
    process = subprocess.Popen(
        [LAB, "workload", "--name", fabric.name, "host1", "host2", "--collective", "permutation",
         "--queue-pairs", "16", "--bytes", "4MB", "--rate", "40Mbit", "--iterations", "1000"],
        stdout=subprocess.DEVNULL)
    yield
    process.terminate()
    process.wait()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(browser, server, traffic, theme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(server.url)
    rows = page.locator("#pairs tbody tr")
    wait(lambda: rows.count() >= 16, "queue pairs are listed")
    page.wait_for_timeout(8000)
    # The header would cover a part of a long picture.
    page.evaluate("document.querySelector('header').style.position = 'static'")
    for name, show in {"fabric": lambda: page.keyboard.press("Escape"),
                       "link": lambda: page.locator('[data-from="spine1:dci1"]').press("Enter"),
                       "pair": lambda: rows.first.press("Enter")}.items():
        show()
        page.wait_for_timeout(1500)
        page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png", full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name}: {wide} pixels are scrolled at {width}"
    context.close()
