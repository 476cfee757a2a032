"""A step of a model as a short list of instructions over a few buffers."""

from fdjax.models.program.build import program_of
from fdjax.models.program.instructions import Program
from fdjax.models.program.run import run_program

__all__ = ["Program", "program_of", "run_program"]
