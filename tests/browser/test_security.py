"""Who may see the page and act, from a browser's view."""

import http.server
import json
import socket
import threading
import time
import zlib
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error

from conftest import Server, wait

MARKUP = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>"


@pytest.fixture(scope="module")
def other_origin():
    """A web server of somebody else on this machine."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def jobs(page):
    return page.locator("#commands tbody tr").count()


def test_the_page_is_small_and_asks_nobody_else(context, server, fabric):
    page, answers = context.new_page(), []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(server.url)
    page.wait_for_selector("#leaves tbody tr")
    assert all(answer.url.startswith((server.url, "data:")) for answer in answers), answers
    kinds = ("html", "css", "javascript")
    files = [answer.body() for answer in answers
             if any(kind in answer.headers.get("content-type", "") for kind in kinds)]
    assert len(files) >= 8
    assert len(zlib.compress(b"".join(files), 9)) < 60_000


def test_without_the_secret_there_is_nothing(context, server):
    parts = urlsplit(server.url)
    page = context.new_page()
    for path in ("/", f"/{'0' * 32}/", "/state", "/main.js"):
        answer = page.goto(f"http://{parts.netloc}{path}")
        assert answer.status == 403 and "<html" not in answer.text(), path


def test_another_host_name_gets_no_answer(context, server):
    parts = urlsplit(server.url)
    page = context.new_page()
    answer = page.goto(f"http://evil.test:{parts.port}{parts.path}")
    assert answer.status == 403
    assert page.goto(server.url).status == 200


def test_a_page_of_another_origin_reads_and_does_nothing(context, server, other_origin, page, fabric):
    before = jobs(page)
    evil = context.new_page()
    evil.goto(other_origin)
    tried = evil.evaluate("""async (url) => {
      const result = {};
      const note = (name, promise) => promise.then(() => { result[name] = "worked"; }, () => { result[name] = "refused"; });
      const body = JSON.stringify({ action: "down", link: "leaf1:up1" });
      await note("fetch", fetch(url + "fabric"));
      await note("post", fetch(url + "run", { method: "POST", body }));
      // The browser sends this one, and hides the answer.
      await fetch(url + "run", { method: "POST", mode: "no-cors", body }).catch(() => {});
      navigator.sendBeacon(url + "run", body);
      await note("events", new Promise((yes, no) => {
        const source = new EventSource(url + "state");
        source.onmessage = yes; source.onerror = () => { source.close(); no(); };
      }));
      await note("script", new Promise((yes, no) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url + "state.js", onload: yes, onerror: no });
        document.head.append(script);
      }));
      return result;
    }""", server.url)
    assert tried == dict.fromkeys(("fetch", "post", "events", "script"), "refused")
    # No frame shows the page.
    evil.evaluate("url => { const frame = document.createElement('iframe'); frame.src = url; document.body.append(frame); }",
                  server.url)
    evil.wait_for_timeout(1000)
    for frame in evil.frames[1:]:
        with pytest.raises(Error):
            frame.locator("#name").inner_text(timeout=200)
    assert fabric.carrier("leaf1:up1") and jobs(page) == before


def test_a_reader_that_stands_still_holds_up_no_page(page, server):
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(f"GET {parts.path}state/1 HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        end = time.monotonic() + 5
        memory = resident(server)
        while time.monotonic() < end:
            page.wait_for_timeout(500)
        shown = page.locator("#shown").inner_text()
        assert shown == "live"
        latest = page.evaluate("Date.now()") / 1000
        clock = page.locator(".chart text[text-anchor=end]").last
        ago = latest % 60 - int(clock.text_content()[-2:])
        assert ago % 60 < 4, (ago, clock.text_content())
        assert resident(server) < memory + 8_000, "kB"


def resident(server):
    text = open(f"/proc/{server.process.pid}/status").read()
    return int(text.split("VmRSS:")[1].split()[0])


def hostile(value):
    """The value with markup in each text and name that is not needed as it is."""
    fixed = {"up", "ab", "ba", "picture", "a", "b", "time", "source", "destination"}
    if isinstance(value, dict):
        return {name: of if name in fixed else hostile(of) for name, of in value.items()}
    if isinstance(value, list):
        return [hostile(of) for of in value]
    return value + MARKUP if isinstance(value, str) else value


def test_names_with_markup_are_text(context, page, tmp_path, fabric):
    """All texts of a saved file, which is what a server sends, have markup."""
    page.wait_for_timeout(3000)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    saved = json.loads(file.read_text())
    first = saved["changes"][0]
    first.setdefault("events", {})["999999"] = {"leaf": "leaf1", "kind": "test", "text": "an event",
                                                "time": "2026-01-01T00:00:00Z"}
    first.setdefault("jobs", {})["9"] = {"command": "lab", "output": "said", "running": False,
                                         "ok": False, "at": 0}
    first.setdefault("pairs", {})["leaf1 1 a b 0x1"] = {
        "leaf": "leaf1", "vni": 1, "source": "192.168.10.1", "destination": "192.168.10.2", "qp": 1,
        "uplink": "up1", "port": 50000, "state": "pinned", "routers": ["10.0.0.1"], "rate": 1,
        "moves": 0, "gaps": 0, "same": "yes"}
    saved["changes"] = [hostile(first)] * 2
    saved["fabric"]["name"] += MARKUP
    saved["fabric"]["picture"] = saved["fabric"]["picture"].replace(
        "</svg>", "<script>window.pwned=1</script><image href='x' onerror='window.pwned=1'/>"
                  "<foreignObject><img src='x' onerror='window.pwned=1'/></foreignObject></svg>")
    file.write_text(json.dumps(saved))
    server = Server("--replay", str(file))
    try:
        replay = context.new_page()
        replay.goto(server.url)
        wait(lambda: replay.locator("#pairs tbody tr").count(), "it is shown")
        for chosen in (replay.locator('[data-node="leaf1"]'), replay.locator("#pairs tbody tr").first):
            chosen.focus()
            replay.keyboard.press("Enter")
            replay.wait_for_timeout(300)
        assert "<script>" in replay.locator("#name").inner_text()
        for section in ("#leaves", "#events", "#pairs", "#panel"):
            assert "<img src=x" in replay.locator(section).inner_text(), section
        assert replay.evaluate("window.pwned") is None
        assert replay.locator("main img, main script").count() == 0
    finally:
        server.stop()
