"""Fabrics, servers and pages for the tests of the live page."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import pytest
from playwright.sync_api import sync_playwright

TARGET = pathlib.Path(os.environ["TARGET"])
PROFILE = os.environ.get("PROFILE", "debug")
LAB = str(TARGET / PROFILE / "lab")
PICTURES = TARGET / "browser" / "pictures"
TIMEOUT = 20


def lab(*arguments, check=True):
    """Runs lab and returns its output."""
    done = subprocess.run([LAB, *arguments], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def wait(condition, what, seconds=TIMEOUT):
    """Waits for an event, and returns the first result that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


class Fabric:
    """A running fabric of lab."""

    def __init__(self, name, *options):
        self.name = name
        self.folder = tempfile.TemporaryDirectory()
        lab("new", *options, "--name", name, f"{self.folder.name}/fabric")
        lab("up", f"{self.folder.name}/fabric/{name}.clab.yml")

    def lab(self, command, *arguments, check=True):
        return lab(*command.split(), "--name", self.name, *arguments, check=check)

    def on(self, node, *command, check=True):
        """Runs a command in a node's namespace."""
        space = f"lab-{self.name}-{node}"
        done = subprocess.run(["ip", "netns", "exec", space, *command], capture_output=True,
                              text=True, timeout=60)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def vtepctl(self, leaf, *arguments, check=True):
        text = self.on(leaf, str(TARGET / PROFILE / "vtepctl"), *arguments, "-o", "json",
                       check=check)
        return json.loads(text) if text else None

    def carrier(self, end):
        """Whether the kernel says that NODE:INTERFACE has a carrier."""
        node, interface = end.split(":")
        shown = json.loads(self.on(node, "ip", "-j", "link", "show", "dev", interface))
        return shown[0]["operstate"] == "UP"

    def processes(self, leaf, name):
        """Processes in a node's namespace with this name."""
        found = subprocess.run(["ip", "netns", "pids", f"lab-{self.name}-{leaf}"],
                               capture_output=True, text=True, check=True).stdout.split()
        named = []
        for pid in found:
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    named.append(int(pid))
            except FileNotFoundError:
                pass
        return named

    def down(self):
        lab("down", self.name)
        self.folder.cleanup()


def used(pid):
    """CPU time of a process in seconds, without that of its children."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """`lab web`."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([LAB, "web", *arguments], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def cpu(self):
        """CPU time in seconds, without that of commands."""
        return used(self.process.pid)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(TIMEOUT)


@pytest.fixture(scope="session")
def browser():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # A name that somebody has pointed at this machine, for the tests of security.
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=["--host-resolver-rules=MAP evil.test 127.0.0.1"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def fabric():
    """host1 - leaf1 - two spines - four circuits - two spines - leaf2 - host2."""
    fabric = Fabric(f"web{os.getpid()}", "--sites", "2", "--leaves", "1", "--spines", "2",
                    "--no-bfd")
    yield fabric
    fabric.down()


@pytest.fixture
def server(fabric):
    """One for each test: a server shows what it has seen in the last ten minutes."""
    server = Server(fabric.name)
    yield server
    server.stop()


@pytest.fixture
def context(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context, server):
    """The live page. Whatever it logs or throws fails the test."""
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("#leaves tbody tr")
    yield page
    assert said == [], said
