"""`LoadedApart`: what the front knows of a model that is loaded in another process."""

import pathlib
from dataclasses import dataclass

from fdjax.serve.apart.client import EngineProcess
from fdjax.serve.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedApart:
    """A model that is ready, for a server; see `Loaded`.

    Attributes:
        engine: that has it.
        tokenizer: `None` where the model's folder has none.
        folder: of the model's files.
        vocab_size: tokens of the model.
        max_model_len: longest sequence, in tokens.
    """

    engine: EngineProcess
    tokenizer: Tokenizer | None
    folder: pathlib.Path
    vocab_size: int
    max_model_len: int
