"""Log-probabilities of a prompt's tokens, each given those before it."""

from fdjax.generate.params import MAX_LOGPROBS
from fdjax.generate.sampling import log_probabilities
from fdjax.kernels.paged import KVCache
from fdjax.layers import packed_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class PromptScores:
    """Of some neighbouring tokens of a prompt; `N = min(MAX_LOGPROBS, V)`.

    Attributes:
        logprobs: log-probability of each token.
        top_ids: the most likely tokens in its place, most likely first.
        top_logprobs: their log-probabilities.
    """

    logprobs: Float[Array, " S"]
    top_ids: Int32[Array, "S N"]
    top_logprobs: Float[Array, "S N"]


def score_tokens(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, " S"],
    targets: Int32[Array, " S"],
    lengths: Int32[Array, " 1"],
    page_table: Int32[Array, "1 W"],
    starts: Int32[Array, " 1"],
) -> tuple[PromptScores, KVCache]:
    """Scores what follows each of a prompt's next tokens.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        tokens: `lengths - starts` of the prompt; the rest is padding.
        targets: what follows each of them.
        lengths: tokens of the prompt in the KV array after this.
        page_table: its pages in order; ids `>= P` are absent.
        starts: tokens of it that the KV array holds already.

    Returns:
        The scores of `targets`, of no meaning for padding, and the KV array with the
        keys and values of `tokens`.
    """
    batch = packed_batch(tokens, lengths, page_table, starts, page_size=kv.page_size)
    hidden, kv, _ = model(kv, batch)
    chosen, ids, values = log_probabilities(model.logits(hidden), targets, MAX_LOGPROBS)
    assert chosen is not None
    return PromptScores(chosen, ids, values), kv
