"""One embed request as its client sees it: its reply in, a vector out."""

from __future__ import annotations

from vivace.api.info import ModelInfo
from vivace.api.results import Embedding
from vivace.api.session import error_of
from vivace.errors import Cancelled, InvalidRequest
from vivace.pipelines.requests import EmbedRequest, Reply, Vector


class EmbedSession:
    """Feed every reply; the vector comes with the last one."""

    def __init__(self, info: ModelInfo, request: EmbedRequest) -> None:
        """Raises InvalidRequest for dimensions that the model does not have."""
        _check_dimensions(info, request.dimensions)
        self.request = request
        self.is_over = False
        self.engine_is_done = False
        self._data: bytes | None = None

    def feed(self, reply: Reply) -> Embedding | None:
        """The vector, if this reply is the last. Raises the error that the reply carries."""
        if isinstance(reply.output, Vector):
            self._data = reply.output.data
        if reply.finished is None:
            return None
        self.is_over = self.engine_is_done = True
        if reply.error is not None:
            raise error_of(*reply.error)
        if self._data is None:
            raise Cancelled(f"the request ended before its vector was complete ({reply.finished})")
        import numpy as np  # here, so that `vivace --help` does without

        return Embedding(np.frombuffer(self._data, dtype="<f4"), reply.usage)


def _check_dimensions(info: ModelInfo, dimensions: int | None) -> None:
    if dimensions is None or dimensions == info.dimensions:
        return
    most = info.dimensions or 0
    if not isinstance(dimensions, int) or isinstance(dimensions, bool) or not 1 <= dimensions <= most:
        raise InvalidRequest(
            f"dimensions is {dimensions!r}, expected a whole number from 1 to {most}",
            field="dimensions",
            hint="leave it out for the whole vector",
        )
    if info.shorter is None:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but '{info.name}' was not trained so that its vectors may be cut",
            field="dimensions",
            hint=f"leave it out: vectors have {most} numbers",
        )
    if info.shorter and dimensions not in info.shorter:
        listed = ", ".join(map(str, sorted(info.shorter)))
        raise InvalidRequest(
            f"dimensions is {dimensions}, '{info.name}' was trained for {listed}",
            field="dimensions",
            hint="choose one of these",
        )
