"""`Resident`: a model on the device, and what is done with it beside requests."""

import contextlib
from collections.abc import Sequence

from fdjax.engine.sleeping import RESOURCES, Resource
from fdjax.errors import ConfigError, RequestError
from fdjax.generate.checks import shown
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.serve.loading import Loaded
from fdjax.serve.offline import Offline
from fdjax.serve.progress import compiling
from fdjax.serve.tokenizer import Tokenizer


class Resident:
    """What of `LLM` is about its model, and no request.

    Args:
        loaded: the model.
        sampling: of requests that bring no parameters.

    Attributes:
        loaded: see above; the others are parts of it.
        folder: of the model's files.
        config: of the model.
        tokenizer: `None` where the model has none.
        grammars: of structured outputs.
        engine: stepped by nothing else.
    """

    def __init__(self, loaded: Loaded, sampling: SamplingParams) -> None:
        self.loaded = loaded
        self.folder = loaded.settings.folder
        self.config = loaded.settings.config
        self.tokenizer = loaded.tokenizer
        self.grammars = loaded.grammars
        self.engine = loaded.engine
        self._sampling = sampling
        self._offline = Offline(self.engine, self.grammars)

    def warm_up(
        self,
        sampling_params: Sequence[SamplingParams | PoolingParams] | None = None,
        *,
        progress: bool = False,
    ) -> int:
        """Compiles every program that such requests can need, ahead of them.

        Args:
            sampling_params: what requests will ask for, together in any combination;
                anything by default.
            progress: says on stderr how many programs there are, and how many seconds
                they took; with a bar, if that is a terminal.

        Returns:
            The number of programs.
        """
        with compiling() if progress else contextlib.nullcontext() as report:
            return self.engine.warm_up(sampling_params, on_progress=report)

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests are sampled by that bring no parameters."""
        return self._sampling

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        if self.tokenizer is None:
            raise RequestError("the model has no tokenizer; give token ids")
        return self.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets the keys and values of earlier prompts.

        Returns:
            Whether it did: not while requests are under way.
        """
        if self.engine.has_work:
            return False
        self.engine.scheduler.pool.forget()
        return True

    def sleep(self, level: int = 1) -> None:
        """Gives the device's memory back to others, until `wake_up`.

        The KV array, the prefixes in it and the weights go; programs stay compiled.

        Args:
            level: 1 keeps a copy of the weights in the host's memory; 2 keeps none, and
                waking reads the model's files again.

        Raises:
            ConfigError: requests are under way, or there is no such level.
        """
        self.engine.sleep(level)

    def wake_up(self, tags: Sequence[Resource] | None = None) -> None:
        """Takes the memory again, and serves as before; no harm if it did not sleep.

        Args:
            tags: "weights", "kv_cache", or both, which is the default. Weights that
                change before the KV array is there are given to
                `engine.update_weights`.

        Raises:
            ConfigError: there is no such tag.
            CheckpointError: the files do not hold the weights any more.
        """
        wanted = RESOURCES if tags is None else tags
        for tag in wanted:
            if tag not in RESOURCES:
                raise ConfigError(
                    f"tags has {shown(tag)}; use {' and '.join(map(repr, RESOURCES))}"
                )
        sleeping = self.engine.sleeping
        if "weights" in wanted and "weights" in sleeping.missing:
            model = self.loaded.reload() if sleeping.needs_weights else None
            sleeping.take_weights(model)
        if "kv_cache" in wanted:
            sleeping.take_kv()

    @property
    def is_sleeping(self) -> bool:
        """Some of what was given back is not there again; requests are refused."""
        return bool(self.engine.sleeping.missing)

    def softmax_statistics(self) -> SoftmaxStatistics:
        """How many query heads decoding has computed again, by layer, since the start.

        Those whose largest score left the bounds of the unified maximum,
        `config.unified`; zeros with the synchronised softmax. The counts stay on the
        device until this is called; it waits for the steps that are under way.
        """
        return self.engine.softmax_statistics()
