"""The HTML report in a real browser, from a file: sorting, a run's detail, a phone, and no request."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ATTACK, MIB, artifact, book, entry, page, result, sheet
from zobench.result import Outcome, Result
from zobench.store import Store

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
LANES = [
    ["upload", "upload", 0, 0.0, 0.001],
    ["compute", "compute", 0, 0.001, 0.004],
    ["offload", "offload", 0, 0.004, 0.005],
]
TRACE: dict[str, list[float | None]] = {"seconds": [0, 0.5, 1.0], "rss_bytes": [100 * MIB, 300 * MIB, 200 * MIB]}

RICH = result("opt-125m", engine="offload", timeline=LANES, trace=TRACE, warnings=["swapped: 3 pages"])
BAD = result("bad" + ATTACK, machine="box-2", outcome=Outcome.FAILED, reason="why" + ATTACK, warnings=["w" + ATTACK])
MORE = [result("opt-tiny", seed=seed, samples={"step_seconds": [0.01 * (seed + 1)] * 3}) for seed in range(12)]
WIDE = sheet(
    *((f"A model with a long name {i}", entry(str(i), "value", "(x0.5)"), entry("text " * 9)) for i in range(9))
)


AHEAD = artifact("zo2/predicted", sheets=(sheet(("A", entry("~1", "predicted"), entry("~2", "predicted"))),))


def machinery() -> tuple[str, str]:
    """Paths of a browser and its driver; without them tests are skipped, but in continuous integration they fail."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    try:
        import selenium  # noqa: F401
    except ImportError:
        driver = None
    if browser is None or driver is None:
        reason = "the page's test needs chromium, chromedriver and selenium; apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return browser, driver


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    shown = book((RICH, BAD, *MORE), artifacts=(*book().artifacts, artifact("zo2/table9", sheets=(WIDE,)), AHEAD))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(shown, width="504"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program, driver = machinery()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture
def view(browser: Any, address: str) -> Iterator[Any]:
    """The freshly opened page on a desktop; afterwards nothing was logged, and nothing but the file was asked for."""
    screen(browser, 1280)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(address)
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert {url.split("#")[0] for url in asked if not url.startswith(("data:", "blob:"))} == {address}
    assert browser.execute_script("return window.hacked ?? null") is None


def screen(browser: Any, width: int, *, dark: bool = False) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def wait(browser: Any, script: str, *arguments: str) -> Any:
    """The first true value of ``script``."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(f"return {script}", *arguments))


def element(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def rows(browser: Any, table: str) -> list[str]:
    """Labels of the rows that are shown, in order."""
    shown = "[...document.querySelectorAll(arguments[0])].filter((row) => row.checkVisibility())"
    return list(browser.execute_script(f"return {shown}.map((row) => row.cells[0].textContent)", f"{table} tbody tr"))


def place(run: Result) -> str:
    return f"run-{run.spec.hash}"


def open_run(browser: Any, run: Result) -> None:
    link = element(browser, f"#{place(run)} th a")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    wait(browser, "document.querySelector('#detail[open] #detail-json') !== null")


SPEEDS = "[id='zo2/table1']"


def test_a_click_on_a_header_sorts_numbers_and_keeps_blanks_last(view: Any) -> None:
    header = element(view, f"{SPEEDS} thead tr:last-child th:nth-child(2)")
    assert element(view, f"{SPEEDS} tbody tr:first-child td").text == "1,200"
    button = header.find_element("tag name", "button")
    orders = []
    for _ in range(3):
        button.click()
        orders.append((header.get_attribute("aria-sort"), "".join(rows(view, SPEEDS))))
    assert orders == [("ascending", "FBADCE"), ("descending", "ABFDCE"), ("none", "ABCDEF")]
    assert element(view, f"{SPEEDS} tbody tr:nth-child(2) td").text.startswith("598 (x0.57)")


def test_a_run_is_one_click_away_with_its_complete_json(view: Any, tmp_path: Path) -> None:
    open_run(view, RICH)
    stored = Store(tmp_path / "results").save(RICH)
    assert view.execute_script("return document.querySelector('#detail-json').textContent") == stored.read_text()
    assert json.loads(stored.read_text())["memory"]["device_peak_bytes"] == 200 * MIB
    content = element(view, "#detail").text
    for text in ("opt-125m offload/disk fp32 b1 s64", "Warning: swapped: 3 pages", "200 MiB", "Box, 2 cores"):
        assert text in content
    view.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    [save] = [button for button in view.find_elements("css selector", ".tools button") if button.text == "Download"]
    view.execute_script("arguments[0].scrollIntoView()", save)
    save.click()
    saved = tmp_path / stored.name
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(view, 20).until(lambda _: saved.exists())
    assert saved.read_bytes() == stored.read_bytes()


def test_traces_are_drawn_with_units_and_tell_their_values(view: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    open_run(view, RICH)
    wait(view, "document.querySelectorAll('#detail svg').length === 4")
    labels = [text.text for text in view.find_elements("css selector", "#detail svg text")]
    for label in ("step time (s)", "memory (MiB)", "time (s)", "time (ms)", "upload", "compute", "offload"):
        assert label in labels
    points = "[...document.querySelectorAll('#detail svg')].map((svg) => svg.querySelectorAll('circle, rect').length)"
    assert wait(view, points) == [3, 4, 3, 3]  # the loss has one step without a value
    section = element(view, ".charts section:nth-child(2)")
    drawing = section.find_element("tag name", "svg")
    content = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT):
        drawing.send_keys(key)
        content.append(section.find_element("css selector", ".readout").text)
    assert content == ["step 0: 1", "step 1: 0.5", "step 0: 1"]
    memory = element(view, ".charts section:nth-child(3)")
    ActionChains(view).move_to_element(memory.find_element("tag name", "svg")).perform()
    assert memory.find_element("css selector", ".readout").text == "s 0.5: 300"


def test_what_a_result_says_is_shown_and_not_run(view: Any) -> None:
    open_run(view, BAD)
    content = view.execute_script("return document.getElementById('detail').textContent")
    assert "why" + ATTACK in content
    assert "w" + ATTACK in content
    shown = view.execute_script("return document.getElementById('detail-json').textContent")
    assert shown == json.dumps(BAD.to_dict(), sort_keys=True, indent=1) + "\n"
    assert view.execute_script("return document.querySelectorAll('#detail img').length") == 0
    assert view.execute_script("return document.querySelectorAll('img').length") == 1  # the figure


def test_the_list_of_runs_is_filtered_and_sorted_by_exact_numbers(view: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    assert element(view, "#shown").text == "14 runs"
    find = element(view, "#find")
    find.send_keys("TINY seed=1")
    assert element(view, "#shown").text == "3 of 14 runs"  # seeds 1, 10 and 11
    find.send_keys(Keys.CONTROL, "a", Keys.NULL, "tiny")
    assert rows(view, "#run-list") == ["opt-tiny"] * 12
    header = element(view, "#run-list th:nth-child(6) button")
    seconds = [repr(0.01 * (k + 1)) for k in range(12)]
    shown = "[...document.querySelectorAll('#run-list tbody tr:not([hidden])')]"
    for expected in (seconds, seconds[::-1]):
        header.click()
        assert view.execute_script(f"return {shown}.map((row) => row.cells[5].dataset.sort)") == expected
    find.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    element(view, "[data-column='outcome'] option:nth-child(2)").click()
    assert element(view, "#shown").text == "1 of 14 runs"


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_never_wider_than_its_screen(view: Any, width: int) -> None:
    screen(view, width)
    fits = "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)"
    assert view.execute_script(f"return innerWidth === {width} && {fits}(document.documentElement)")
    inner = "[...document.querySelectorAll('.scroll')].some((box) => box.scrollWidth > box.clientWidth)"
    assert view.execute_script(f"return {inner}")  # the wide table scrolls in its own box
    cut = "[...document.querySelectorAll('.plate')].filter((box) => box.scrollWidth > box.clientWidth)"
    says = "getComputedStyle(box.nextElementSibling).display === 'block'"
    assert view.execute_script(f"const cut = {cut}; return [cut.length, cut.every((box) => {says})]") == [
        int(width == 360), True,
    ]  # fmt: skip
    open_run(view, RICH)
    wait(view, "document.querySelectorAll('#detail svg').length === 4")
    assert view.execute_script(f"return {fits}(document.querySelector('#detail'))")
