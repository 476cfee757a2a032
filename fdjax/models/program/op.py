"""`layer_program`: what a program does before its head, as one operation.

Its reference is what tests compare with: where no implementation serves, `Decoder` runs
its layers, each operation of theirs by what serves that.
"""

from fdjax.kernels.layer_program import config
from fdjax.kernels.op import Op
from fdjax.models.program import cuda
from fdjax.models.program.arguments import LayerProgram
from fdjax.models.program.run import run_body


def _source(call: LayerProgram) -> str:
    """What chose the kernels of the GEMMs and their launch configs."""
    return config.source(call.num_tokens, call.linear_shapes, dtype=call.dtype)


OP = Op(
    "layer_program",
    run_body,
    {"cuda": cuda.IMPL},
    source=_source,
    batch_invariant=True,  # as the operations are that it consists of
    otherwise="layer by layer, by the modules",
)
