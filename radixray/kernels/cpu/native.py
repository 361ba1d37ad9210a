"""Compiling and loading the native_*.c next to this file.

The system's C compiler makes the library on the machine that runs it, for the instructions that
machine has, and it is kept in ``radixray.config.home() / "kernels"``. The file's name is a hash of
everything it was made from, the instructions included, so a home folder can be shared by machines.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from radixray.config import home

SOURCES = sorted(Path(__file__).parent.glob("native*.[ch]"))

_FLAGS = (
    *("-std=gnu11", "-O3", "-shared", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-strict-aliasing"),  # words are floats here and pairs there
    # A product and a sum must not become one operation in one place and two in another: every
    # path to a number must round alike.
    "-ffp-contract=off",
)

_INSTRUCTIONS = {
    "avx512_bf16": "-mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16",
    "avx512": "-mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq",
    "avx2": "-mavx2 -mfma",
    "plain": "",
}
_COMPILE_SECONDS = 120
_DIGEST = hashlib.sha256().digest_size


class KernelsUnavailableError(Exception):
    """Kernels of a kind cannot be used here; says why."""


class Attention(ctypes.Structure):
    """The struct of the same name in native.h, field by field."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("q", "k", "v", "out", "k_cache", "v_cache", "out_slots", "slots"),
                *("runs", "members", "merges", "chunks", "partials", "scratch"),
            )
        ),
        *((name, ctypes.c_int64) for name in ("q_row", "k_row", "v_row", "num_slots", "tokens")),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("num_runs", "num_merges", "num_chunks"),
                *("heads", "kv_heads", "head_dim", "bf16", "threads"),
            )
        ),
    ]


class Weight(ctypes.Structure):
    """The struct of the same name in native.h, field by field."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    ]


class Layer(ctypes.Structure):
    """The struct of the same name in native_layers.c, field by field."""

    _fields_ = [
        *((name, Weight) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "mlp_norm")),
    ]


class Step(ctypes.Structure):
    """The struct of the same name in native_layers.c, field by field."""

    _fields_ = [
        ("attention", Attention),
        ("layers", ctypes.POINTER(Layer)),
        ("next", ctypes.POINTER(Weight)),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("x", "delta", "normed", "qkv", "attended", "gate_up", "gated"),
                *("last_x", "last_attended", "cos", "sin", "last_tokens", "counters"),
            )
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("num_layers", "last_rows", "hidden", "inner", "layer_bytes")
        ),
        ("eps", ctypes.c_float),
        ("seconds", ctypes.c_void_p),
    ]


COUNTER_BYTES = 64
"""Of the struct in native.h."""


def instructions() -> str:
    """The name in `_INSTRUCTIONS` of what this processor and operating system can run."""
    # torch asks the processor, and honours ATEN_CPU_CAPABILITY.
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        return "avx512_bf16" if "avx512_bf16" in _cpu_flags() else "avx512"
    return "avx2" if capability == "AVX2" else "plain"


def load(chosen: str | None = None) -> ctypes.CDLL:
    """The library, compiled if the cache has none.

    Args:
        chosen: a name in `_INSTRUCTIONS`; by default the best this machine has.

    Raises:
        KernelsUnavailableError: there is no compiler, or it fails, or the cache cannot be written.
    """
    chosen = chosen or instructions()
    command = _compiler()
    flags = [*_FLAGS, *_INSTRUCTIONS[chosen].split()]
    sources = [source.read_text(encoding="utf-8") for source in SOURCES]
    made_from = [*sources, _version(command), *command, *flags]
    key = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:20]
    path = home() / "kernels" / f"native-{chosen}-{key}.so"
    try:
        if not _intact(path):
            _compile([*command, *flags], path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelsUnavailableError(f"{type(error).__name__}: {error}") from error
    _declare(library)
    return library


def has_linear(library: ctypes.CDLL) -> bool:
    """Whether it multiplies by packed bfloat16 weights: with some instructions only."""
    return hasattr(library, "rr_linear")


def has_tiles() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX): oneDNN does that, we do not."""
    return "amx_bf16" in _cpu_flags()


def _compiler() -> list[str]:
    candidates = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    raise KernelsUnavailableError("no C compiler: neither $CC nor cc, gcc or clang is on the PATH")


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelsUnavailableError(f"{shlex.join(command)} does not run: {error}") from error
    return done.stdout


def _compile(command: list[str], path: Path) -> None:
    """Compile to a folder of our own, then rename: another process sees all of the file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as folder:
        built = Path(folder) / path.name
        done = subprocess.run(
            [*command, *(str(s) for s in SOURCES if s.suffix == ".c"), "-o", str(built), "-lm"],
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS,
        )
        if done.returncode != 0 or not built.is_file():
            complaint = (done.stderr or done.stdout).strip().splitlines()
            raise KernelsUnavailableError(
                f"{shlex.join(command)} failed: {complaint[0] if complaint else 'no message'}"
            )
        content = built.read_bytes()
        # Loaders ignore what follows the last segment.
        built.write_bytes(content + hashlib.sha256(content).digest())
        built.replace(path)


def _intact(path: Path) -> bool:
    """Whether the file is all there: mapping half a library can kill the process."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def _declare(library: ctypes.CDLL) -> None:
    pointer, int32, int64, real = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
    signatures = {
        "rr_split": ([], int32),
        "rr_tile_tokens": ([], int32),
        "rr_state_floats": ([int32], int32),
        "rr_scratch_floats": ([int32, int32], int64),
        "rr_attention": ([ctypes.POINTER(Attention)], None),
        "rr_rms_norm": ([pointer] * 4 + [int64, int64, real, int32, int32], None),
        "rr_rotate": ([pointer] * 3 + [int64, int64] + [int32] * 4, None),
        "rr_silu_and_multiply": ([pointer] * 2 + [int64, int64, int32, int32], None),
    }
    if has_linear(library):
        weight = ctypes.POINTER(Weight)
        signatures |= {
            "rr_linear_bytes": ([weight], int64),
            "rr_pack_linear": ([pointer, weight, int32], None),
            "rr_linear": ([pointer, int64, pointer, int64, weight, weight, int32], None),
            "rr_layers": ([ctypes.POINTER(Step)], None),
        }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
