"""Keys of pages: equal for equal beginnings, and for nothing else."""

from fdjax.memory.prefix import PrefixKeys


def keys(tokens: list[int], salt: bytes = b"") -> list[bytes]:
    prefix = PrefixKeys(4, salt)
    prefix.extend(tokens)
    return prefix.keys


def test_only_full_pages_have_keys():
    assert [len(keys(list(range(count)))) for count in (0, 3, 4, 7, 8)] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_a_key_is_of_everything_before():
    one, other = keys([1, 2, 3, 4, 5, 6, 7, 8]), keys([9, 2, 3, 4, 5, 6, 7, 8])
    assert one[0] != other[0]
    assert one[1] != other[1], "the same tokens after other ones"
    assert keys([1, 2, 3, 4, 5, 6, 7, 9])[0] == one[0]


def test_it_grows_as_its_sequence_does():
    prefix = PrefixKeys(4)
    tokens: list[int] = []
    for token in range(10):
        tokens.append(token)
        prefix.extend(tokens)
    assert prefix.keys == keys(list(range(10)))


def test_token_ids_do_not_run_together():
    assert keys([1, 0, 0, 0]) != keys([256, 0, 0, 0])
    assert keys([1, 2, 3, 4])[0] != keys([1, 2, 3, 4], b"tenant")[0]
