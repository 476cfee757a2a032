"""The soak of a small array, over a tiny model: pages run out, and tokens stay."""

import json
import pathlib

import pytest

from benchmarks import memory_soak, soak_requests
from benchmarks.soak_requests import TIE, Undisturbed
from fdjax.engine.request import Logprob
from tests.support.hf_model import FIXTURES


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
    assert row["at_a_time"] == round(1.3 * 160 / (56 / 3 + 22))
    assert row["ended"] + row["aborted"] == row["requests"] == 40
    assert row["put_back"] > 0 and row["aborted"] > 0
    assert row["differing"] == row["ties"] == row["moved_pages"] == 0
    assert row["differing_undisturbed"] == row["ties_undisturbed"] == 0
    assert row["pages_back"] == row["pages"] == 10


def test_a_tie_is_told_from_a_token_that_somebody_has_changed():
    tops = ({5: -1.0, 6: -1.0 - TIE / 2, 7: -1.0 - 2 * TIE}, {8: -0.1, 9: -3.0})
    alone = Undisturbed([5, 8], [Logprob(max(top.values()), top) for top in tops])
    assert alone.verdict([5, 8]) == "same"
    assert alone.verdict([6, 1]) == "tie", "all behind it may differ"
    assert alone.verdict([7, 8]) == "other"
    assert alone.verdict([5, 9]) == "other"
    assert alone.verdict([4, 8]) == "other", "not among the most likely"
    assert alone.verdict([5]) == "other", "it has not ended"
