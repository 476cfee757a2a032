"""The arguments of `draw`."""

from fdjax.notation import Array, Float, Int32, UInt32
from fdjax.pytree import pytree


@pytree
class Draw:
    """One call of `draw`.

    Attributes:
        logits: of each row's next token.
        keys: data of a threefry key each; `None` where no row draws, as are then all
            that follow.
        steps: tokens that each row has emitted; its noise depends on nothing but its
            key and its step.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: as many of the likeliest tokens are kept, 0 keeps all; `None` where all
            rows keep all.
        top_p: the likeliest tokens that together reach this probability are kept, 1
            keeps all; `None` where all rows keep all.
        min_p: tokens at least this fraction as likely as the likeliest are kept, 0
            keeps all; `None` where all rows keep all.
    """

    logits: Float[Array, "B V"]
    keys: UInt32[Array, "B 2"] | None
    steps: Int32[Array, " B"] | None
    temperature: Float[Array, " B"] | None
    top_k: Int32[Array, " B"] | None
    top_p: Float[Array, " B"] | None
    min_p: Float[Array, " B"] | None
