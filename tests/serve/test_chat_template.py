"""What a chat becomes, by the template in a model's folder."""

import json
import pathlib
import shutil
from typing import Any

import pytest

from fdjax import ConfigError, RequestError
from fdjax.models import SHIPPED, resolve
from fdjax.serve import chat_template
from fdjax.serve.chat_template import ChatTemplate, ChatText

TALES = resolve(SHIPPED)
USER = {"role": "user", "content": "Hello"}
TEMPLATE = (
    "<s>{% if tools %}{{ tools | tojson }}{{ style }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


# With `n`, which is not known before the messages are: jinja computes constants first.
BOMBS = {
    "{{n**(10**8)%7}}": "more than 0.3 seconds",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": (
        "more than 0.3 seconds"
    ),
    "{{'a' * n**10}}": "too much memory",
    "{{n/0}}": "ZeroDivisionError: division by zero",
    "{{messages[n].content}}": "UndefinedError: ",
    "{{''.__class__.__mro__[n]}}": "SecurityError: ",
    "{{raise_exception('roles must alternate')}}": "roles must alternate",
}


def with_template(folder: pathlib.Path, template: Any) -> pathlib.Path:
    """The shipped model's tokenizer, with a template."""
    shutil.copytree(TALES, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": template})
    )
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    """One for all tests: loading `transformers` takes long. Messages choose bombs."""
    cases = "".join(
        f"{{% elif messages[0].content == 'bomb {place}' %}}{bomb}"
        for place, bomb in enumerate(BOMBS)
    )
    begin = "{% set n = 9 + messages|length %}{% if n == 1 %}"
    first = "{% elif messages[0].content == 'the first' %}{{ messages[0].content }}"
    whole = f"{begin}{cases}{first}{{% else %}}{TEMPLATE}{{% endif %}}"
    return ChatTemplate(with_template(tmp_path_factory.mktemp("a") / "model", whole))


def test_a_base_model_reads_the_messages_as_text():
    messages = [USER, {"role": "assistant", "content": "Good day"}]
    expected = ChatText("Hello\nGood day", plain=False)
    assert ChatTemplate(TALES).render(messages) == expected


def test_a_template_writes_its_own_special_tokens(template: ChatTemplate):
    expected = ChatText("<s>user: Hello\nassistant:", plain=True)
    assert template.render([USER]) == expected


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("begun", "<s>user: Hello\nassistant: Good\nassistant:"),
        ("closed", "<s>user: Hello\nassistant: Good\n"),
        ("open", "<s>user: Hello\nassistant: Good"),
    ],
)
def test_where_a_chat_ends(template: ChatTemplate, end: Any, text: str):
    messages = [USER, {"role": "assistant", "content": "Good"}]
    assert template.render(messages, end=end).text == text
    plain = ChatTemplate(TALES).render(messages, end=end)
    assert plain.text == "Hello\nGood", "without a template there is one end"


def test_a_template_that_does_not_write_the_message_to_continue(
    template: ChatTemplate,
):
    """`messages[0]` chooses the template that writes the first message alone."""
    messages = [{"role": "user", "content": "the first"}, USER]
    with pytest.raises(RequestError, match=r"chat template: .*does not appear"):
        template.render(messages, end="open")


def test_tools_and_options(template: ChatTemplate):
    tools = [{"type": "function", "function": {"name": "Łódź"}}]
    text = template.render([USER], tools, {"style": "kind"}).text
    begin, end = text.index("["), text.rindex("]") + 1
    assert json.loads(text[begin:end]) == tools
    assert text[end:] == "kinduser: Hello\nassistant:"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "tools", "messages"])
def test_options_that_are_no_variables_of_a_template(template: ChatTemplate, name: str):
    with pytest.raises(RequestError, match=rf"chat template: .*{name}"):
        template.render([USER], None, {name: "{{ 'mine' }}"})


def test_the_text_of_templates(tmp_path: pathlib.Path):
    named = [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
    ]
    for place, (given, text) in enumerate([("a", "a"), (None, ""), (named, "a\nb")]):
        folder = with_template(tmp_path / str(place), given)
        assert ChatTemplate(folder).text == text


def test_long_chats(template: ChatTemplate):
    text = template.render([USER] * 4096).text
    assert text == "<s>" + "user: Hello\n" * 4096 + "assistant:"


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_does_not_suit_or_end_is_refused(
    template: ChatTemplate, bomb: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    content = f"bomb {list(BOMBS).index(bomb)}"
    with pytest.raises(RequestError, match=f"chat template: .*{BOMBS[bomb]}"):
        template.render([{"role": "user", "content": content}])
    assert template.render([USER]).text.endswith("assistant:")


def test_null_is_no_template(tmp_path: pathlib.Path):
    folder = with_template(tmp_path / "model", None)
    assert ChatTemplate(folder).render([USER]) == ChatText("Hello", plain=False)


def test_a_template_that_cannot_be_loaded(tmp_path: pathlib.Path):
    (tmp_path / "chat_template.jinja").write_text("a")
    with pytest.raises(RequestError, match=r"chat template: .*cannot be loaded"):
        ChatTemplate(tmp_path).render([USER])


def test_a_folder_that_cannot_be_read(tmp_path: pathlib.Path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config.json cannot be read"):
        ChatTemplate(tmp_path)
