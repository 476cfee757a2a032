"""Hugging Face transformers on the same machine, for comparison (needs torch)."""

import pathlib
import statistics
import time
from typing import Any

from benchmarks import needs
from benchmarks.cases import Case


class Peer:
    """A checkpoint in transformers, on the CPU in float32.

    Args:
        folder: the checkpoint.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        needs.packages("torch")
        import torch  # pyright: ignore[reportMissingImports]  (group parity)
        from transformers import AutoModelForCausalLM

        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    @property
    def version(self) -> str:
        """Versions of the peer."""
        import transformers

        return (
            f"transformers {transformers.__version__}, torch {self._torch.__version__}"
        )

    def measure(self, case: Case, *, repeats: int) -> dict[str, float]:
        """Milliseconds of a greedy decode step and of the prefill."""
        vocab_size = self._model.config.vocab_size
        prompts = self._torch.as_tensor(case.prompts(vocab_size))
        self._seconds(prompts, 2)
        first = [self._seconds(prompts, 1) for _ in range(repeats)]
        whole = [self._seconds(prompts, 1 + case.steps) for _ in range(repeats)]
        prefill = statistics.median(first)
        step = (statistics.median(whole) - prefill) / case.steps
        return {
            "ms_per_step": round(step * 1e3, 4),
            "tokens_per_s": round(case.batch / step, 1),
            "prefill_ms": round(prefill * 1e3, 2),
            "spread": round((max(whole) - min(whole)) / case.steps / step, 4),
        }

    def _seconds(self, prompts: Any, num_tokens: int) -> float:
        start = time.perf_counter()
        with self._torch.inference_mode():
            self._model.generate(
                prompts,
                attention_mask=self._torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                pad_token_id=0,
            )
        return time.perf_counter() - start
