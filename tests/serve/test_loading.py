"""What is loaded is what the settings say, and nothing else has been allocated."""

import dataclasses
import pathlib

import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from fdjax import ConfigError
from fdjax.engine.limits import QueueLimits
from fdjax.models import SHIPPED
from fdjax.serve.loading import load_decoder, load_model
from fdjax.serve.setup import Settings
from tests.support.engines import GREEDY, run
from tests.support.parameters import arrays_of

LLAMA = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")


def test_a_model_is_loaded_as_its_settings_say():
    settings = Settings.of(SHIPPED, max_model_len=64, max_num_seqs=1)
    limits = QueueLimits(7, None, 4096)
    loaded = load_model(settings, limits=limits)
    assert loaded.settings is settings
    assert loaded.engine.config is settings.config
    assert loaded.engine.plan == settings.memory_plan()
    assert loaded.engine.limits is limits
    assert loaded.tokenizer is not None
    prompt = loaded.tokenizer.encode("Once upon a time")
    (tokens,) = run(loaded.engine, [prompt])
    assert len(tokens) == GREEDY.max_tokens


@pytest.mark.parametrize(("asked", "steps"), [(None, 8), (3, 3)])
@pytest.mark.cpu
def test_a_call_has_as_many_steps_as_the_settings_say(asked: int | None, steps: int):
    settings = Settings.of(SHIPPED, max_model_len=64, max_num_seqs=1)
    loaded = load_model(dataclasses.replace(settings, steps_per_launch=asked))
    assert loaded.engine.executor.programs.steps_per_launch == steps


def test_weights_alone_are_those_of_the_files_or_made_up():
    settings = Settings.of(SHIPPED, dtype="bfloat16")
    stored, made_up = (
        arrays_of(load_decoder(settings, random_weights=wanted, seed=1))
        for wanted in (False, True)
    )
    assert stored.keys() == made_up.keys()
    assert {array.dtype for array in stored.values()} == {settings.dtype}
    assert not (stored["embed.weight"] == made_up["embed.weight"]).all()


def test_batch_invariance_is_refused_where_an_operation_has_none():
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=H200)):
        settings = Settings.of(LLAMA, batch_invariant=True)
        with pytest.raises(
            ConfigError,
            match=r"batch_invariant is on, but \w+ has no .* leave it out, or run on",
        ):
            load_model(settings, random_weights=True)
