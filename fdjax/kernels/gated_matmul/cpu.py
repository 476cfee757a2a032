"""The gate over the batch-invariant `matmul` of a CPU."""

from fdjax.kernels.gated_matmul import reference
from fdjax.kernels.matmul import Matmul, cpu
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(call: Matmul) -> Float[Array, "M F"]:
    """See `fdjax.kernels.gated_matmul.gated_matmul`."""
    return reference.gated(call, cpu.run)


IMPL = Impl(run, cpu.refuse, batch_invariant=True, on_demand=True)
