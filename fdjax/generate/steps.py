"""One forward pass as a pure function: `prefill`, `extend`, `score` and `decode`.

For people who bring their own loop. Jit them with the KV array donated; the model is a
pytree and may be an argument. Sizes are static, values are not.
"""

from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch, packed_batch, prefill_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32


def prefill(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"] | None = None,
) -> tuple[Float[Array, "B V"], KVCache]:
    """Runs prompts, or parts of them; returns the logits of each row's last token.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        tokens: prompts, padded on the right to one length.
        lengths: tokens of each row in the KV array after this, those before `starts`
            included; 0 marks an empty row.
        page_table: pages of each row in order; ids `>= P` are absent.
        starts: tokens of each row that the KV array holds already; `None`: none.

    Returns:
        Logits in float32, and the KV array with the prompts' keys and values.
    """
    batch = prefill_batch(tokens, lengths, page_table, starts, page_size=kv.page_size)
    return _logits_of(model, kv, batch)


def extend(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, " T"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"],
) -> tuple[Float[Array, "B V"], KVCache]:
    """`prefill` of prompts, or parts of them, that follow one another without padding.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        tokens: `lengths[r] - starts[r]` of row 0, then those of row 1, and so on; the
            rest is padding.
        lengths: tokens of each row in the KV array after this.
        page_table: pages of each row in order; ids `>= P` are absent.
        starts: tokens of each row that the KV array holds already.

    Returns:
        Logits of each row's last token in float32 (of some other's for a row without
        tokens), and the KV array with their keys and values.
    """
    batch = packed_batch(tokens, lengths, page_table, starts, page_size=kv.page_size)
    return _logits_of(model, kv, batch)


def _logits_of(
    model: Decoder,
    kv: KVCache,
    batch: Batch,
) -> tuple[Float[Array, "B V"], KVCache]:
    """Logits of each row's last token; of the others only keys and values."""
    hidden, kv, _ = model.last_hidden(kv, batch)
    return model.logits(hidden), kv


def score(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
) -> tuple[Float[Array, "B S V"], KVCache]:
    """Like `prefill`, but returns the logits of every token of every prompt."""
    rows, width = tokens.shape
    batch = prefill_batch(tokens, lengths, page_table, page_size=kv.page_size)
    hidden, kv, _ = model(kv, batch)
    return model.logits(hidden).reshape(rows, width, -1), kv


def decode(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, " B"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
) -> tuple[Float[Array, "B V"], KVCache]:
    """Runs one token a row.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        tokens: the new token of each row.
        lengths: tokens each row already has in `kv`, before this one.
        page_table: pages of each row in order; ids `>= P` are absent.

    Returns:
        Logits in float32, and the KV array with the tokens' keys and values.
    """
    logits, kv, _ = model.decode(kv, tokens, lengths, page_table)
    return logits, kv
