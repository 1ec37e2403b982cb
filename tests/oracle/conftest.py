"""Oracle tests run on one thread: the models are tiny, and the machine may be shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers.utils import logging

from vivace.kernels.select import BoundOps, resolve


@pytest.fixture(scope="session")
def ops() -> BoundOps:
    return resolve(choice="ref")


@pytest.fixture(scope="session", autouse=True)
def _quiet_and_single_threaded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
