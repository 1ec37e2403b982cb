"""Who may import whom: walks the syntax trees of src/vivace, function-level imports included."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "vivace"

# Each row may import the rows above it; parts of one row do not import each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("config", "registry"),
    ("runtime", "engine", "media"),
    ("kernels",),
    ("layers", "weights"),
    ("models", "techniques"),
    ("pipelines",),
    ("api",),
    ("serve", "lab", "train"),
    ("deploy",),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
FORBIDDEN_WORDS_IN_ENGINE = ("torch", "numpy", "token", "latent", "image")


def test_every_part_has_a_place_in_the_order() -> None:
    names = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__", "_version"}
    names |= {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert names <= set(RANK), f"parts without a place: {sorted(names - set(RANK))}"


def test_imports_go_downward_only() -> None:
    wrong = []
    for path, part in _files():
        for line, imported in _vivace_imports(path):
            if imported != part and RANK[imported] >= RANK[part]:
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_engine_imports_the_standard_library_only() -> None:
    wrong = []
    for path in (SOURCE / "engine").rglob("*.py"):
        for line, module in _modules(path):
            top = module.split(".")[0]
            allowed = top in sys.stdlib_module_names or module.startswith(("vivace.engine", "vivace.errors"))
            if not allowed:
                wrong.append(f"{path.name}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_engine_never_learns_what_a_unit_is() -> None:
    for path in (SOURCE / "engine").rglob("*.py"):
        words = {node.id.lower() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not [word for word in words if any(bad in word for bad in FORBIDDEN_WORDS_IN_ENGINE)], path


def test_techniques_do_not_import_each_other() -> None:
    wrong = []
    for path in (SOURCE / "techniques").glob("*/*.py"):
        if path.stem in ("__init__", "base"):
            continue
        slot = f"vivace.techniques.{path.parent.name}"
        for line, module in _modules(path):
            if module.startswith("vivace.techniques") and module not in (slot, f"{slot}.base"):
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def _files() -> list[tuple[Path, str]]:
    return [
        (path, path.relative_to(SOURCE).parts[0].removesuffix(".py"))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent != SOURCE or path.stem in RANK
    ]


def _modules(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            found.append((node.lineno, node.module or ""))
            if node.module == "vivace":
                found += [(node.lineno, f"vivace.{alias.name}") for alias in node.names]
    return found


def _vivace_imports(path: Path) -> list[tuple[int, str]]:
    parts = [(line, module.split(".")) for line, module in _modules(path)]
    return [(line, names[1]) for line, names in parts if names[0] == "vivace" and len(names) > 1 and names[1] in RANK]
