"""`LLM`: which softmax decoding takes, and what that costs."""

from typing import Any

import pytest

from fdjax import LLM, SamplingParams, SoftmaxStatistics, UnifiedMax
from fdjax.models import SHIPPED
from fdjax.models.calibration import shipped_calibration

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
STORY = "Once upon a time"
PROMPTS = (STORY, "The king said", "In the wood there was an old", "A")


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    """What each prompt gives by itself."""
    return [llm.generate(prompt, GREEDY)[0].token_ids for prompt in PROMPTS]


def test_the_shipped_model_decodes_with_its_calibration(
    llm: LLM, alone: list[list[int]]
):
    shipped = shipped_calibration(SHIPPED)
    assert shipped is not None and shipped.unified is not None
    assert llm.config.unified == shipped.unified
    synchronised = LLM(softmax="synchronised", max_model_len=128, max_num_seqs=1)
    assert synchronised.config.unified is None
    tokens = [synchronised.generate(p, GREEDY)[0].token_ids for p in PROMPTS]
    assert tokens == alone
    assert synchronised.softmax_statistics().query_heads == 0


def test_what_was_recomputed_can_be_asked_for(llm: LLM, alone: list[list[int]]):
    narrow = UnifiedMax(-100.0, -60.0, 60.0)
    recomputing = LLM(softmax=narrow, max_model_len=128, max_num_seqs=4)
    outputs = recomputing.generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in outputs] == alone
    steps = 11 * len(PROMPTS)  # the first token comes from the prompt
    prompts = sum(len(output.prompt_token_ids) for output in outputs)
    seen = (steps + prompts) * llm.config.num_heads
    assert recomputing.softmax_statistics() == SoftmaxStatistics(seen, (seen,) * 6)
    before = llm.softmax_statistics()
    llm.generate(PROMPTS, GREEDY)
    after = llm.softmax_statistics()
    # Of prompts, what was not cached.
    more = after.query_heads - before.query_heads
    assert steps * llm.config.num_heads < more <= seen
    assert after.recomputed == before.recomputed == (0,) * 6


def test_made_up_weights_are_not_calibrated():
    options: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 1}
    made_up = LLM(SHIPPED, random_weights=True, **options)
    assert made_up.config.unified is None
    mine = UnifiedMax(1.0, -2.0, 3.0)
    asked_for = LLM(SHIPPED, random_weights=True, softmax=mine, **options)
    assert asked_for.config.unified == mine
