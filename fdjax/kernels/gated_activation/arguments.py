"""The arguments of `gated_activation`."""

from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@pytree
class GatedActivation:
    """One call of `gated_activation`.

    Attributes:
        gate_up: gate and up by one linear map, `[T, 2 F]`, gate first.
        activation: a name of `fdjax.kernels.activations`.
    """

    gate_up: Float[Array, "T F2"]
    activation: str = static()
