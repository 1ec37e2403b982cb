"""Public names change deliberately only: every `__all__` of the package is listed in public_names.toml."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "vivace"
LISTED: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("public_names.toml").read_text())


def declared() -> dict[str, list[str]]:
    """Module -> its `__all__`, read from the source."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                module = ".".join(("vivace", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
                found[module] = sorted(ast.literal_eval(node.value))
    return found


def test_public_names_are_those_listed() -> None:
    found = declared()
    changed = {module for module in found.keys() | LISTED.keys() if found.get(module) != LISTED.get(module)}
    lines = [f'"{module}" = {found.get(module)}'.replace("'", '"') for module in sorted(changed)]
    assert not changed, "public names changed; if that is meant, put into public_names.toml:\n" + "\n".join(lines)


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_can_be_imported(module: str) -> None:
    loaded = importlib.import_module(module)
    missing = [name for name in LISTED[module] if not hasattr(loaded, name)]
    assert not missing


def test_vivace_itself_lists_what_users_need() -> None:
    assert {"load", "Model", "Options", "EngineConfig", "VivaceError"} <= set(LISTED["vivace"])
