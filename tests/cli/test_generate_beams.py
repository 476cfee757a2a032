"""`fdjax generate --beams`: the best text, or all that a search has found."""

import json

import pytest
import typer

from fdjax import LLM, BeamSearchParams
from fdjax.cli.beams import write_beams
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
        (("--beams", "0"), "--beams is 0"),
        (("--beams", "4", "--top-p", "0.9"), "--top-p is for drawn texts"),
        (("--beams", "4", "--seed", "3"), "--seed is for drawn texts"),
        (("--beams", "4", "--length-penalty", "99"), "--length-penalty is 99.0"),
        (("--beams", "600"), "--beams is 600; use"),
        (
            ("--beams", "4", "--diversity-penalty", "1"),
            "--diversity-penalty is 1, but --num-beam-groups is 1",
        ),
        (("--beams", "4", "--num-beam-groups", "3"), "--num-beam-groups is 3"),
        (("--length-penalty", "2"), "--length-penalty is for a beam search; give"),
        (("--early-stopping", "never"), "--early-stopping is for a beam search"),
        (("--early-stopping", "false"), "--early-stopping is for a beam search"),
        (("--num-beam-groups", "2"), "--num-beam-groups is for a beam search"),
        (("--diversity-penalty", "0"), "--diversity-penalty is for a beam search"),
        (("--show-best",), "--show-best is for a beam search; give --beams"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    invoke: Invoke, given: tuple[str, ...], told: str
):
    result = invoke("generate", STORY, *given)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())


def test_a_search_that_could_not_tell_scores_apart_is_refused(invoke: Invoke):
    result = invoke("generate", STORY, *BEAMS, "--length-penalty", "-9")
    assert result.exit_code == 1 and not result.stdout
    assert "--length-penalty is -9, but outputs may have 8 tokens" in result.stderr


def test_a_search_that_finds_nothing_is_an_error(
    shared: LLM, capsys: pytest.CaptureFixture[str]
):
    """The one token that may come is an end that may not come yet."""
    nothing = BeamSearchParams(
        beam_width=2, min_tokens=3, allowed_token_ids=[5], stop_token_ids=[5]
    )
    with pytest.raises(typer.Exit) as told:
        write_beams(shared, [STORY], nothing, json_lines=True, show_best=True)
    written = capsys.readouterr()
    assert told.value.exit_code == 1
    assert json.loads(written.out)["beams"] == []
    assert "the beam search has found no output" in written.err


def test_too_many_beams_are_refused_with_the_remedy(invoke: Invoke):
    result = invoke("generate", STORY, "--beams", "400")
    assert result.exit_code != 0
    words = result.stderr
    assert "--beams is 400, but --max-num-seqs is" in words
    assert "lower --beams, or raise --max-num-seqs" in words
