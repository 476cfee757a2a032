"""Events are the same however a body was cut into pieces, and each has its time."""

import itertools

import pytest

from fdjax.cli.bench.event_stream import (
    Completed,
    RequestFailed,
    completed,
    events,
    said,
)

BODY = 'data: {"a": "é"}\n\n: a comment\n\nid: 7\ndata:b\ndata:  c\ndata\n\ndata: d\n\n'
DATA = ['{"a": "é"}', "b\n c\n", "d"]


def at_once(body: bytes) -> list[str]:
    return [event.data for event in events([(1.0, body)])]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_pieces_of_any_size(end: str):
    body = BODY.replace("\n", end).encode()
    for size in range(1, len(body) + 1):
        pieces = [bytes(part) for part in itertools.batched(body, size)]
        found = list(events(enumerate(pieces)))
        assert [event.data for event in found] == DATA
        assert [event.at_s for event in found] == sorted(e.at_s for e in found)


def test_an_event_came_when_its_last_byte_did():
    pieces = [
        (1.0, b"data: a\n"),
        (2.0, b"\ndata: b"),
        (3.0, b"\n\ndata: c\n\ndata: d\n\nda"),
        (4.0, b"ta: e\r\n\r"),
        (5.0, b"\ndata: f\n\n"),
    ]
    found = [(event.at_s, event.data) for event in events(pieces)]
    assert found == [
        (2.0, "a"),
        (3.0, "b"),
        (3.0, "c"),
        (3.0, "d"),
        (4.0, "e"),
        (5.0, "f"),
    ]


@pytest.mark.parametrize("rest", ["", "data: cut", "data: cut\n", "\n", "\r\n\r\n"])
def test_what_is_cut_short_is_no_event(rest: str):
    assert at_once(f"data: a\n\n{rest}".encode()) == ["a"]


def test_an_event_without_data_is_none():
    assert at_once(b"event: ping\n\nretry: 5\n\n:\n\n\n\ndata: a\n\n") == ["a"]


def test_bytes_that_are_no_text():
    assert at_once(b"data: \xff\n\n") == ["\N{REPLACEMENT CHARACTER}"]


def test_nothing_came():
    assert list(events([])) == []


def test_what_counts_of_an_event():
    text = '{"choices": [{"text": "a b c", "finish_reason": null}], "usage": null}'
    assert completed(text) == Completed(None, True, True, False, None)
    closing = '{"choices": [{"text": "", "finish_reason": "stop"}]}'
    assert completed(closing) == Completed(None, True, False, True, None)
    usage = '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    assert completed(usage) == Completed(None, False, False, False, (3, 4))
    error = '{"error": {"message": "the engine is dead"}}'
    assert completed(error).error == "the engine is dead"


@pytest.mark.parametrize(
    "data", ["", "{", "7", "[]", '{"usage": {"prompt_tokens": 3}}']
)
def test_what_is_none_of_a_completion(data: str):
    with pytest.raises(RequestFailed, match="malformed event") as failed:
        completed(data)
    assert failed.value.detail == data


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "full"}}', "full"),
        ('{"error": "full"}', '{"error": "full"}'),
        ("Bad Gateway", "Bad Gateway"),
    ],
)
def test_what_a_server_said(body: str, message: str):
    assert said(body) == message
