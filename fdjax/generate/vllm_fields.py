"""Fields of vLLM's `SamplingParams` that are not served, and what to do instead."""

import difflib
from collections.abc import Iterable, Mapping

_FORMS = "give structured_outputs=StructuredOutputs(...)"
_DRAW = "give n, and choose by cumulative_logprob"
_LOOP = "give logit_bias, allowed_token_ids or bad_words, or write a loop of your own"

ONLY_VLLMS: Mapping[str, str] = {
    "best_of": _DRAW,
    "detokenize": "a model without a tokenizer gives token ids; leave it out",
    "extra_args": "leave it out",
    "guided_decoding": _FORMS,
    "length_penalty": "give beam_search=BeamSearch(...)",
    "logits_processors": _LOOP,
    "logprob_token_ids": "give logprobs, of the likeliest tokens",
    "output_kind": "generate gives whole outputs, streams what is new; leave it out",
    "thinking_token_budget": "give max_tokens, which counts reasoning too",
    "truncate_prompt_tokens": "cut the prompt's token ids",
    "use_beam_search": "give beam_search=BeamSearch(...)",
}


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Checks that there are such fields.

    Args:
        given: names of fields of a call.
        known: those that there are.

    Raises:
        TypeError: one is not there; vLLM's come with what to do instead, others with
            the nearest name.
    """
    there = [*known]
    for name in given:
        if name in ONLY_VLLMS:
            raise TypeError(
                f"SamplingParams has no {name}, which is vLLM's: {ONLY_VLLMS[name]}"
            )
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"SamplingParams has no {name}{hint}")
