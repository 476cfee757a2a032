"""The shapes of published models that the repository carries."""

import pytest

from fdjax.models.config import ModelConfig
from tests.support.hf_configs import CONFIGS, published
from tests.support.model_sizes import num_parameters

# The exact number in the published safetensors, or what a paper or model card says.
TOTALS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-72b": 72_287_920_128,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b-v0.1": 7_241_732_096,
    "opt-6.7b": 6.66e9,
    "opt-30b": 29.97e9,
    "chatglm2-6b": 6_243_584_000,
    "glm-4-9b-0414": 9.4e9,
    "gpt-j-6b": 6_050_882_784,
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "gemma2-9b": 9_241_705_984,
}


def test_every_file_is_checked():
    assert {path.stem for path in CONFIGS.iterdir()} == TOTALS.keys()


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_add_up_to_the_published_total(name: str):
    model = ModelConfig.from_hf(published(name))
    total = TOTALS[name]
    rounding = 0.015 if isinstance(total, float) else 0.0
    assert num_parameters(model) == pytest.approx(total, rel=rounding, abs=0)


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in TOTALS if name != "chatglm2-6b"])
def test_parameters_add_up_to_those_of_the_hugging_face_model(name: str):
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = published(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert num_parameters(ModelConfig.from_hf(published(name))) == expected
