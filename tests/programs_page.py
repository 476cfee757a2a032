"""The table of activation buffers in the docs: `python -m tests.programs_page`."""

import json
from collections.abc import Iterator

from fdjax.models import ModelConfig
from fdjax.models.program import program_of
from fdjax.models.program.buffers import assign
from tests.support.operations import ROOT

MODELS = ROOT / "configs" / "models"
PAGE = ROOT / "docs" / "layer-program.md"
BEGIN = "<!-- buffers -->"
ITEM_BYTES = 2


def page(text: str) -> str:
    """The page with everything behind its mark written anew."""
    intro, mark, _ = text.partition(BEGIN)
    assert mark, f"{PAGE} has lost its mark {BEGIN}"
    return f"{intro}{BEGIN}\n\n{'\n'.join(_lines())}\n"


def _lines() -> Iterator[str]:
    yield "| model | columns of 1 and 2 | of 3 | QKV | feed-forward | bytes a token |"
    yield "|---|---|---|---|---|---|"
    for path in sorted(MODELS.glob("*.json")):
        config = ModelConfig.from_hf(json.loads(path.read_text()))
        buffers = assign(program_of(config, selects=True))
        first, second, third = buffers.widths
        assert first == second
        heads = config.num_heads + 2 * config.num_kv_heads
        wide = max(kind.mlp.size for kind in config.kinds)
        cells = (
            path.stem,
            first,
            third,
            heads * config.head_dim,
            wide,
            f"{ITEM_BYTES * buffers.columns:,}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
