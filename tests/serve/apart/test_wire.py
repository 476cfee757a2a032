"""Messages as bytes, however they are cut on their way."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from fdjax.serve.apart.wire import Message, Messages

_NUMBERS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
_MESSAGES = st.builds(
    lambda text, ints, floats: Message(
        "kind", {"text": text, "none": None}, [array("I", ints), array("d", floats)]
    ),
    st.text(st.characters(), max_size=20),
    _NUMBERS,
    st.lists(st.floats(allow_nan=False), max_size=9),
)


@given(st.lists(_MESSAGES, max_size=4), st.integers(1, 300))
def test_messages_come_as_they_went(sent: list[Message], size: int):
    data, come = b"".join(one.packed() for one in sent), Messages()
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert [one for part in parts for one in come.add(part)] == sent


def test_half_a_surrogate_pair_crosses():
    sent = Message("kind", {"stop": "\ud800"}, [])
    assert Messages().add(sent.packed()) == [sent]
