"""A strict reader of Hugging Face's `config.json`: no field is guessed or skipped."""

import math
import re
import reprlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from fdjax.errors import ConfigError

# Sizes index arrays with int32; a larger one is a broken or hostile file.
MAX_SIZE = 2**31 - 1


class _Required(Enum):
    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED

# Fields that never change what one forward pass computes: bookkeeping, training,
# defaults of text generation, and tokens that only a tokenizer needs.
INERT = re.compile(
    r".*dropout(_prob)?|.*pdrop|layerdrop|initializer_range|init_std|init_method_std"
    r"|_?name_or_path|_commit_hash|_attn_implementation.*|_flash_attn_2_enabled"
    r"|transformers_version|transformers\.js_config|model_type|architectures|auto_map"
    r"|tokenizer_class|unsloth_.*|is_llama_config|torchscript|use_bfloat16"
    r"|gradient_checkpointing|max_sequence_length"
    r"|use_cache|cache_implementation|chunk_size_feed_forward|attn_implementation"
    # Partial products of one sum, to repeat the rounding of tensor-parallel training.
    r"|pretraining_tp|slow_but_exact"
    r"|output_attentions|output_hidden_states|output_scores|return_dict.*"
    r"|tie_last_hidden_states|keys_to_ignore_at_inference"
    r"|id2label|label2id|num_labels|problem_type|finetuning_task|summary_.*"
    r"|task_specific_params|prefix|(pad|unk|sep|cls|mask|decoder_start)_token_id"
    r"|max_length|min_length|do_sample|early_stopping|num_beams|num_beam_groups"
    r"|temperature|top_k|top_p|typical_p|epsilon_cutoff|eta_cutoff"
    r"|(encoder_)?repetition_penalty|length_penalty|diversity_penalty"
    r"|(encoder_)?no_repeat_ngram_size|bad_words_ids|num_return_sequences"
    r"|forced_(bos|eos)_token_id|(begin_)?suppress_tokens|remove_invalid_values"
    r"|exponential_decay_length_penalty"
)

_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


class HfConfig:
    """Fields of a parsed `config.json`, each read under a type.

    Every read is remembered; `finish` refuses what nobody read, since an unknown
    field may change the mathematics. Code of a repository is never run: `auto_map`
    (every ChatGLM repository has it) names such code and is ignored, because a family
    is looked up by its architecture alone, and a model whose architecture fdjax does
    not implement is refused before this reader exists.

    Args:
        config: the parsed file or, with `path`, an object inside it.
        path: where the object is, with a final dot, for messages.

    Raises:
        ConfigError: the weights are quantised.
    """

    def __init__(self, config: Mapping[str, Any], *, path: str = "") -> None:
        self._config = config
        self._path = path
        self._read: set[str] = set()
        for name in ("quantization_config", "compression_config"):
            if config.get(name) is not None:
                raise self.error(
                    name,
                    "describes quantised weights, which fdjax does not read; "
                    "use the checkpoint in float16, bfloat16 or float32",
                )

    def error(self, name: str, problem: str) -> ConfigError:
        """An error about field `name`: its path, its value and the problem."""
        value = ""
        if name in self._config:
            value = f" = {reprlib.repr(self._config[name])}"
        return ConfigError(f"config.json: {self._path}{name}{value}: {problem}")

    def take[T: (int, float, bool, str)](
        self,
        name: str,
        kind: type[T],
        default: T | _Required = REQUIRED,
        *,
        aliases: tuple[str, ...] = (),
        minimum: int = 1,
        maximum: int = MAX_SIZE,
    ) -> T:
        """Reads a field that must not be null.

        Args:
            name: the field.
            kind: its type; a float may be written as an integer, and floats must be
                positive and finite.
            default: what its absence means; without one, the field is required.
            aliases: other names of the same field.
            minimum: smallest integer allowed.
            maximum: largest integer allowed.

        Raises:
            ConfigError: missing, null, of another type, out of range, or an alias
                contradicts it.
        """
        name, value = self._find(name, aliases)
        if value is REQUIRED:
            if default is REQUIRED:
                raise self.error(name, f"is missing; expected {_KINDS[kind]}")
            return default
        return self._checked(name, value, kind, minimum, maximum)

    def take_optional[T: (int, float, bool, str)](
        self,
        name: str,
        kind: type[T],
        default: T | None = None,
        *,
        aliases: tuple[str, ...] = (),
        minimum: int = 1,
    ) -> T | None:
        """As `take`, for a field whose null means something; absent is `default`."""
        name, value = self._find(name, aliases)
        if value is REQUIRED:
            return default
        if value is None:
            return None
        return self._checked(name, value, kind, minimum, MAX_SIZE)

    def require(self, name: str, allowed: tuple[Any, ...], *, because: str) -> None:
        """Accepts a field only with a value that fdjax implements.

        Args:
            name: the field; absence passes, so it must mean one of `allowed`.
            allowed: the supported values.
            because: what another value would change, for the message.

        Raises:
            ConfigError: the field has another value.
        """
        name, value = self._find(name, ())
        if value is REQUIRED or any(_same(value, each) for each in allowed):
            return
        supported = " or ".join(_json(each) for each in allowed)
        raise self.error(name, f"only {supported} is supported, because {because}")

    def fraction(self, name: str) -> float | None:
        """Reads a part of a whole; `None` where it is absent or null."""
        _, value = self._find(name, ())
        if value is REQUIRED or value is None:
            return None
        if type(value) not in (int, float) or not 0 < value <= 1:
            raise self.error(name, "must be above 0 and at most 1")
        return float(value)

    def strings(self, name: str) -> tuple[str, ...] | None:
        """Reads a list of strings; `None` where it is absent or null."""
        _, value = self._find(name, ())
        if value is REQUIRED or value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise self.error(name, "expected a list of strings")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """Reads one token id or a list of them; `None` where it is absent or null."""
        _, value = self._find(name, ())
        if value is REQUIRED or value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if not all(type(x) is int and 0 <= x <= MAX_SIZE for x in values):
            raise self.error(name, "expected a token id or a list of token ids")
        return tuple(values)

    def child(self, name: str, *, aliases: tuple[str, ...] = ()) -> "HfConfig | None":
        """A reader of the object in field `name`; `None` if absent, null or empty."""
        name, value = self._find(name, aliases)
        if value is REQUIRED or value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "expected an object")
        return HfConfig(value, path=f"{self._path}{name}.")

    def mentions(self, name: str) -> bool:
        """Whether the field is present, be it null."""
        return name in self._config

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._config.get(name) is not None

    def finish(self) -> None:
        """Refuses the fields that nothing read.

        Inert fields and those that are null, false or empty pass.

        Raises:
            ConfigError: names every field left.
        """
        left = [
            name
            for name, value in self._config.items()
            if name not in self._read
            and not (value is None or value is False or value in ("", [], {}))
            and not INERT.fullmatch(name)
        ]
        if not left:
            return
        shown = ", ".join(
            f"{self._path}{name} = {reprlib.repr(self._config[name])}" for name in left
        )
        nulls = ", ".join(f"{_json(name)}: None" for name in left)
        raise ConfigError(
            f"config.json: fdjax does not know {shown}; such a field may change the "
            f"mathematics. If it does not, override it: "
            f"hf_overrides={_nested(self._path, nulls)}"
        )

    def _find(self, name: str, aliases: tuple[str, ...]) -> tuple[str, Any]:
        """The name the file uses and its value; `REQUIRED` as the value if absent."""
        names = (name, *aliases)
        self._read.update(names)
        present = [each for each in names if each in self._config]
        # An alias that is null says nothing beside one that is not.
        present.sort(key=lambda each: self._config[each] is None)
        if not present:
            return name, REQUIRED
        first, *others = present
        for other in others:
            value = self._config[other]
            if value is not None and not _same(value, self._config[first]):
                shown = reprlib.repr(self._config[first])
                raise self.error(other, f"contradicts {first} = {shown}")
        return first, self._config[first]

    def _checked[T: (int, float, bool, str)](
        self, name: str, value: object, kind: type[T], minimum: int, maximum: int
    ) -> T:
        if kind is float and type(value) is int and abs(value) <= MAX_SIZE:
            value = float(value)
        # A bool is an int to Python, but not to JSON.
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            found = "null" if value is None else type(value).__name__
            raise self.error(name, f"expected {_KINDS[kind]}, not {found}")
        if type(value) is int and not minimum <= value <= maximum:
            raise self.error(name, f"must be from {minimum} to {maximum}")
        if type(value) is float and not (value > 0 and math.isfinite(value)):
            raise self.error(name, "must be positive and finite")
        return value


def _same(value: object, other: object) -> bool:
    """Equality as JSON has it: true is not 1, but 1 is 1.0."""
    return (type(value) is bool) == (type(other) is bool) and value == other


def _json(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return f'"{value}"' if isinstance(value, str) else str(value)


def _nested(path: str, inner: str) -> str:
    """`inner` as the entries of the object at `path`, written as Python."""
    text = f"{{{inner}}}"
    for name in reversed(path.split(".")[:-1]):
        text = f'{{"{name}": {text}}}'
    return text
