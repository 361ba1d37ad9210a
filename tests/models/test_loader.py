"""Loading: small random Llamas against transformers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_driver import Driver
from safetensors.torch import load_file, save_file

from radixray.errors import ModelNotFoundError, UnsupportedModelError
from radixray.models.loader import load_model
from radixray.models.rope import inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def save_tiny(folder: Path, **settings: Any) -> Any:
    """A random Llama of 8 query and 2 KV heads, head_dim 32, in several files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    defaults = {
        "vocab_size": 200,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "eos_token_id": [7, 9],
    }
    model = LlamaForCausalLM(LlamaConfig(**(defaults | settings))).eval()
    model.save_pretrained(folder, max_shard_size="200KB")
    return model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 8}, {"rope_parameters": LLAMA3}],
    ids=["untied", "tied", "one KV head a query head", "llama3 rope"],
)
def test_equals_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    reference = save_tiny(tmp_path, **settings)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = torch.randint(200, (150,)).tolist()
    with torch.inference_mode():
        want = reference(torch.tensor([tokens])).logits[0]
    driver = Driver(load_model(tmp_path, torch.float32), num_slots=300)
    for chunk in (150, 40):
        assert (driver.logits(tokens, chunk) - want).abs().max() < 1e-3
    assert driver.model.config.eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 80, "hidden_size": 90},
        {"intermediate_size": 2600, "hidden_size": 56, "num_hidden_layers": 2},
        {"num_key_value_heads": 8, "num_hidden_layers": 1},
        {
            "hidden_size": 33,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
        },  # odd: layers go call by call
    ],
)
def test_bfloat16(tmp_path: Path, settings: dict[str, Any]) -> None:
    """As near to float32 as transformers; the same bits with one call for all layers, where had."""
    reference = save_tiny(tmp_path, **settings)
    tokens = torch.randint(200, (150,)).tolist()
    with torch.inference_mode():
        want = reference(torch.tensor([tokens])).logits[0]
        theirs = reference.bfloat16()(torch.tensor([tokens])).logits[0].float()
    driver = Driver(load_model(tmp_path, torch.bfloat16), num_slots=300)
    got = driver.logits(tokens, 60)
    assert (got - want).norm() < 1.2 * (theirs - want).norm()
    driver.model.kernels = replace(driver.model.kernels, library=None)
    assert torch.equal(driver.logits(tokens, 60), got)


def test_llama3_frequencies(tmp_path: Path) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    reference = LlamaRotaryEmbedding(save_tiny(tmp_path, rope_parameters=LLAMA3).config)
    config = load_model(tmp_path, torch.float32).config
    ours = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    assert torch.allclose(ours, reference.inv_freq, rtol=1e-6)


def test_rope_settings_of_older_folders(tiny: Path, tmp_path: Path) -> None:
    change = {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": dict(LLAMA3)}
    del change["rope_scaling"]["rope_theta"]
    config = load_model(copy_with(tiny, tmp_path, **change), torch.float32).config
    assert config.rope_theta == 5e5
    assert config.rope_scaling is not None
    assert config.rope_scaling.factor == 8.0


def copy_with(tiny: Path, folder: Path, **changes: Any) -> Path:
    """The tiny model with settings of its config.json changed."""
    for path in tiny.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    raw = json.loads((tiny / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
    return folder


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["GPTNeoXForCausalLM"]}, "GPTNeoX.*supported: Llama"),
    "no architecture": ({"architectures": None}, "architecture none"),
    "attention bias": ({"attention_bias": True}, "attention_bias=True"),
    "mlp bias": ({"mlp_bias": True}, "mlp_bias=True"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act='gelu'.*'silu'"),
    "quantization": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    "rope": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'.*'llama3'"),
    "no rope number": ({"rope_parameters": {"rope_type": "llama3"}}, "lacks 'factor'"),
    "no number": ({"vocab_size": None}, "vocab_size"),
    "number of a wrong type": ({"vocab_size": [1]}, "wrong type"),
    "heads": ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
    "shape": ({"intermediate_size": 161}, r"of another shape: .*gate_proj.weight \(160, 96\)"),
    "more layers": ({"num_hidden_layers": 4}, "missing: model.layers.3.input_layernorm.weight"),
    "fewer layers": ({"num_hidden_layers": 2}, "unexpected: model.layers.2.*and 1 more"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tiny: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(copy_with(tiny, tmp_path, **changes), torch.float32)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        load_model(tmp_path, torch.float32)


def damage_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def damage_weights(folder: Path) -> None:
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])


def remove_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def remove_shard(folder: Path) -> None:
    min(folder.glob("*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_json, "not valid JSON"),
        (damage_weights, "cannot read"),
        (remove_weights, "no safetensors"),
        (remove_shard, "cannot read"),
    ],
)
def test_damaged(tiny: Path, tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy_with(tiny, tmp_path))
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(tmp_path, torch.float32)


def test_half_precision_file_and_derived_table(tiny: Path, tmp_path: Path) -> None:
    """Weights of another dtype are converted, and old exports' rotary table is not read."""
    copy_with(tiny, tmp_path)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        tensors |= load_file(path)
    remove_weights(tmp_path)
    tensors = {name: tensor.half() for name, tensor in tensors.items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(tensors, tmp_path / "model.safetensors")
    got = Driver(load_model(tmp_path, torch.float32), 50).logits(list(range(20)))
    want = Driver(load_model(tiny, torch.float32), 50).logits(list(range(20)))
    assert (got - want).abs().max() < 0.05
