"""The page in headless Chromium, against the shipped model: it talks, and it moves."""

import pathlib
import re
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from fdjax import LLM
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.wiring import application
from tests.support.browser import SECONDS, chromium
from tests.support.http_server import listening
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page  # pyright: ignore[reportMissingImports]  (group browser)

pytestmark = pytest.mark.browser

KEY = "the key"
# The length of the answer at each change of it, and what the throughput was.
WATCH_ANSWER = """
    globalThis.lengths = [];
    globalThis.rates = [];
    const deep = { childList: true, subtree: true };
    new MutationObserver(() => {
        rates.push(document.querySelector("#throughput .value").textContent);
    }).observe(document.querySelector("#throughput"), deep);
    new MutationObserver(() => {
        const answer = document.querySelector(".markdown");
        if (answer) lengths.push(answer.textContent.length);
    }).observe(document.querySelector("#log"), deep);
"""


@pytest.fixture
def url(llm: LLM) -> Generator[str]:
    app, serving = application(
        llm.loaded,
        names=["tales-5m"],
        keyring=Keyring([KEY]),
        sampling={"temperature": 0.7},
    )
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}"
    serving.close()


@pytest.fixture
def page(tmp_path: pathlib.Path) -> "Generator[Page]":
    credentials = {"username": "", "password": KEY}
    with chromium(tmp_path, http_credentials=credentials) as page:
        yield page


def line_of(page: "Page", plot: str) -> str:
    return page.locator(f"#{plot} .line").first.get_attribute("d") or ""


def test_a_chat_streams_and_the_plots_move(
    page: "Page", url: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
):
    """No more of the answer is made before the page has shown what there is."""
    step, may_step = llm.engine.step, threading.Semaphore(0)

    def held() -> Any:
        may_step.acquire(timeout=60)
        return step()

    monkeypatch.setattr(llm.engine, "step", held)
    told: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.wait_for_selector("#state[data-state=ready]", timeout=SECONDS)
    assert page.locator("#model").inner_text() == "tales-5m"
    assert page.input_value("#key") == KEY
    page.fill("#max-tokens", "100")
    page.fill("#prompt", "Once upon a time there was a king")
    page.evaluate(WATCH_ANSWER)
    page.keyboard.press("Enter")
    for count in range(1, 5):  # with eight of thirteen steps
        may_step.release(2)
        shown = f"new Set(lengths).size >= {count}"
        page.wait_for_function(shown, timeout=SECONDS)
    may_step.release(10**6)
    page.wait_for_selector(".note", timeout=SECONDS)
    lengths: list[int] = page.evaluate("lengths")
    assert len(set(lengths)) > 3 and lengths == sorted(lengths), "it comes in parts"
    assert lengths[-1] == len(page.locator(".markdown").text_content() or "") > 100
    assert re.match(r"\d+ tokens, the first after [\d,]+ ms", page.inner_text(".note"))
    plots = ("throughput", "requests", "kv", "recomputed")
    before = [line_of(page, plot) for plot in plots]
    page.wait_for_function("rates.some((one) => /^[1-9]/.test(one))", timeout=SECONDS)
    for plot, old in zip(plots, before, strict=True):
        wait_until(
            lambda plot=plot, old=old: len(line_of(page, plot)) > len(old),
            fault=f"{plot} has no more points",
        )
    assert not told
    assert all(one.startswith((url, "data:")) for one in asked)
    assert f"{url}/metrics" in asked


def test_a_wrong_key_is_told_and_the_next_question_answered(page: "Page", url: str):
    page.goto(url)
    page.fill("#key", "another")
    page.fill("#prompt", "Once")
    page.click("#send")
    page.wait_for_selector(".failed", timeout=SECONDS)
    assert "API key" in page.inner_text(".failed")
    page.fill("#key", KEY)
    page.fill("#max-tokens", "5")
    page.fill("#prompt", "Once")
    page.click("#send")
    page.wait_for_selector(".note:not(.failed)", timeout=SECONDS)
    answered = page.evaluate("exchanges.map((one) => one.answer !== '')")
    assert answered == [False, True]
    assert page.evaluate("messagesOf(exchanges[1]).length") == 1, "it stands alone"
    page.click("#fresh")
    assert page.locator(".turn").count() == 0
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    page.fill("#prompt", "Once")
    page.reload()
    assert page.input_value("#prompt") == ""
