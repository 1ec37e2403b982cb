"""Progress bars of downloads on the terminal; they go to stderr, so that stdout stays clean for results."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars


class TerminalProgress:
    """A `vivace.weights.progress.Progress`: one bar at a time that vanishes when its transfer is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Bars | None = None

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, label: str, total_bytes: int | None) -> None:
        self.end()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
        self._bars = Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=self._console, transient=True)
        self._bars.add_task(label, total=total_bytes)
        self._bars.start()

    def update(self, done_bytes: int) -> None:
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=done_bytes)

    def end(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
