"""The layer table of the architecture, enforced on every import of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "radixray"

LAYER = {
    "errors": 0,
    "config": 0,
    "protocol": 0,
    "answers": 0,
    "sampling": 0,
    "checks": 0,
    "reports": 0,
    "explanation": 0,
    "namespaces": 0,
    "images": 0,
    "constraint": 0,
    "json_schemas": 0,
    "metrics": 0,
    "cache": 1,
    "scheduler": 1,
    "fsm": 1,
    "kernels": 1,
    "tokenizer": 1,
    "models": 2,
    "engine": 3,
    "actors": 4,
    "transports": 4,
    "serve": 5,
    "client": 5,
    "terminal": 6,
    "cli": 6,
    "testing": 6,
}
ROOMS_OF_LAYER_1 = {room for room, layer in LAYER.items() if layer == 1}
"""These know nothing of each other, except that the scheduler reads the cache's public view."""
MAY_READ = {("scheduler", "cache")}

NO_TORCH = {
    "errors",
    "config",
    "protocol",
    "answers",
    "sampling",
    "reports",
    "explanation",
    "namespaces",
    "images",
    "constraint",
    "json_schemas",
    "metrics",
    "checks",
    "cache",
    "scheduler",
    "fsm",
    "tokenizer",
    "client",
    "serve",
    "terminal",
    "cli",
    "testing",
}
NO_RAY = {
    "errors",
    "config",
    "protocol",
    "answers",
    "sampling",
    "reports",
    "explanation",
    "namespaces",
    "images",
    "constraint",
    "json_schemas",
    "metrics",
    "checks",
    "cache",
    "scheduler",
    "fsm",
    "kernels",
    "tokenizer",
    "models",
    "engine",
    "transports",
    "testing",
}


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of(path: Path) -> set[str]:
    """Names of all modules a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names if module == "radixray" else {module}
    return found


def toplevel_imports_of(path: Path) -> set[str]:
    """Modules that loading a file loads, as far as the file itself says."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    assert room in LAYER, f"{path} is in no layer"
    for module in imports_of(path):
        if not module.startswith("radixray."):
            top = module.split(".")[0]
            if room in NO_TORCH:
                assert top not in ("torch", "transformers"), f"{path} imports {module}"
            if room in NO_RAY:
                assert top != "ray", f"{path} imports {module}"
            continue
        other = module.split(".")[1]
        assert LAYER[other] <= LAYER[room], f"{path} imports {module}, a layer above"
        if other != room and {other, room} <= ROOMS_OF_LAYER_1:
            assert (room, other) in MAY_READ, f"{path} imports {module}, beside it"
        if room in ("client", "serve"):
            assert other not in ("engine", "models", "kernels", "cache", "fsm"), (
                f"{path} imports {module}: clients know only protocol and transports"
            )


def test_no_import_circles() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = "radixray." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        graph[name.removesuffix(".__init__")] = toplevel_imports_of(path)
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above, module])
        if module in done or module not in graph:
            return
        for other in graph[module]:
            visit(other, (*above, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_import_radixray_is_light() -> None:
    """Neither torch nor ray nor transformers is loaded, not even by the client language."""
    code = (
        "import sys, radixray as rr; rr.function, rr.gen, rr.State, rr.Forks, rr.RadixRayError;"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_resolves() -> None:
    import radixray as rr

    for name in rr.__all__:
        assert getattr(rr, name) is not None
    with pytest.raises(AttributeError):
        rr.no_such_name  # noqa: B018
