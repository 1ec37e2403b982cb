"""What both processes of the server do at their start: logging, and keeping memory tidy for a long life."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
import time

TRIM_SECONDS = 2.0


def log_to_stderr() -> None:
    """One line per event, from INFO up; the web server's own only if something is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def freeze_loaded() -> None:
    """Never look at the objects that exist now again: modules and models stay to the end.

    Python collects its oldest generation when new survivors are a quarter of it. The second collection makes that
    generation small, so that the garbage of requests is found soon, and each search is quick.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def keep_trimming() -> None:
    """Give freed memory back to the system every TRIM_SECONDS, in a thread; nothing where the C library cannot.

    glibc keeps what is freed between live blocks. Over many requests of mixed size that adds up to megabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return

    def run() -> None:
        while True:
            time.sleep(TRIM_SECONDS)
            trim(0)  # without the interpreter's lock: requests go on

    threading.Thread(target=run, name="trim", daemon=True).start()
