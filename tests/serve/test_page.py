"""The page in a real browser, Chromium."""

import contextlib
import json
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.support.ui import WebDriverWait
from torch import Tensor

from crodobo.burn.scan import Find, Scan
from crodobo.core.source import Source
from crodobo.data import Public
from crodobo.methods import get_method
from crodobo.serve.app import App
from crodobo.serve.keys import Keys, add_key
from crodobo.serve.service import Service
from crodobo.serve.settings import ServeSettings
from crodobo.views.augment import Augment

FLAGS = (
    "--headless",
    "--no-sandbox",  # root needs this
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# For each visible text: the contrast with its background (WCAG), and the text.
CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const rgb = numbers(getComputedStyle(at).backgroundColor);
    if (rgb.length < 4 || rgb[3] === 1) return rgb;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((one) => one.checkVisibility() && !one.disabled)
  .filter((one) => [...one.childNodes].some((inside) => inside.nodeType === 3 && inside.data.trim()))
  .map((one) => {
    const [a, b] = [light(numbers(getComputedStyle(one).color)), light(behind(one))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.textContent.trim().slice(0, 40)];
  });
"""


# The service


class Running:
    """A service in a thread of this process, and its clients."""

    def __init__(self, app: App, url: str, keys: dict[str, str]) -> None:
        self.app, self.service, self.url, self.keys = app, app.service, url, keys

    def send(self, number: int = 1, key: str = "client") -> list[str]:
        """Send queries of eight images, and return their receipts."""
        headers = {"Content-Type": "application/octet-stream"}
        if self.keys:
            headers["Authorization"] = f"Bearer {self.keys[key]}"
        receipts = []
        for seed in range(number):
            images = torch.randint(256, (8, 1, 16, 16), generator=torch.Generator().manual_seed(seed)).byte()
            request = urllib.request.Request(f"{self.url}/v1/predict", images.numpy().tobytes(), headers)
            with urllib.request.urlopen(request) as answer:
                receipts.append(json.load(answer)["receipt"])
        return receipts

    def weights(self) -> dict[str, Tensor]:
        """The state of the learners."""
        return {name: value.clone() for name, value in self.service.session.method.state().items()}

    def soon(self, act: Callable[[], None]) -> None:
        """Call a function in the thread of the app."""
        assert self.app.loading
        self.app.loading.get_loop().call_soon_threadsafe(act)

    def show(self, monkeypatch: pytest.MonkeyPatch, state: Any, failure: str | None = None) -> None:
        """Pretend to be in a state."""
        monkeypatch.setattr(Service, "state", property(lambda _: state))
        monkeypatch.setattr(Service, "failure", property(lambda _: failure))
        self.soon(self.app.monitor.notify)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@contextlib.contextmanager
def serving(
    folder: Path, source: Source, keys: bool = True, listener: socket.socket | None = None
) -> Iterator[Running]:
    """A service with tiny learners. It listens on the given socket, or on a new one."""
    path = folder / "keys.json"
    made = {role: add_key(path, role, role) for role in ("client", "admin")} if keys else {}
    made |= {"other": add_key(path, "other", "client")} if keys else {}
    options = get_method("crodobo").Settings.of(warmup=1, warmup_batch=16, burn="standard", parallel=False, plain=True)
    settings = ServeSettings.of(
        options=options,
        state=folder / "state",
        query_size=8,
        max_wait=0,
        keep_states=3,
        keep_every=2,
        checkpoint_every=1,
    )
    with (
        Service(settings) as service,
        listener.dup() if listener else socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        app = App(service, Keys(path) if keys else None)
        config = uvicorn.Config(app.api, loop="asyncio", ws="none", log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        with patch("crodobo.serve.service.load_public", lambda *_, **__: Public(source, Augment(), "")):
            thread.start()
            while app.service.state != "ready":
                assert thread.is_alive()
                time.sleep(0.01)
        running = Running(app, f"http://127.0.0.1:{listener.getsockname()[1]}", made)
        try:
            yield running
        finally:
            running.soon(app.drain)
            server.should_exit = True
            thread.join()


@pytest.fixture
def running(tmp_path: Path, source: Source, request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(tmp_path, source, keys=getattr(request, "param", True)) as one:
        yield one


# The browser


@pytest.fixture(scope="module")
def driver(chromium: str, chromedriver: str) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        started = webdriver.Chrome(options, Driver(chromedriver))
        yield started
        started.quit()


class Page:
    """A user of the page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.expected: set[str] = set()  # texts that the console may contain
        self.wait = WebDriverWait(driver, 60, poll_frequency=0.05)

    def open(self, url: str, key: str | None = None) -> None:
        self.driver.get(url)
        if key:
            self.expected.add("status of 401")  # the first attempt has no key
            self.give(key)
            self.wait.until(lambda _: self.shows("live"), "the page never showed the service")

    def give(self, key: str) -> None:
        self.wait.until(lambda _: self.shows("key"), "there is no field for a key")
        self.driver.find_element("id", "key").clear()
        self.driver.find_element("id", "key").send_keys(key)
        self.driver.find_element("css selector", "#key-form [type=submit]").click()

    def sees(self, name: str, text: str) -> None:
        """Wait until a part of the page shows a text."""
        self.wait.until(lambda _: text.lower() in self.text(name).lower(), f"{name} never said {text!r}")

    def text(self, name: str) -> str:
        return self.driver.find_element("id", name).text

    def shows(self, name: str) -> bool:
        return self.driver.find_element("id", name).is_displayed()

    def can(self, name: str) -> bool:
        return self.driver.find_element("id", name).is_enabled()

    def click(self, name: str) -> None:
        self.wait.until(lambda _: self.shows(name) and self.can(name), f"{name} could never be clicked")
        self.driver.find_element("id", name).click()

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def prefer(self, scheme: str) -> None:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def be_a_phone(self, width: int = 360) -> None:
        phone = {"width": width, "height": 780, "deviceScaleFactor": 2, "mobile": True}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[Page]:
    """A page. At the end, it must have contacted no other host, and the console must be clean."""
    one = Page(driver)
    yield one
    host = one.run("return location.origin")
    asked = one.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get("about:blank")
    said = [line["message"] for line in driver.get_log("browser")]
    assert [name for name in asked if not name.startswith(host)] == []
    assert [line for line in said if not any(text in line for text in one.expected)] == []


# Tests


def test_numbers_change_without_a_reload(running: Running, page: Page) -> None:
    page.open(running.url, running.keys["admin"])
    page.sees("empty", "No queries yet")
    page.sees("no-receipts", "none yet")
    assert not page.shows("charts")
    page.run("window.same = true")
    receipts = running.send(3)
    page.sees("queries", "3")
    page.sees("samples", "24")
    page.sees("burned", f"{running.service.totals['burned_bytes'] / 1024:.1f} kB")
    page.sees("queue", "0 of 128")
    assert not page.shows("empty")
    receipts += running.send()
    page.sees("queries", "4")
    rows = page.run("return [...document.querySelectorAll('#receipts tr')].map((row) => row.cells[1].textContent)")
    assert rows == receipts[::-1]
    lines = page.run("return [...document.querySelectorAll('#lines .line')].map((line) => line.getAttribute('d'))")
    assert [len(line.split("L")) for line in lines] == [4] * 6  # points
    values = page.run("return [...document.querySelectorAll('#lines output')].map((one) => one.textContent)")
    point = running.service.points[-1]
    assert values[:2] == [f"{100 * point['confidence']:.1f} %", f"{point['entropy']:.2f} nats"]
    shares = page.run("return [...document.querySelectorAll('#mix li b')].map((one) => one.textContent)")
    assert shares == [f"{100 * share:.1f} %" for share in point["classes"]]
    assert page.run("return window.same")


def test_a_clients_key_shows_its_own_queries_only(running: Running, page: Page) -> None:
    page.open(running.url, running.keys["client"])
    running.send(1, "other")
    receipts = running.send(2)
    running.send(1, "other")
    page.sees("queries", "2")
    page.sees("samples", "16")
    page.sees("burned", "4.0 kB")
    rows = page.run("return [...document.querySelectorAll('#receipts tr')].map((row) => row.cells[1].textContent)")
    assert rows == receipts[::-1]
    titles = "[...document.querySelectorAll('#lines figure:not([hidden]) b')].map((one) => one.textContent)"
    assert page.run(f"return {titles}") == ["Confidence", "Entropy", "Time per query"]
    page.sees("foot", "figures of its own images only")
    assert not any(page.shows(name) for name in ("estimate", "queue", "restores", "skipped", "pause", "reset"))


def test_the_query_under_the_pointer_is_shown(running: Running, page: Page) -> None:
    page.open(running.url, running.keys["client"])
    running.send(4)
    page.sees("queries", "4")
    page.sees("range", "query 4 (the last)")
    chart = page.driver.find_element("css selector", "#lines svg")
    webdriver.ActionChains(page.driver, duration=0).move_to_element_with_offset(chart, -5, 0).perform()
    page.sees("range", "query 2 (under the pointer)")
    first = running.service.points[1]
    assert page.driver.find_element("css selector", "#lines output").text == f"{100 * first['confidence']:.1f} %"


def test_a_wrong_key_shows_nothing(running: Running, page: Page) -> None:
    page.expected.add("status of 401")
    page.open(running.url)
    page.sees("key-form", "This service needs a key")
    assert not page.shows("controls")
    page.give("crodobo_wrong")
    page.sees("key-answer", "does not know that key")
    assert not page.shows("live")
    page.give(running.keys["admin"])
    page.sees("state", "ready")
    assert not page.shows("key-form")
    page.driver.refresh()  # the tab keeps the key
    page.sees("state", "ready")
    assert page.run("return [localStorage.length, document.cookie]") == [0, ""]


def test_only_an_administrators_key_may_act(running: Running, page: Page) -> None:
    page.open(running.url, running.keys["client"])
    running.send()
    before = running.weights()
    assert not any(page.shows(button) for button in ("pause", "checkpoint", "rollback", "reset"))

    page.click("key-change")
    page.give("crodobo_wrong")
    page.sees("key-answer", "does not know that key")
    page.sees("state", "ready")  # with the earlier key
    page.give(running.keys["admin"])
    page.wait.until(lambda _: not page.shows("key-form"))
    page.click("pause")
    page.sees("state", "paused")
    page.sees("done", "Adaptation is paused.")
    running.send()
    page.sees("queries", "2")
    assert not differing(running.weights(), before)
    page.sees("unlearned", "Predicted only")
    page.sees("reasons", "adaptation paused: 1")
    page.sees("range", "predicted only: adaptation paused")
    assert page.text("pause") == "Resume adaptation"
    page.click("pause")
    page.sees("state", "ready")
    running.send()
    assert differing(running.weights(), before)


def test_a_removed_key_may_not_act(running: Running, page: Page, tmp_path: Path) -> None:
    page.open(running.url, running.keys["admin"])
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([entry for entry in json.loads(path.read_text()) if entry["name"] != "admin"]))
    page.click("pause")
    page.sees("done", "no longer knows your key. Nothing was changed.")
    assert running.service.state == "ready"


def test_reset_asks_first(running: Running, page: Page) -> None:
    new = running.weights()
    page.open(running.url, running.keys["admin"])
    running.send(2)
    page.sees("queries", "2")
    learned = running.weights()
    page.click("reset")
    page.sees("sure", "learned from 2 queries is lost")
    page.click("sure-no")
    assert not page.shows("sure")
    page.click("checkpoint")
    page.sees("done", "The checkpoint is written.")
    assert not differing(running.weights(), learned)
    page.click("reset")
    page.click("sure-yes")
    page.sees("done", "The learners are reset.")
    reset = {name: value for name, value in running.weights().items() if ".network." in name}
    assert not differing(reset, new), "the optimiser begins anew"


def test_a_rollback_offers_the_kept_states_and_is_shown(running: Running, page: Page) -> None:
    page.open(running.url, running.keys["admin"])
    page.sees("empty", "No queries yet")
    assert not page.can("rollback"), "there is nothing to go back to"
    running.send(2)
    before = running.weights()
    running.send(3)
    page.sees("queries", "5")
    page.click("rollback")
    page.sees("back", "What they learned after it is lost")
    texts = page.run("return [...document.querySelectorAll('#moment option')].map((one) => one.textContent)")
    assert [text.partition(", ")[2] for text in texts] == [
        "after query 4 (1 query ago)",
        "after query 2 (3 queries ago)",
        "before the first query (5 queries ago)",
    ]
    page.click("back-no")
    assert not page.shows("back")
    running.send()  # the state after query 6 is now the newest, and the oldest is forgotten
    page.sees("queries", "6")
    page.click("rollback")
    page.driver.find_element("css selector", "#moment option[value='2']").click()
    running.send()
    page.sees("queries", "7")
    page.click("back-yes")
    page.sees("done", "The learners are rolled back.")
    page.sees("rolled", "after query 2")
    assert not differing(running.weights(), before)
    running.send()
    page.sees("queries", "8")
    page.sees("restored", "rolled back by an administrator")
    marks = page.run("return document.querySelector('#lines .restored').getAttribute('d')")
    assert marks.count("M") == 1
    assert [moment.query for moment in running.service.session.history.moments] == [2]


def test_each_state_and_the_burn_proof_have_a_sentence(
    running: Running, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    prover = running.service.session.prover
    page.open(running.url, running.keys["admin"])
    page.sees("proof-state", "No proof at this level")
    for state, sentence in (
        ("loading", "The service is reading the source."),
        ("warming up", "The learners are learning the source."),
        ("proving", "searches all memory"),
    ):
        running.show(monkeypatch, state)
        page.sees("sentence", sentence)
        page.sees("state", state)
        page.sees("empty-text", "when the service is ready")
        assert page.shows("busy")
        assert not page.can("pause")
    prover.scan, prover.time = Scan(300 * 2**20, 512), "2026-01-02T03:04:05.678+00:00"
    running.show(monkeypatch, "ready")
    page.sees("proof-state", "No traces of a test query")
    for fact in ("2026-01-0", "300 MB in 512 regions", "0 bytes"):
        page.sees("proof-facts", fact)
    prover.scan = Scan(300 * 2**20, 512, finds=[Find("pixels", "heap", 4096, 64)])
    running.show(monkeypatch, "failed", "64 bytes of a burned test query are still in memory.")
    page.sees("sentence", "64 bytes of a burned test query")
    page.sees("proof-state", "Traces found")
    page.sees("proof-facts", "64 bytes")
    running.show(monkeypatch, "draining")
    page.sees("sentence", "shutting down")


def test_a_lost_connection_is_shown_and_restored(page: Page, tmp_path: Path, source: Source) -> None:
    page.expected.add("net::ERR_")
    listener = socket.create_server(("127.0.0.1", 0))  # shared, so that no other process takes the port in between
    with serving(tmp_path, source, keys=False, listener=listener) as first:
        page.open(first.url)
        first.send()
        page.sees("queries", "1")
    page.sees("connection", "Connection lost. Trying again.")
    assert not page.can("pause")
    with listener, serving(tmp_path, source, keys=False, listener=listener):
        page.sees("met", "1 in all")
        assert not page.shows("connection")


@pytest.mark.parametrize("running", [False], indirect=True, ids=["no keys"])
def test_without_keys_the_page_asks_for_none(running: Running, page: Page) -> None:
    page.open(running.url)
    page.click("pause")
    page.sees("state", "paused")
    assert not page.shows("key-form")
    assert not page.shows("key-change")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_on_a_phone_in_both_colour_schemes(running: Running, page: Page, scheme: str) -> None:
    page.prefer(scheme)
    page.be_a_phone()
    running.send(3)

    def check() -> None:
        assert page.run("return document.documentElement.scrollWidth") <= 360
        ground = page.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}[scheme]
        assert [text for ratio, text in page.run(CONTRAST) if ratio < 4.5] == []

    page.open(running.url, running.keys["client"])
    page.sees("queries", "3")
    page.click("key-change")
    check()
    page.open(f"{running.url}/docs")
    page.sees("docs", "/v1/predict")
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    check()


def test_the_api_documentation_is_complete(running: Running, page: Page) -> None:
    page.open(f"{running.url}/docs")
    page.sees("docs", "/admin/{action}")
    shown = page.run("return [...document.querySelectorAll('summary code')].map((one) => one.textContent)")
    with urllib.request.urlopen(f"{running.url}/openapi.json") as answer:
        assert sorted(shown) == sorted(json.load(answer)["paths"])
    page.sees("docs", f"{running.url}/v1/predict")  # an example to copy


def test_the_api_documentation_breaks_no_column_into_letters(running: Running, page: Page) -> None:
    page.be_a_phone(500)
    page.open(f"{running.url}/docs")
    page.sees("docs", "/v1/predict")
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    narrow = "[...document.querySelectorAll('.words td')].filter((one) => one.textContent && one.clientWidth < 60)"
    assert page.run(f"return {narrow}.map((one) => one.textContent)") == []


def test_events_send_each_query_once(running: Running) -> None:
    running.send(2)
    request = urllib.request.Request(f"{running.url}/events")
    request.add_header("Authorization", f"Bearer {running.keys['client']}")
    with urllib.request.urlopen(request) as stream:
        events = (json.loads(line[5:]) for line in stream if line.startswith(b"data:"))
        assert [point["query"] for point in next(events)["points"]] == [1, 2]
        running.send()
        assert next(point for event in events for point in event["points"])["query"] == 3
