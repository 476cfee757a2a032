"""Writes `tests/fixtures` anew and says what changed; the tests need no torch.

Run from the repository root: `python -m tests.make_fixtures [NAME ...]`.
"""

import itertools
import logging
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (group parity)
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import fdjax.models
from tests.support import beam_cases, beam_models, hf_beams, hf_reference
from tests.support.greedy import greedy
from tests.support.hf_model import FIXTURES, TALES, HfModel
from tests.support.hf_models import MODELS
from tests.support.hf_reference import SAFE_GAP, Expected

logger = logging.getLogger("make_fixtures")

# In bfloat16 each of their 64 tokens wins by at least 2**-7 of the largest logit, the
# rounding of bfloat16, so that another order of summation gives the same text.
TALES_CLEAR = (
    "On the whole, the industry of the",
    "He looks as if he were made of",
    "So he put Joe's",
    "And indeed, when she told the",
)
TALES_PROMPTS = (
    *TALES_CLEAR,
    "There was once a king who had three daughters",
    "They sailed all night and at dawn they saw",
    "He said nothing, but",
    "Wendy",
)
TALES_TOKENS = 64


def make(model: HfModel, folder: Path) -> None:
    """Writes one fixture from the first seed whose every greedy step is clear-cut."""
    seed = next(
        s
        for s in itertools.count(model.seed, 1000)
        if _is_robust(model, hf_reference.write(model, folder, seed=s))
    )
    expected = hf_reference.write(model, folder, seed=seed)
    tensors = {
        "prompts": expected.prompts,
        "lengths": expected.lengths,
        "logits": expected.logits,
        "tokens": expected.tokens,
    }
    replace(folder / "expected.safetensors", tensors, seed=seed)


def make_tales(folder: Path) -> None:
    """Writes what transformers and, in bfloat16, fdjax itself make of the tales."""
    tokenizer = Tokenizer.from_file(str(TALES / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in TALES_PROMPTS]
    lengths = np.array([len(row) for row in ids], np.int32)
    prompts = np.zeros((len(ids), max(lengths)), np.int32)
    for row, prompt in zip(prompts, ids, strict=True):
        row[: len(prompt)] = prompt
    reference = hf_reference.load(TALES)
    expected = hf_reference.expect(reference, prompts, lengths, new_tokens=TALES_TOKENS)
    assert expected.gaps.min() > SAFE_GAP, "a prompt leads to a near tie"
    clear = len(TALES_CLEAR)
    _, golden = greedy(
        fdjax.models.load(TALES, dtype=jnp.bfloat16),
        prompts[:clear],
        lengths[:clear],
        new_tokens=TALES_TOKENS,
        page_size=16,
    )
    tensors = {
        "prompts": prompts,
        "lengths": lengths,
        "last_logits": expected.logits[np.cumsum(lengths) - 1],
        "tokens": expected.tokens,
        "tokens_bfloat16": golden,
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "expected.safetensors", tensors, seed=None)


def make_beams() -> None:
    """Writes what transformers finds with beams, with the models of the others."""
    names = {case.model for case in beam_models.questions()}
    references = {name: hf_beams.reference_of(name) for name in names}
    beam_models.write_expected(
        [
            hf_beams.answered(case, references[case.model])
            for case in beam_models.questions()
        ]
    )


def replace(path: Path, tensors: dict[str, np.ndarray], *, seed: int | None) -> None:
    """Writes a file of expected values and logs the difference to what it held."""
    old = load_file(path) if path.exists() else {}
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    # One entry: safetensors writes several in a random order, and bytes would change.
    save_file(tensors, path, metadata={"made_by": f"{versions}, seed {seed}"})
    name = path.relative_to(FIXTURES)
    logger.info("%s (seed %s): %s", name, seed, _difference(old, tensors))


def _is_robust(model: HfModel, expected: Expected) -> bool:
    distinct = len(np.unique(expected.tokens))
    return bool(expected.gaps.min() > SAFE_GAP) and distinct >= model.distinct


def _difference(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> str:
    parts = [_changed(name, old.get(name), new[name]) for name in new]
    return ", ".join(part for part in parts if part) or "unchanged"


def _changed(name: str, old: np.ndarray | None, new: np.ndarray) -> str:
    if old is None or old.shape != new.shape:
        return f"{name} new"
    if new.dtype == np.float32:
        change = float(np.abs(new - old).max())
        return f"{name} changed by at most {change:.3g}" if change else ""
    count = int((new != old).sum())
    return f"{count} {name} changed" if count else ""


def main() -> None:
    """Writes the fixtures named on the command line, or all of them."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    for model in MODELS:
        if not chosen or model.name in chosen:
            make(model, FIXTURES / model.name)
    if not chosen or TALES.name in chosen:
        make_tales(FIXTURES / TALES.name)
    if not chosen or beam_cases.EXPECTED.stem in chosen:
        beam_cases.write_expected([hf_beams.search(one) for one in beam_cases.cases()])
    if not chosen or beam_models.EXPECTED.stem in chosen:
        make_beams()


if __name__ == "__main__":
    main()
