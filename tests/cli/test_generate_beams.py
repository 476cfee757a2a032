"""`fdjax generate --beams`: the best text, or all that a search has found."""

import json

import pytest

from fdjax import LLM, BeamSearchParams
from tests.cli.conftest import Invoke

STORY = "Once upon a time"
BEAMS = ("--beams", "3", "--max-tokens", "8")


def test_the_best_text_is_written(invoke: Invoke, shared: LLM):
    params = BeamSearchParams(beam_width=3, max_tokens=8)
    (output,) = shared.beam_search(STORY, params)
    result = invoke("generate", STORY, *BEAMS)
    assert result.exit_code == 0
    assert result.stdout == f"{STORY}{output.sequences[0].text}\n"


def test_all_of_them_are_written_as_json(invoke: Invoke, shared: LLM):
    result = invoke(
        "generate", STORY, "A", *BEAMS, "--json", "--length-penalty", "2",
        "--early-stopping", "never",
    )  # fmt: skip
    params = BeamSearchParams(
        beam_width=3, max_tokens=8, length_penalty=2.0, early_stopping="never"
    )
    outputs = shared.beam_search([STORY, "A"], params)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == [STORY, "A"]
    for line, output in zip(lines, outputs, strict=True):
        assert [one["text"] for one in line["beams"]] == [
            one.text for one in output.sequences
        ]
        scores = [one["score"] for one in line["beams"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 3


def test_the_best_so_far_is_shown_where_it_is_asked_for(invoke: Invoke):
    result = invoke("generate", STORY, *BEAMS, "--show-best", "--json", "--logprobs=1")
    told = [one for one in result.stderr.splitlines() if "best so far" in one]
    assert len(told) > 4
    beams = json.loads(result.stdout)["beams"]
    for one in beams:
        assert [entry["token_id"] for entry in one["logprobs"]] == one["token_ids"]
    assert "best so far" not in invoke("generate", STORY, *BEAMS).stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--beams", "0"), "beam_width is 0"),
        (("--beams", "4", "--top-p", "0.9"), "--top-p is for drawn texts"),
        (("--beams", "4", "--seed", "3"), "--seed is for drawn texts"),
        (("--beams", "4", "--length-penalty", "99"), "length_penalty is 99.0"),
        (("--beams", "4", "--num-beam-groups", "3"), "num_beam_groups is 3"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    invoke: Invoke, given: tuple[str, ...], told: str
):
    result = invoke("generate", STORY, *given)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())


def test_too_many_beams_are_refused_with_the_remedy(invoke: Invoke):
    result = invoke("generate", STORY, "--beams", "400")
    assert result.exit_code != 0
    assert "beam_width is 400, but max_num_seqs is" in result.stderr
