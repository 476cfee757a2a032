"""`Reading`: what prompts and parameters become before an engine can take them."""

import asyncio
from collections.abc import Sequence

from fdjax.generate.any_params import AnyParams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.bad_words import in_tokens
from fdjax.serve.prompts import (
    CutPrompt,
    LastTokens,
    PlainPrompt,
    Prompt,
    plain,
    token_ids_of,
)
from fdjax.serve.texts import Texts
from fdjax.serve.tickets import Submission
from fdjax.serve.tokenizer import Tokenizer


class Reading:
    """Reads prompts for tasks of asyncio, which go on meanwhile.

    Args:
        tokenizer: without one, prompts are token ids.
        texts: which it tokenises; `None` likewise.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        texts: Texts | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = texts

    async def submissions(
        self, prompts: Sequence[CutPrompt], params: AnyParams, owner: str = ""
    ) -> list[Submission]:
        """Of prompts that share parameters, and an owner.

        Raises:
            RequestError: a prompt or the parameters cannot be served.
        """
        params = await self._with_words(params)
        return [
            Submission(index, token_ids, params)
            for index, token_ids in enumerate(await self._encode(prompts, owner))
        ]

    async def _with_words(self, params: AnyParams) -> AnyParams:
        """Their `bad_words` as an engine takes them."""
        if isinstance(params, SamplingParams) and params.bad_words:
            return await asyncio.to_thread(in_tokens, params, self._tokenizer)
        if isinstance(params, BeamSearchParams) and params.bad_words:
            return await asyncio.to_thread(in_tokens, params, self._tokenizer)
        return params

    async def _encode(
        self, prompts: Sequence[CutPrompt], owner: str
    ) -> list[list[int]]:
        """Token ids, once all texts are known to be short enough, cut or not."""
        counts = [_count(prompt) for prompt in prompts]
        plains = [plain(_whole(prompt), i) for i, prompt in enumerate(prompts)]
        if self._texts is not None:
            for index, prompt in enumerate(plains):
                if isinstance(prompt, str):
                    self._texts.check([prompt], f"prompt {index}")
        return [
            await self._token_ids(prompt, count, index, owner)
            for index, (prompt, count) in enumerate(zip(plains, counts, strict=True))
        ]

    async def _token_ids(
        self, prompt: PlainPrompt, count: int | None, index: int, owner: str
    ) -> list[int]:
        if isinstance(prompt, str) and self._texts is not None:
            ids = await self._texts.encode(prompt, f"prompt {index}", owner=owner)
            return ids if count is None else self._last(ids, count)
        if count is not None and not isinstance(prompt, str):
            prompt = prompt[-count:]
        return token_ids_of(prompt, index, None)

    def _last(self, ids: list[int], count: int) -> list[int]:
        """The last tokens of a text, behind the special ones that it begins with."""
        if len(ids) <= count:
            return ids
        begin = [] if self._tokenizer is None else self._tokenizer.encode("")
        if len(begin) >= count or ids[: len(begin)] != begin:
            begin = []
        return begin + ids[len(ids) - count + len(begin) :]


def _count(prompt: CutPrompt) -> int | None:
    return prompt.count if isinstance(prompt, LastTokens) else None


def _whole(prompt: CutPrompt) -> Prompt:
    return prompt.prompt if isinstance(prompt, LastTokens) else prompt
