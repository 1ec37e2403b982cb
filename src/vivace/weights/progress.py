"""What a download says while it runs: the interface that a progress bar implements, and one that says nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told about one transfer at a time: `begin`, then `update` any number of times, then `end`."""

    def note(self, text: str) -> None:
        """One line that the user should see, such as the source that is tried next."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A transfer starts; None when its size is not known."""

    def update(self, done_bytes: int) -> None:
        """So many bytes of the current transfer are here, counted from its beginning."""

    def end(self) -> None:
        """The current transfer is over, well or not."""


class Silent:
    """A Progress that shows nothing."""

    def note(self, text: str) -> None: ...

    def begin(self, label: str, total_bytes: int | None) -> None: ...

    def update(self, done_bytes: int) -> None: ...

    def end(self) -> None: ...


def size_text(num_bytes: int) -> str:
    """Bytes in a unit that people read: "98.4 MB" (powers of ten, as download pages count)."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
