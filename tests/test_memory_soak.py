"""The soak of a small array, over a tiny model: pages run out, and tokens stay."""

import json
import pathlib
from typing import Any

import pytest

from benchmarks import memory_soak, soak_requests
from benchmarks.soak_requests import TIE, Kind, Soak, Undisturbed
from fdjax.engine.request import Logprob
from tests.support.borrowing import Poisoned, TokensBorrow
from tests.support.engines import shallow_model, tiny_engine
from tests.support.hf_model import FIXTURES
from tests.support.soak import is_idle


def test_requests_keep_their_tokens_and_give_all_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """On a CPU nothing is lent, so that none are put back for room, and none moved."""
    monkeypatch.setattr(soak_requests, "LENGTHS", (3, 20, 33))
    monkeypatch.setattr(soak_requests, "OUTPUTS", (4, 40))
    monkeypatch.setattr(soak_requests, "STARTS", 2)
    out = tmp_path / "memory_soak.json"
    out.write_text('[{"case": "kept"}]')
    sizes = "--requests 40 --tokens 160 --batched-tokens 32"
    run = f"--model {FIXTURES / 'llama'} --prefix-caching --out {out}"
    memory_soak.main(f"{sizes} {run}".split())
    kept, row = json.loads(out.read_text())
    assert kept == {"case": "kept"}
    assert row["case"] == "llama-cached" and row["prefix_caching"]
    assert row["at_a_time"] == round(1.3 * 160 / (56 / 3 + 11))
    assert row["ended"] + row["aborted"] == row["requests"] == 40
    assert row["put_back"] > 0 and row["aborted"] > 0
    assert row["moved_pages"] == 0
    for of in ("", "_unlent", "_undisturbed"):
        assert row[f"differing{of}"] == row[f"ties{of}"] == 0
        assert row[f"differing_kinds{of}"] == row[f"largest_gap{of}"] == 0
    assert row["pages_back"] == row["pages"] == 10


@pytest.mark.parametrize("caching", [True, False])
def test_pages_are_moved_and_sequences_put_back_where_calls_borrow(
    caching: bool, monkeypatch: pytest.MonkeyPatch
):
    """As on a GPU, where the smallest call with prompts borrows more than decoding."""
    monkeypatch.setattr(soak_requests, "LENGTHS", (3, 9, 20))
    monkeypatch.setattr(soak_requests, "OUTPUTS", (4, 20))
    monkeypatch.setattr(soak_requests, "STARTS", 2)
    sizes: dict[str, Any] = {"page_size": 4, "max_model_len": 40, "max_num_seqs": 8}
    sizes |= {"steps_per_launch": 2, "max_batched_tokens": 32}
    apart = tiny_engine(shallow_model(), **sizes)
    prompts = soak_requests.told(apart)
    alone = soak_requests.undisturbed(apart, prompts)
    borrowing, num_pages = TokensBorrow(8), 24
    caches: dict[str, Any] = {"borrowing": borrowing, "prefix_caching": caching}
    engine = tiny_engine(shallow_model(), num_pages=num_pages, **sizes, **caches)
    Poisoned(engine, borrowing)
    load = memory_soak.LOAD * (num_pages - 2) * 4 / soak_requests.mean_tokens()
    done = soak_requests.soak(
        engine, prompts, num_requests=60, num_live=round(load), seed=1
    )
    now, found = engine.statistics(), soak_requests.verdicts(done, alone)
    assert (found.num_ties, found.num_differing) == (0, 0)
    row = {"lent": True, "put_back": now.num_preemptions}
    assert memory_soak.unseen({**row, "moved_pages": now.num_moved_pages}) == []
    assert is_idle(engine)


def test_a_soak_that_shows_nothing_says_so():
    row = {"put_back": 0, "moved_pages": 0}
    assert memory_soak.unseen({**row, "lent": True}) == ["put_back", "moved_pages"]
    assert memory_soak.unseen({**row, "lent": False}) == ["put_back"]


def test_a_tie_is_told_from_a_token_that_somebody_has_changed():
    tops = ({5: -1.0, 6: -1.0 - TIE / 2, 7: -1.0 - 2 * TIE}, {8: -0.1, 9: -3.0})
    alone = Undisturbed([5, 8], [Logprob(max(top.values()), top) for top in tops])
    assert alone.gap([5, 8]) is None
    assert alone.gap([6, 1]) == pytest.approx(TIE / 2), "all behind it may differ"
    assert alone.gap([7, 8]) == pytest.approx(2 * TIE)
    assert alone.gap([5, 9]) == pytest.approx(2.9)
    assert alone.gap([4, 8]) == pytest.approx(2 * TIE), "at least: it is not among them"
    with pytest.raises(ValueError, match="1 tokens came, not 2"):
        alone.gap([5])
    kinds = [Kind(start, 8, 2) for start in range(2)]
    outputs = [(kinds[0], [5, 9]), (kinds[0], [7, 8]), (kinds[0], [6, 8])]
    done = Soak([*outputs, (kinds[1], [5, 8])], num_aborted=0)
    found = soak_requests.verdicts(done, dict.fromkeys(kinds, alone))
    assert found.row("_x") == {
        "differing_x": 2,
        "differing_kinds_x": 1,
        "ties_x": 1,
        "largest_gap_x": 2.9,
    }
