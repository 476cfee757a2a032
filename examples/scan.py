"""A loop of your own in `jit` and `scan`, with a sampler of your own."""

import jax
import jax.numpy as jnp

from fdjax.generate import steps
from fdjax.kernels.paged import KVCache
from fdjax.models import load
from fdjax.models.decoder import Decoder
from fdjax.models.source import SHIPPED, resolve
from fdjax.serve.tokenizer import load_tokenizer

type Carry = tuple[KVCache, jax.Array, jax.Array]

NUM_TOKENS = 24


def drawn(logits: jax.Array, key: jax.Array) -> jax.Array:
    """A sampler: the likeliest token, with noise that keeps to the likely ones."""
    noise = jax.random.gumbel(key, logits.shape)
    return jnp.argmax(logits / 0.6 + noise, axis=-1).astype(jnp.int32)


@jax.jit
def told(
    model: Decoder, kv: KVCache, prompt: jax.Array, pages: jax.Array, key: jax.Array
) -> jax.Array:
    """The tokens after a prompt: prefill and all steps as one program."""
    lengths = jnp.array([prompt.size], jnp.int32)
    logits, kv = steps.prefill(model, kv, prompt[None], lengths, pages)

    def step(carry: Carry, key: jax.Array) -> tuple[Carry, jax.Array]:
        kv, logits, lengths = carry
        tokens = drawn(logits, key)
        logits, kv = steps.decode(model, kv, tokens, lengths, pages)
        return (kv, logits, lengths + 1), tokens[0]

    keys = jax.random.split(key, NUM_TOKENS)
    return jax.lax.scan(step, (kv, logits, lengths), keys)[1]


def main() -> None:
    """Tells two tales from one prompt."""
    folder = resolve(SHIPPED)
    model, tokenizer = load(folder, dtype=jnp.float32), load_tokenizer(folder)
    assert tokenizer is not None
    layout = model.config.kv_layout(num_pages=4, page_size=16, dtype=jnp.float32)
    prompt = jnp.array(tokenizer.encode("Once upon a time"), jnp.int32)
    pages = jnp.arange(layout.num_pages, dtype=jnp.int32)[None]
    for seed in range(2):
        tokens = told(model, layout.allocate(), prompt, pages, jax.random.key(seed))
        print(tokenizer.decode(tokens.tolist()))


if __name__ == "__main__":
    main()
