"""Small tokenizers of the families that SmolLM2 is not of."""

from __future__ import annotations

import json

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from radixray.protocol import TokenizerFiles
from radixray.tokenizer.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "▁a", "ab", "▁▁", "é", "日"]
LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
GEMMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
)
PIECE_DECODERS = {
    "llama": LLAMA,
    "gemma": GEMMA,
    "metaspace": decoders.Metaspace(),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
}


def pieces(decoder: object) -> Backend:
    vocab = {token: n for n, token in enumerate(["<s>", "</s>", *BYTES, *WORDS])}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def byte_level(normalizer: object | None = None, *, add_prefix_space: bool = False) -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: n for n, char in enumerate(alphabet)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [
            AddedToken("<sep>", special=True),
            AddedToken("<sep>>", special=True),
            AddedToken("<eat>", special=True, rstrip=True),
            AddedToken("<left>", special=True, lstrip=True),
        ]
    )
    backend.add_tokens(["  "])
    return backend


def files(backend: Backend, **config: object) -> TokenizerFiles:
    return TokenizerFiles(
        tokenizer_json=backend.to_str().encode(), tokenizer_config=json.dumps(config).encode()
    )


def load(backend: Backend, **config: object) -> Tokenizer:
    return Tokenizer(files(backend, **config))
