"""From the options of a server to the limits of its queue and of a request."""

from fdjax.cli.request_options import RequestOptions
from fdjax.serve.setup import MAX_BEAM_WIDTH


def test_limits_are_chosen_given_or_lifted():
    options = RequestOptions(max_queued_requests=7, max_queued_tokens=0)
    assert options.waiting() == {
        "max_queued_requests": 7,
        "max_queued_samples": "auto",
        "max_queued_tokens": None,
    }


def test_limits_of_a_request():
    usual = RequestOptions().limits()
    assert (usual.logprobs, usual.seconds) == (2**19, None)
    given = RequestOptions(max_answer_logprobs=5, request_timeout=2.5).limits()
    assert (given.logprobs, given.seconds) == (5, 2.5)


def test_beams_of_a_search():
    """The options know the number without what imports JAX."""
    usual = {"max_beam_width": MAX_BEAM_WIDTH, "max_num_beams": "auto"}
    assert RequestOptions().beams() == usual
    assert RequestOptions(max_num_beams=3).beams()["max_num_beams"] == 3
    assert RequestOptions(max_num_beams=0).beams()["max_num_beams"] is None
