"""Finding a model by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from radixray.errors import ModelNotFoundError
from radixray.models.resolve import resolve_model


def make_folder(folder: Path, *missing: str) -> Path:
    folder.mkdir()
    for name in {"config.json", "tokenizer.json", "model.safetensors"} - set(missing):
        (folder / name).touch()
    return folder


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "mine")
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("mine") == folder


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_local_folder_without_a_file(tmp_path: Path, missing: str) -> None:
    folder = make_folder(tmp_path / "mine", missing)
    with pytest.raises(ModelNotFoundError) as error:
        resolve_model(str(folder))
    assert missing.replace("model.", "*.") in error.value.message
    assert str(folder) in error.value.message
    assert error.value.param == "model"


@pytest.mark.parametrize("name", ["nobody/nothing", "smollm3", "/no/such/folder", "a b"])
def test_unknown_name_says_where_it_looked(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        resolve_model(name)
    message = error.value.message
    assert repr(name) in message
    assert "smollm2-135m" in message
    assert str(Path(name).absolute()) in message
    assert "Hub" in message
    if name == "nobody/nothing":
        assert "HF_HUB_OFFLINE is set" in message


def test_the_module_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, radixray.models.resolve;"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'gguf'} & set(sys.modules)))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.strip() == "[]"
