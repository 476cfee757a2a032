"""A step of a model as a short list of instructions over a few buffers."""

from fdjax.models.program.arguments import LayerProgram, Ran
from fdjax.models.program.build import program_of
from fdjax.models.program.instructions import Program
from fdjax.models.program.kept import kept_free
from fdjax.models.program.op import OP
from fdjax.models.program.run import run_program

__all__ = [
    "OP",
    "LayerProgram",
    "Program",
    "Ran",
    "kept_free",
    "program_of",
    "run_program",
]
