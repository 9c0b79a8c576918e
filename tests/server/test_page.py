"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import anchorstream
from helpers.live_server import LiveServer

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def server(default_model_path: Path, tmp_path: Path) -> Iterator[LiveServer]:
    made = LiveServer(lambda: anchorstream.load(default_model_path), folder=tmp_path / "sessions")
    yield made
    made.stop()


@pytest.fixture
def page(browser: sync_api.Browser, server: LiveServer) -> Iterator[sync_api.Page]:
    context = browser.new_context()
    made = context.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
    made.on("request", lambda request: complaints.append(request.url) if not local(request.url) else None)
    made.goto(server.url)
    made.get_by_label("Longest reply").evaluate("e => { e.value = 30; e.dispatchEvent(new Event('change')); }")
    yield made
    context.close()
    assert complaints == []


def local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1", "data:"))


def say(page: sync_api.Page, text: str) -> str:
    """Say something and wait for the whole reply."""
    before = page.locator("#messages li.assistant").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#messages li.assistant")).to_have_count(before + 1)
    return finished(page)


def finished(page: sync_api.Page) -> str:
    sync_api.expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=30_000)
    return page.locator("#messages li.assistant .text").last.inner_text()


def figure(page: sync_api.Page, name: str) -> float:
    told = page.locator("#figures div", has=page.locator(f'dt:text-is("{name}")')).locator("dd").inner_text()
    return float(re.sub(r"[^\d.]", "", told))


def test_a_long_chat_stays_flat_and_survives_a_reload(page: sync_api.Page, tmp_path: Path) -> None:
    page.get_by_label("Longest reply").evaluate("e => { e.value = 120; e.dispatchEvent(new Event('change')); }")
    for turn in range(14):
        assert say(page, f"Tell me a long story about number {turn}.")
    sync_api.expect(page.locator("#banks rect.gone")).to_have_count(1)
    sync_api.expect(page.locator("#banks rect.anchor")).not_to_have_count(0)
    assert figure(page, "tokens consumed") > 1500
    assert figure(page, "read this turn") < 60
    memory = page.locator("#memory polyline").get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in memory.split()]
    assert abs(heights[-1] - heights[-3]) < 3
    before = page.locator("#messages").inner_text()
    page.reload()
    sync_api.expect(page.locator("#messages li.user")).to_have_count(14)
    assert page.locator("#messages").inner_text() == before
    say(page, "And now?")
    assert figure(page, "read this turn") < 60


def test_a_server_restart_in_the_middle(page: sync_api.Page, server: LiveServer, default_model_path: Path) -> None:
    say(page, "My name is Ishmael.")
    port, folder = int(server.url.rsplit(":", 1)[1]), server.state.config.folder
    server.stop()
    page.get_by_label("Message", exact=True).fill("Are you there?")
    page.keyboard.press("Enter")
    sync_api.expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    again = LiveServer(lambda: anchorstream.load(default_model_path), folder=folder, listen=port)
    try:
        page.keyboard.press("ArrowUp")  # edits the last message
        page.keyboard.press("Enter")
        assert finished(page)
        told = again.http.get("/v1/sessions").json()["data"]
        assert [each["turns"] for each in told] == [2]
    finally:
        again.stop()
        server.stop = lambda: None  # type: ignore[method-assign]


def test_stop_regenerate_and_edit(page: sync_api.Page, server: LiveServer) -> None:
    page.get_by_label("Longest reply").evaluate("e => { e.value = 100000; e.dispatchEvent(new Event('change')); }")
    page.get_by_label("Message", exact=True).fill(
        "Write the letter A and then a space, again and again, for ever: A A A A A A"
    )
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#messages li.assistant .text")).to_have_text(re.compile(r"[\s\S]{10,}"))
    page.keyboard.press("Escape")
    stopped = finished(page)
    assert stopped
    page.get_by_label("Longest reply").evaluate("e => { e.value = 20; e.dispatchEvent(new Event('change')); }")
    page.get_by_role("button", name="Regenerate").click()
    again = finished(page)
    assert again
    assert page.locator("#messages li").count() == 2
    say(page, "Second")
    page.get_by_role("button", name="Edit").first.click()
    assert page.get_by_label("Message", exact=True).input_value().startswith("Write the letter A")
    page.get_by_label("Message", exact=True).fill("Something else")
    page.keyboard.press("Enter")
    finished(page)
    sync_api.expect(page.locator("#messages li.user .text")).to_have_text(["Something else"])
    assert server.is_idle


def test_many_conversations(page: sync_api.Page) -> None:
    say(page, "First chat")
    page.get_by_role("button", name="New chat").first.click()
    sync_api.expect(page.locator("#messages li")).to_have_count(0)
    say(page, "Second chat")
    sync_api.expect(page.locator("#list .open")).to_have_text(["Second chat", "First chat"])
    page.locator("#list .open", has_text="First chat").click()
    sync_api.expect(page.locator("#messages li.user .text")).to_have_text(["First chat"])
    page.get_by_role("button", name="Delete Second chat").click()
    page.reload()
    sync_api.expect(page.locator("#list .open")).to_have_text(["First chat"])


def test_text_is_never_markup(page: sync_api.Page) -> None:
    say(page, "<img src=x onerror=alert(1)> <b>bold</b>")
    assert page.locator("#messages img, #messages b").count() == 0


def test_a_phone_and_the_keyboard(browser: sync_api.Browser, server: LiveServer) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
    phone = context.new_page()
    phone.goto(server.url)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    sync_api.expect(phone.locator("#side")).to_be_hidden()
    phone.get_by_role("button", name="Chats").click()
    sync_api.expect(phone.locator("#side")).to_be_visible()
    phone.keyboard.press("Escape")
    sync_api.expect(phone.locator("#side")).to_be_hidden()
    phone.get_by_label("Message", exact=True).focus()
    phone.keyboard.type("By keyboard alone")
    phone.keyboard.press("Tab")
    assert phone.evaluate("document.activeElement.id") == "send"
    phone.keyboard.press("Enter")
    sync_api.expect(phone.locator("#messages li.user")).to_have_count(1)
    assert finished(phone)
    context.close()


def test_a_key_is_asked_for(browser: sync_api.Browser, default_model_path: Path) -> None:
    locked = LiveServer(lambda: anchorstream.load(default_model_path), api_key="s3cret")
    page = browser.new_page()
    page.goto(locked.url)
    sync_api.expect(page.get_by_role("alert")).to_contain_text("API key")
    page.get_by_label("API key").fill("s3cret")
    page.get_by_label("API key").blur()
    sync_api.expect(page.locator("#model")).to_contain_text("endless")
    page.close()
    locked.stop()
