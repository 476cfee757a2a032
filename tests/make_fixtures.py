"""Writes `tests/fixtures` anew and says what changed; the tests need no torch.

Run from the repository root: `python -m tests.make_fixtures [NAME ...]`.
"""

import logging
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.support import hf_reference
from tests.support.hf_models import FIXTURES, MODELS, HfModel
from tests.support.hf_reference import SAFE_GAP, Expected

logger = logging.getLogger("make_fixtures")

# A continuation that repeats few tokens would hide a wrong position or window.
MIN_DISTINCT = 24


def make(model: HfModel, folder: Path) -> None:
    """Writes one fixture from the first seed whose every greedy step is clear-cut."""
    for seed in hf_reference.safe_seeds(model):
        expected = hf_reference.write(model, folder, seed=seed)
        if _is_robust(expected):
            break
    tensors = {
        "prompts": expected.prompts,
        "lengths": expected.lengths,
        "logits": expected.logits,
        "tokens": expected.tokens,
    }
    replace(folder / "expected.safetensors", tensors, seed=seed)


def replace(path: Path, tensors: dict[str, np.ndarray], *, seed: int | None) -> None:
    """Writes a file of expected values and logs the difference to what it held."""
    old = load_file(path) if path.exists() else {}
    metadata = {"transformers": transformers.__version__, "torch": torch.__version__}
    if seed is not None:
        metadata["seed"] = str(seed)
    save_file(tensors, path, metadata=metadata)
    name = path.relative_to(FIXTURES)
    logger.info("%s (seed %s): %s", name, seed, _difference(old, tensors))


def _is_robust(expected: Expected) -> bool:
    distinct = len(np.unique(expected.tokens))
    return bool(expected.gaps.min() > SAFE_GAP) and distinct >= MIN_DISTINCT


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


if __name__ == "__main__":
    main()
