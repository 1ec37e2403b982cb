"""Which build this is: the commit that the package was made from."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path


def commit() -> str | None:
    """The commit this package was made from: what pip recorded, else the checkout it runs from; None if not known."""
    try:
        recorded = metadata.distribution("vivace").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    found = json.loads(recorded).get("vcs_info", {}).get("commit_id") if recorded else None
    return str(found) if found else _checkout_commit(Path(__file__).resolve().parents[3])


def _checkout_commit(root: Path) -> str | None:
    try:
        head = (root / ".git/HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        if (root / ".git" / reference).is_file():
            return (root / ".git" / reference).read_text().strip()
        packed = (root / ".git/packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), None)
    except OSError:
        return None
