"""Models: what a checkpoint describes, and its weights on the device."""

from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.random_init import random_weights
from fdjax.models.source import SHIPPED, resolve
from fdjax.models.weights import load, parameter_bytes, parameter_shapes

__all__ = [
    "SHIPPED",
    "Decoder",
    "ModelConfig",
    "load",
    "parameter_bytes",
    "parameter_shapes",
    "random_weights",
    "resolve",
]
