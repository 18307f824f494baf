"""Models that the trainer would compute wrongly, or not at all, are refused when they are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM, MistralConfig, MixtralConfig

from milepost_trainer import model, pack
from milepost_trainer.errors import TrainerError
from milepost_trainer.trainer import Trainer


def changed(out: Path, model_dir: str, **fields) -> str:
    shutil.copytree(model_dir, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | fields))
    return str(out)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, "rope_type dynamic"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
                                 "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 32.0}},
            "rope_type longrope",
        ),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
    ],
)  # fmt: skip
def test_what_packing_would_change_is_refused(tmp_path, model_dir, fields, says):
    with pytest.raises(TrainerError, match=says) as e:
        model.load(changed(tmp_path / "m", model_dir, **fields))
    assert e.value.kind == "invalid"


def test_yarn_is_read(tmp_path, model_dir):
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    assert model.load(changed(tmp_path / "m", model_dir, rope_parameters=rope)).model.config.rope_parameters["factor"] == 2.0


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "vocab_size": 340, "tie_word_embeddings": False}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda o: Gemma2ForCausalLM._from_config(Gemma2Config(**SMALL, final_logit_softcapping=None), **o), "softcap"),
        (lambda o: GptOssForCausalLM._from_config(GptOssConfig(**SMALL, num_local_experts=2), **o), "s_aux"),
    ],
)  # fmt: skip
def test_attention_that_is_not_computed_is_refused(make, says):
    net = make({"dtype": torch.float32, "attn_implementation": pack.ATTENTION}).eval()
    with pytest.raises(TrainerError, match=says) as e:
        model.check_paths_agree("m", net)
    assert e.value.kind == "invalid"


def test_context_ends_with_the_window():
    mistral = MistralConfig(max_position_embeddings=512, sliding_window=16)
    assert model.max_context(mistral) == 16
    mistral.sliding_window = None
    assert model.max_context(mistral) == 512
    assert model.max_context(MixtralConfig(max_position_embeddings=64, sliding_window=100)) == 64


def test_a_sequence_beyond_the_window_is_named(tmp_path, tiny):
    tiny.net.config.sliding_window, tiny.net.config.layer_types = 16, ["sliding_attention", "full_attention"]
    assert tiny.info()["max_context"] == 16
    with pytest.raises(TrainerError, match="sequence 0 has 17 tokens; allowed: 1 to 16") as e:
        tiny.score([[1] * 17], 1.0, False)
    assert e.value.kind == "invalid"


def test_nothing_is_drawn_in_a_pass(tmp_path, model_dir):
    """As attention_dropout would, which no module holds."""
    t = Trainer()
    t.init(changed(tmp_path / "m", model_dir, attention_dropout=0.5), "", "float32", 5)
    first, second = (t.score([[1, 2, 3, 4, 5]], 1.0, False)[0] for _ in range(2))
    assert torch.equal(first, second)
