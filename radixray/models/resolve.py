"""From a model's name to the folder that holds it."""

from __future__ import annotations

from pathlib import Path

from radixray.errors import ModelNotFoundError
from radixray.models.embedded import EMBEDDED, embedded_model

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def resolve_model(name: str) -> Path:
    """Find a model, converting or downloading it when needed.

    Looked up in this order: an embedded name, a local folder, a Hugging Face Hub id (from the
    local Hub cache alone when HF_HUB_OFFLINE is set).

    Args:
        name: e.g. ``smollm2-135m``, ``/models/mine``, ``HuggingFaceTB/SmolLM2-360M-Instruct``.

    Returns:
        A folder with config.json, tokenizer.json and safetensors.

    Raises:
        ModelNotFoundError: no such model, or files are missing; says where it looked.
    """
    if name in EMBEDDED:
        return embedded_model(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder, name)
    return _checked(_from_hub(name), name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    offline = constants.HF_HUB_OFFLINE
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except HFValidationError:
        hub = "it is not a valid Hub id"
    # The Hub client raises its own, requests' and httpx' errors: each means we have no folder.
    except Exception as error:
        where = "the local cache (HF_HUB_OFFLINE is set)" if offline else "huggingface.co"
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        hub = f"the Hub, looking in {where}, gave {type(error).__name__}: {first_line}"
    raise ModelNotFoundError(
        f"no model {name!r}: not an embedded model ({', '.join(sorted(EMBEDDED))}), no folder "
        f"{Path(name).expanduser().absolute()}, and {hub}. Give an embedded name, a folder in "
        "Hugging Face format (config.json, tokenizer.json, *.safetensors), or a Hub id.",
        param="model",
    )


def _checked(folder: Path, name: str) -> Path:
    missing = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelNotFoundError(
            f"the folder of model {name!r}, {folder}, lacks {', '.join(missing)}", param="model"
        )
    return folder.absolute()
