"""Memory of keys and values with beams, stored by prompts or by beams (Fig. 4).

Of "Efficient LLM inference solution on Intel GPU": the shapes of its Table 1, 4 beams,
prompts and responses of 1,024 tokens, float16. What a search holds is the most pages
that it may take, by which the engine lets requests in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from benchmarks.svg import WIDTH, bar, drawing, text, upright
from fdjax.engine.checked_request import make_request, most_pages
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.memory.kv import KVLayout

TOKENS = 1024
BEAMS = 4
PAGE_SIZE = 16
BATCHES = (1, 8, 16, 32)
GB = 1e9


@dataclass(frozen=True)
class Shape:
    """A model of the paper's Table 1 (the published GPT-J has 28 layers)."""

    name: str
    layers: int
    heads: int
    head_dim: int = 128

    @property
    def layout(self) -> KVLayout:
        """Of its KV array; the number of pages is no matter."""
        return KVLayout(
            1, self.layers, PAGE_SIZE, self.heads, self.head_dim, jnp.float16
        )


SHAPES = (
    Shape("GPT-J-6B", 32, 32),
    Shape("Llama2-13B", 40, 40),
    Shape("OPT-30B", 48, 56),
    Shape("Bloom-176B", 70, 112),
)


def memory() -> list[dict[str, Any]]:
    """Bytes by model and batch."""
    params = BeamSearchParams(beam_width=BEAMS, max_tokens=TOKENS)
    request = make_request(
        0,
        [0] * TOKENS,
        params.sampling,
        vocab_size=1,
        max_model_len=2 * TOKENS,
        beams=params,
    )
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        layout = shape.layout
        held = most_pages(request, layout)
        copied = BEAMS * layout.pages_for(2 * TOKENS)
        rows += [
            {
                "model": shape.name,
                "prompts": batch,
                "beams": BEAMS,
                "standard_bytes": batch * copied * layout.page_bytes,
                "segment_bytes": batch * held * layout.page_bytes,
            }
            for batch in BATCHES
        ]
    return rows


def chart(rows: Sequence[dict[str, Any]]) -> str:
    """Fig. 4."""
    title = "Keys and values of 4 beams, 1,024 tokens in and 1,024 out, float16"
    height = 80 + 40 * len(rows)
    return drawing(height, title, _parts(rows, title, height))


def _parts(rows: Sequence[dict[str, Any]], title: str, height: int) -> Iterator[str]:
    left, most = 150, max(row["standard_bytes"] for row in rows)
    span = WIDTH - left - 90
    yield text(0, 18, title, kind="title")
    yield bar(left, 34, 10, 10, kind="b") + text(left + 16, 43, "a prompt a beam")
    yield bar(left + 150, 34, 10, 10, kind="a") + text(left + 166, 43, "fdjax: once")
    yield upright(left, 54, height - 16)
    for place, row in enumerate(rows):
        y = 62 + 40 * place
        name = f"{row['model']}, {row['prompts']}"
        yield text(left - 10, y + 20, name, anchor="end")
        for half, (kind, key) in enumerate((("b", "standard"), ("a", "segment"))):
            held = row[f"{key}_bytes"]
            width, top = span * held / most, y + 16 * half
            yield bar(left, top, width, 14, kind=kind)
            yield text(
                left + width + 6, top + 11.5, f"{held / GB:.0f} GB", kind="faint"
            )
