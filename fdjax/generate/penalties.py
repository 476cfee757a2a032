"""Penalties for tokens a row has seen, and biases of chosen tokens."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.params import SamplingParams
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree


@pytree
class Penalties:
    """Penalties by row; how often tokens were emitted is counted elsewhere.

    Attributes:
        repetition: see `SamplingParams.repetition_penalty`.
        presence: see `SamplingParams.presence_penalty`.
        frequency: see `SamplingParams.frequency_penalty`.
        in_prompt: the token occurs in the prompt.
    """

    repetition: Float[Array, " B"]
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]
    in_prompt: Bool[Array, "B V"]


@pytree
class LogitBias:
    """What is added to logits, by row.

    Attributes:
        ids: biased tokens, padded with `V`.
        values: added to their logits.
    """

    ids: Int32[Array, "B num_biased"]
    values: Float[Array, "B num_biased"]


def init_penalties(
    params: Sequence[SamplingParams],
    prompts: Sequence[Sequence[int]],
    *,
    vocab_size: int,
) -> Penalties:
    """Penalties of a batch: one `params` and one prompt a row."""
    in_prompt = np.zeros((len(params), vocab_size), np.bool_)
    for row, prompt in enumerate(prompts):
        in_prompt[row, np.asarray(prompt, np.int32)] = True
    return Penalties(
        *jax.device_put(
            (
                np.array([p.repetition_penalty for p in params], np.float32),
                np.array([p.presence_penalty for p in params], np.float32),
                np.array([p.frequency_penalty for p in params], np.float32),
                in_prompt,
            )
        )
    )


def penalise(
    logits: Float[Array, "B V"],
    penalties: Penalties,
    output_counts: Int32[Array, "B V"],
) -> Float[Array, "B V"]:
    """Logits after the repetition, the frequency and the presence penalty, in order.

    The repetition penalty (Keskar et al. 2019, "CTRL", section 4.1) is for tokens of
    the prompt and the output; the two others are for tokens of the output.

    Args:
        logits: of the next token.
        penalties: the rows' penalties.
        output_counts: how often each row has emitted each token.
    """
    emitted = output_counts > 0
    factor = penalties.repetition[:, None]
    repeated = jnp.where(logits > 0, logits / factor, logits * factor)
    logits = jnp.where(penalties.in_prompt | emitted, repeated, logits)
    counts = output_counts.astype(jnp.float32)
    logits = logits - penalties.frequency[:, None] * counts
    return logits - penalties.presence[:, None] * emitted.astype(jnp.float32)


def init_counts(
    outputs: Sequence[Sequence[int]], *, vocab_size: int
) -> Int32[Array, "B V"]:
    """How often each token occurs in each row's output."""
    counts = np.zeros((len(outputs), vocab_size), np.int32)
    for row, output in enumerate(outputs):
        np.add.at(counts[row], np.asarray(output, np.int32), 1)
    return jax.device_put(counts)


def count_tokens(
    output_counts: Int32[Array, "B V"],
    tokens: Int32[Array, " B"],
    emitted: Bool[Array, " B"],
) -> Int32[Array, "B V"]:
    """The counts after the rows where `emitted` have emitted their token."""
    rows = jnp.arange(tokens.shape[0])
    return output_counts.at[rows, tokens].add(emitted.astype(jnp.int32))


def init_bias(
    params: Sequence[SamplingParams], *, num_biased: int, vocab_size: int
) -> LogitBias:
    """Biases of a batch: one `params` a row with room for `num_biased` each."""
    ids = np.full((len(params), num_biased), vocab_size, np.int32)
    values = np.zeros((len(params), num_biased), np.float32)
    for row, bias in enumerate(p.logit_bias or {} for p in params):
        ids[row, : len(bias)] = list(bias.keys())
        values[row, : len(bias)] = list(bias.values())
    return LogitBias(*jax.device_put((ids, values)))


def add_bias(logits: Float[Array, "B V"], bias: LogitBias) -> Float[Array, "B V"]:
    """Logits plus the biases of each row."""
    rows = jnp.arange(logits.shape[0])[:, None]
    return logits.at[rows, bias.ids].add(bias.values, mode="drop")
