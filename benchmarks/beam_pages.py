"""Pages that beam searches of the model in the package hold at most, beside Eq. (3).

`python -m benchmarks.beam_pages` prints them. A page that no beam reads any more is
given back at once, so how many are held is a matter of the texts that are found.
"""

import argparse
from collections.abc import Sequence

from benchmarks.tables import markdown
from fdjax.engine.checked_request import most_pages
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.serve.llm import LLM

PROMPTS = ("There was once a king who", "The fox")
WIDTHS = (4, 16)


def pages(llm: LLM, prompt: str, *, beams: int, tokens: int) -> tuple[int, int]:
    """The most pages that a search holds at a time, and the most that it might.

    Args:
        llm: the model, with nothing else to do.
        prompt: its text.
        beams: of the search.
        tokens: of each output.
    """
    engine, pool = llm.engine, llm.engine.scheduler.pool
    assert llm.tokenizer is not None
    params = BeamSearchParams(beam_width=beams, max_tokens=tokens, ignore_eos=True)
    request = engine.request(0, llm.tokenizer.encode(prompt), params)
    engine.add(request)
    held = 0
    while engine.has_work:
        engine.step()
        held = max(held, pool.num_pages - pool.num_free)
    return held, most_pages(request, engine.plan.layout)


def main(given: Sequence[str] | None = None) -> str:
    """Prints a table, and returns it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=192)
    tokens = parser.parse_args(given).tokens
    llm = LLM(max_num_seqs=max(WIDTHS), enable_prefix_caching=False)
    cells: list[Sequence[str]] = []
    for prompt in PROMPTS:
        for beams in WIDTHS:
            held, most = pages(llm, prompt, beams=beams, tokens=tokens)
            cells.append((prompt, f"{beams}", f"{held}", f"{most}"))
    table = markdown(("prompt", "beams", "pages held at most", "Eq. (3)"), cells)
    print(table)
    return table


if __name__ == "__main__":
    main()
