"""Stop strings: the same wherever a text is cut, and never shown too early."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.serve.stop_strings import StopStrings

TEXTS = st.text("ab", max_size=20)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def expected(text: str, stops: list[str], *, included: bool) -> tuple[str, bool]:
    """The definition: the first end, and of those that share it the first start."""
    found = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    if not found:
        return text, False
    end, start = min(found)
    return text[: end if included else start], True


def run(pieces: list[str], stops: list[str], *, included: bool) -> tuple[str, bool]:
    strings, shown = StopStrings(stops, included=included), ""
    for piece in pieces:
        shown += strings.add(piece)
        if strings.found:
            break
    return shown + strings.rest(), strings.found is not None


@given(TEXTS, STOPS, st.lists(st.integers(0, 20)), st.booleans())
def test_the_cut_of_the_text_does_not_matter(
    text: str, stops: list[str], cuts: list[int], included: bool
):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert run(pieces, stops, included=included) == expected(
        text, stops, included=included
    )


@given(TEXTS, STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]):
    strings, shown = StopStrings(stops, included=False), ""
    for end, character in enumerate(text, start=1):
        shown += strings.add(character)
        if strings.found:
            return
        held = text[len(shown) : end]
        possible = [
            size for size in range(end + 1) if _may_become(text[:end], size, stops)
        ]
        assert len(held) == max(possible)


def _may_become(text: str, size: int, stops: list[str]) -> bool:
    return size == 0 or any(stop.startswith(text[len(text) - size :]) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["Once", " upon"], ["Once", " upon"]),
        (["a\n", "\nb"], ["a", ""]),
        (["a\n", "b"], ["a", "\nb"]),
        (["a\n", "b\n", "\n"], ["a", "\nb", ""]),
    ],
)
def test_pieces(pieces: list[str], shown: list[str]):
    strings = StopStrings(["\n\n"], included=False)
    assert [strings.add(piece) for piece in pieces] == shown


def test_samples_of_one_request_share_what_is_made_of_its_strings():
    """A string of 1,024 characters takes 0.1 ms; a request has 256 samples of 16."""

    class Counted(str):
        reads = 0

        def __getitem__(self, place: object) -> str:
            Counted.reads += 1
            return super().__getitem__(place)  # pyright: ignore[reportArgumentType]  (any place)

    string = Counted("ab" * 100)
    StopStrings([string], included=False)
    once = Counted.reads
    assert once
    for _ in range(20):
        StopStrings([string], included=False)
    assert Counted.reads == once
