"""File, function and argument limits of the project, and the budgets of folders."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tools.size import code_lines

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".js"}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 8
SPINE = ("api", "config.py", "engine", "pipelines", "runtime")
SPINE_BUDGET = 5000
TECHNIQUE_BUDGET = 300


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


def test_no_file_is_over_the_limit() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {n}" for path in sources() if (n := path.read_text().count("\n")) > MAX_FILE_LINES
    ]
    assert not long, long


def test_nine_in_ten_source_files_are_short() -> None:
    sizes = sorted(path.read_text().count("\n") for path in (ROOT / "src").rglob("*.py"))
    assert sizes[int(0.9 * (len(sizes) - 1))] <= 350


def test_functions_are_short_and_take_few_arguments() -> None:
    wrong = []
    for path in sources():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            arguments = [
                a.arg
                for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                if a.arg not in ("self", "cls")
            ]
            if lines > MAX_FUNCTION_LINES or (len(arguments) > MAX_ARGUMENTS and not _is_command(path, node)):
                wrong.append(f"{path.relative_to(ROOT)}:{node.name} has {lines} lines, {len(arguments)} arguments")
    assert not wrong, "\n".join(wrong)


def test_spine_and_techniques_keep_their_budgets() -> None:
    source = ROOT / "src" / "vivace"
    spine = sum(code_lines(path) for name in SPINE for path in _python_files(source / name))
    assert spine <= SPINE_BUDGET, f"api, engine, pipelines, runtime and config hold {spine} code lines"
    for path in (source / "techniques").rglob("*.py"):
        assert code_lines(path) <= TECHNIQUE_BUDGET, path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_open_marks_are_left() -> None:
    assert not open_marks()


def open_marks() -> str:
    """Lines that promise work instead of doing it, as git grep prints them."""
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"))
    found = subprocess.run(
        ["git", "grep", "-nwE", marks, "--", "*.py", "*.cpp", "*.h", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return found.stdout


def _is_command(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command's arguments are its flags: one per option is the point."""
    return "cli" in path.parts and not node.name.startswith("_")


def _python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))
