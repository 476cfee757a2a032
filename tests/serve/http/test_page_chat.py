"""The page's chat in headless Chromium: Markdown, and turns that are asked anew."""

import base64
import dataclasses
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from fdjax.serve.http.limits import Limits
from fdjax.serve.turns.turns import Turns
from tests.support.browser import SECONDS, chromium
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import MODEL, TOKENIZER, Served, listening, served

if TYPE_CHECKING:
    from playwright.sync_api import Page  # pyright: ignore[reportMissingImports]  (group browser)

pytestmark = pytest.mark.browser

SCRIPT = "<b onclick=\"alert(1)\">bold</b> <img src=x onerror='alert(1)'>"
ANSWER = f"""<think>
A list, then.
</think>

# Lists

Use **two** of `a < b`, https://example.com/x or [this](https://example.com/y).

{SCRIPT} [bad](javascript:alert(1)) ![a picture](https://example.com/z)

- one
- two
  1. three

```python
def f():
    return "<i>" & 'x'
```

|a|b|
|:-|-:|
|1|2|

```nolanguage
{SCRIPT}
"""


class Chat:
    """A page, the server behind it, and what was told and asked for."""

    def __init__(self, page: "Page", server: Served, url: str) -> None:
        self.page, self.server, self.url = page, server, url
        self.told: list[str] = []
        self.asked: list[Any] = []
        self.addresses: list[str] = []
        page.on("console", lambda message: self.told.append(message.text))
        page.on("pageerror", lambda error: self.told.append(str(error)))
        page.on("request", self._note)
        page.goto(url)

    def _note(self, request: Any) -> None:
        self.addresses.append(request.url)
        if request.method == "POST":
            self.asked.append(json.loads(request.post_data)["messages"])

    def say(self, text: str) -> None:
        """Sends it, and waits for the answer's end."""
        self.page.fill("#prompt", text)
        self.page.keyboard.press("Enter")
        self.ended()

    def ended(self) -> None:
        """Waits until no answer is being written."""
        self.page.wait_for_selector(".assistant .note", timeout=SECONDS)
        self.page.wait_for_selector(".writing", state="detached", timeout=SECONDS)


def reads(page: "Page", selector: str) -> str:
    return page.locator(selector).inner_text()


@pytest.fixture
def chat(request: pytest.FixtureRequest, tmp_path: Any) -> Generator[Chat]:
    """The parameter is what the model answers."""
    text = getattr(request, "param", "An answer.")
    engine = FakeEngine(TOKENIZER.encode_plain(text), per_step=3, max_model_len=10**6)
    turns = Turns(TOKENIZER, reasoning_parser="qwen3")
    model = dataclasses.replace(MODEL, turns=turns)
    with (
        served(engine, model=model, limits=Limits()) as server,
        listening(server.app) as port,
        chromium(tmp_path) as page,
    ):
        yield Chat(page, server, f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("chat", [ANSWER], indirect=True)
def test_markdown_becomes_elements_and_html_stays_text(chat: Chat):
    page = chat.page
    chat.say("Lists?")
    assert reads(page, ".markdown h1") == "Lists"
    assert reads(page, ".markdown strong") == "two"
    assert reads(page, ".markdown p code") == "a < b"
    assert page.locator(".markdown ul > li").count() == 2
    assert reads(page, ".markdown ol > li") == "three"
    assert reads(page, "td.right") == "2"
    assert page.locator(".reasoning div").text_content() == "A list, then."
    code = "def f():\n    return \"<i>\" & 'x'"
    assert page.locator("figure pre").first.text_content() == code
    assert page.locator(".hljs-keyword").all_inner_texts() == ["def", "return"]
    assert page.locator("figure pre").last.text_content() == SCRIPT
    assert SCRIPT in page.inner_text(".markdown"), "HTML is text"
    assert "[bad](javascript:alert(1))" in page.inner_text(".markdown")
    links = page.locator(".markdown a")
    assert [link.get_attribute("href") for link in links.all()] == [
        f"https://example.com/{name}" for name in "xyz"
    ]
    assert links.last.inner_text() == "a picture"
    assert links.last.get_attribute("rel") == "noopener noreferrer"
    assert page.locator(".markdown :is(img, b, script)").count() == 0
    assert not chat.told
    assert all(one.startswith((chat.url, "data:")) for one in chat.addresses)


def test_what_streams_becomes_what_came_whole(chat: Chat):
    """At every character; and blocks that stay as they were are the same nodes."""
    encoded = base64.b64encode(ANSWER.encode()).decode()
    assert (
        chat.page.evaluate(f"""() => {{
        const bytes = Uint8Array.from(atob("{encoded}"), (c) => c.charCodeAt(0));
        const text = new TextDecoder().decode(bytes);
        const grown = document.createElement("div"), blocks = [];
        let first = null;
        for (let end = 1; end <= text.length; end++) {{
            showMarkdown(grown, text.slice(0, end), blocks);
            const whole = document.createElement("div");
            showMarkdown(whole, text.slice(0, end), []);
            if (grown.innerHTML !== whole.innerHTML) return text.slice(0, end);
            if (end === 60) first = grown.firstChild;
        }}
        return first === grown.firstChild;
    }}""")
        is True
    )


def test_a_system_prompt_goes_first(chat: Chat):
    chat.page.click("#instructions summary")
    chat.page.fill("#system", "Be brief.")
    chat.say("One?")
    chat.say("Two?")
    system = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "An answer."}
    one = {"role": "user", "content": "One?"}
    two = {"role": "user", "content": "Two?"}
    assert chat.asked == [[system, one], [system, one, answer, two]]


def test_an_answer_is_made_anew(chat: Chat):
    chat.say("One?")
    chat.server.engine.answer = TOKENIZER.encode_plain("Another.")
    chat.page.click("text=Regenerate")
    chat.ended()
    assert chat.asked[1] == chat.asked[0] == [{"role": "user", "content": "One?"}]
    assert chat.page.locator(".markdown").all_inner_texts() == ["Another."]


def test_a_question_is_edited_and_what_followed_it_is_gone(chat: Chat):
    chat.say("One?")
    chat.say("Two?")
    chat.page.locator("text=Edit").first.click()
    chat.page.keyboard.press("Escape")
    assert chat.page.locator(".user .text").all_inner_texts() == ["One?", "Two?"]
    chat.page.locator("text=Edit").first.click()
    chat.page.fill(".user textarea", "Three?")
    chat.page.keyboard.press("Enter")
    chat.ended()
    assert chat.asked[-1] == [{"role": "user", "content": "Three?"}]
    assert chat.page.locator(".user .text").all_inner_texts() == ["Three?"]
    assert chat.page.locator(".turn").count() == 2


@pytest.mark.parametrize("chat", [ANSWER], indirect=True)
def test_texts_and_code_are_copied(chat: Chat):
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.say("Lists?")
    clipboard = "navigator.clipboard.readText()"
    chat.page.locator("figcaption button").first.click()
    chat.page.wait_for_selector("text=Copied")
    assert chat.page.evaluate(clipboard).startswith("def f():\n")
    chat.page.locator(".assistant > .bar button").first.click()
    chat.page.locator(".assistant > .bar >> text=Copied").wait_for()
    assert chat.page.evaluate(clipboard) == ANSWER.split("</think>")[1].lstrip()


def test_an_answer_is_stopped_and_asked_anew(chat: Chat):
    """What the first answer had on its way does not reach the second."""
    engine = chat.server.engine
    engine.answer = TOKENIZER.encode_plain("word " * 20_000)  # of minutes
    engine.step_s = 0.01
    chat.page.fill("#prompt", "One?")
    chat.page.keyboard.press("Enter")
    chat.page.wait_for_selector(".markdown >> text=/(word ){5}/", timeout=SECONDS)
    chat.page.click("#send")
    chat.ended()
    assert chat.page.inner_text(".note") == "stopped"
    assert 20 < len(chat.page.inner_text(".markdown")) < 90_000
    engine.answer = TOKENIZER.encode_plain("Done.")
    chat.page.click("text=Regenerate")
    chat.ended()
    assert chat.page.inner_text(".markdown") == "Done."


@pytest.mark.parametrize("chat", [ANSWER], indirect=True)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(chat: Chat, scheme: Any):
    page = chat.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)
    chat.say("Lists?")
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) == 390
    assert page.evaluate("document.querySelector('#log').scrollWidth") <= 390
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(ground.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")
    page.goto(f"{chat.url}docs")
    assert page.evaluate(width) == 390
