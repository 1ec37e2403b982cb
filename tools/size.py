"""Print the size of the project by folder: files, code lines, the longest file. Run by `make size`."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATEMENT_STARTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".js"}


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))
    lines: set[int] = set()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and previous in (
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
        )
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if token.type not in (*STATEMENT_STARTS, tokenize.ENDMARKER) and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        previous = token.type
    return len(lines)


def table() -> list[tuple[str, int, int, str]]:
    """Rows of (folder, files, code lines, longest file with its lines)."""
    folders = sorted(
        path for path in (ROOT / "src" / "vivace").iterdir() if path.is_dir() and path.name != "__pycache__"
    )
    rows = [_row("src/vivace (top)", sorted((ROOT / "src" / "vivace").glob("*.py")))]
    rows += [_row(str(folder.relative_to(ROOT)), _files(folder)) for folder in folders]
    rows += [_row(name, _files(ROOT / name)) for name in ("tests", "tools", "benchmarks", "examples")]
    return [row for row in rows if row[1]]


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]


def _row(name: str, files: list[Path]) -> tuple[str, int, int, str]:
    longest = max(((path.read_text().count("\n"), path.name) for path in files), default=(0, ""))
    return name, len(files), sum(code_lines(path) for path in files), f"{longest[1]} ({longest[0]})"


def main() -> None:
    print(f"{'folder':<28} {'files':>5} {'code lines':>10}  longest file (all lines)")
    rows = table()
    for name, count, lines, longest in rows:
        print(f"{name:<28} {count:>5} {lines:>10}  {longest}")
    print(f"{'sum':<28} {sum(row[1] for row in rows):>5} {sum(row[2] for row in rows):>10}")


if __name__ == "__main__":
    main()
