"""`Vectors`: what of `LLM` makes vectors of texts, and compares them."""

import contextlib
from collections.abc import Sequence

from fdjax.generate.pooling_params import PoolingParams
from fdjax.serve.embedding import EmbeddingOutput, ScoreOutput, pairs_of, score
from fdjax.serve.offline import as_list
from fdjax.serve.progress import generating
from fdjax.serve.prompts import Prompt
from fdjax.serve.resident import Resident


class Vectors(Resident):
    """Methods of `LLM`; see there."""

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[EmbeddingOutput]:
        """Makes a vector of each prompt, of the hidden states of its tokens.

        Args:
            prompts: as for `generate`; as long as `max_model_len`.
            pooling_params: for all prompts, or one each; by default the last token's
                state, made a unit long.
            progress: see `generate`, as for the next.
            use_tqdm: see above.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or parameter cannot be served; nothing has run then.
            QueueFullError: more prompts than may wait.
        """
        params = PoolingParams() if pooling_params is None else pooling_params
        shown = progress if use_tqdm is None else use_tqdm
        count, coming = self._offline.embed(prompts, params, self.tokenizer)
        outputs: list[EmbeddingOutput] = []
        with generating(count) if shown else contextlib.nullcontext() as report:
            for output in coming:
                outputs.append(output)
                if report is not None:
                    report(0, True)
        return sorted(outputs, key=lambda output: output.index)

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[ScoreOutput]:
        """Says how alike texts are: the cosines of the angles between their vectors.

        Args:
            data_1: one text, or as many as there are in `data_2`.
            data_2: one text or several.
            pooling_params: of all vectors; see `embed`, as for the next two.
            progress: see above.
            use_tqdm: see above.

        Returns:
            One output for each text of `data_2`, in their order.

        Raises:
            RequestError: see `embed`; or there are several texts on both sides, and
                not as many.
        """
        firsts, seconds = as_list(data_1), as_list(data_2)
        pairs = pairs_of(len(firsts), len(seconds))
        vectors = self.embed(
            [*firsts, *seconds], pooling_params, progress=progress, use_tqdm=use_tqdm
        )
        return [
            score(index, vectors[one], vectors[len(firsts) + other])
            for index, (one, other) in enumerate(pairs)
        ]
