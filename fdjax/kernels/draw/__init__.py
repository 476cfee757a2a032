"""One token for each row of logits: the most likely one, or a draw."""

from fdjax.kernels.draw import cuda, reference
from fdjax.kernels.draw.arguments import Draw
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float, Int32, UInt32

__all__ = ["OP", "Draw", "draw"]


def _order(call: Draw) -> tuple[str, ...]:
    """Greedy, XLA's argmax takes 1 us less."""
    return () if call.keys is None else ("cuda",)


OP = Op("draw", reference.draw, {"cuda": cuda.IMPL}, order=_order, batch_invariant=True)


def draw(
    logits: Float[Array, "B V"],
    keys: UInt32[Array, "B 2"] | None = None,
    steps: Int32[Array, " B"] | None = None,
    temperature: Float[Array, " B"] | None = None,
    top_k: Int32[Array, " B"] | None = None,
    top_p: Float[Array, " B"] | None = None,
    min_p: Float[Array, " B"] | None = None,
) -> Int32[Array, " B"]:
    """Chooses one token for each row.

    Without `keys`, `steps` and `temperature`, and in rows of temperature 0, it is the
    token with the highest logit. Otherwise it is a draw from
    `softmax(logits / temperature)` over the tokens that min-p, top-k and top-p keep:
    see `fdjax.kernels.draw.filters.kept`. Where tokens tie, the lowest id wins.

    A row's token depends on the row's own arguments alone. A logit of -inf is a token
    that cannot come; one at least must be finite. Rows with NaN or infinity get a token
    too, and which one means nothing.

    The arguments are the fields of `Draw`.

    Returns:
        A token a row.

    Raises:
        ValueError: there are no tokens; an argument does not match the logits, or lacks
            the others that it needs.
    """
    num_rows, vocab_size = logits.shape
    if vocab_size == 0:
        raise ValueError("draw: logits have 0 tokens; they must have 1 or more")
    randomness = {"keys": keys, "steps": steps, "temperature": temperature}
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for name, array in (randomness | filters).items():
        wanted = (num_rows, 2) if name == "keys" else (num_rows,)
        if array is not None and array.shape != wanted:
            raise ValueError(
                f"draw: {name} has shape {array.shape}, logits have {logits.shape}; "
                f"{name} must have {wanted}"
            )
    missing = [name for name, array in randomness.items() if array is None]
    filtered = any(array is not None for array in filters.values())
    if 0 < len(missing) < len(randomness) or (missing and filtered):
        raise ValueError(
            f"draw: a draw takes keys, steps and temperature, and {missing} is absent; "
            "give all three, or none and no filter"
        )
    return OP(Draw(logits, keys, steps, temperature, top_k, top_p, min_p))
