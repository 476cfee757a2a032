"""Lines of the log: one a record, whatever is in it."""

import json
import logging
from typing import Any

import pytest

from fdjax.serve.http.logs import (
    REQUEST_ID,
    JsonFormatter,
    TextFormatter,
    log_config,
)


def record(message: str = "request", *, fields: Any = None, error: Any = None) -> Any:
    exc_info = (type(error), error, None) if error else None
    made = logging.LogRecord("fdjax", logging.INFO, "", 0, message, (), exc_info)
    made.created, made.msecs = 1000000000.25, 250.0
    if fields is not None:
        made.fields = fields
    return made


def test_a_line_of_json():
    line = JsonFormatter().format(record(fields={"status": 200, "path": "/a\nb"}))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2001-09-09T01:46:40.250Z",
        "level": "info",
        "logger": "fdjax",
        "message": "request",
        "status": 200,
        "path": "/a\nb",
    }


def test_a_traceback_is_a_field():
    line = JsonFormatter().format(record(error=ValueError("two\nlines")))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: two\nlines")


def test_a_line_of_text():
    line = TextFormatter().format(record(fields={"status": 200, "path": "/v1/models"}))
    assert line == "2001-09-09T01:46:40Z INFO    request status=200 path=/v1/models"


@pytest.mark.parametrize("path", ["/a\nINFO b", "/a b", "/\x1b[31m", "/\u2028"])
def test_a_value_cannot_begin_a_line(path: str):
    line = TextFormatter().format(record(fields={"path": path}))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(f"path={json.dumps(path)}")


def test_lines_on_the_way_have_the_id_of_the_request():
    token = REQUEST_ID.set("abc")
    try:
        assert json.loads(JsonFormatter().format(record()))["request_id"] == "abc"
        warning = record("slow")
        warning.levelno = logging.WARNING
        assert TextFormatter().format(warning).endswith("slow request_id=abc")
    finally:
        REQUEST_ID.reset(token)


@pytest.mark.parametrize(
    ("name", "kind"), [("json", JsonFormatter), ("text", TextFormatter)]
)
def test_the_format_is_chosen(name: Any, kind: type[logging.Formatter]):
    assert log_config(name)["formatters"]["lines"]["()"] is kind
