"""The gate over the batch-invariant product of a CPU."""

from fdjax.kernels.gated_matmul import reference
from fdjax.kernels.matmul import Product, cpu
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(call: Product) -> Float[Array, "M F"]:
    """See `fdjax.kernels.gated_matmul.gated_matmul`."""
    return reference.gated(call, cpu.run)


IMPL = Impl(run, cpu.refuse, batch_invariant=True, on_demand=True)
