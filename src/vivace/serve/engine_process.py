"""The engine process: loads the models, runs the engine loop, and answers the HTTP process until its input closes.

Started by the supervisor as `python -m vivace.serve.engine_process`. Standard input carries one line of JSON (Setup)
and then stays open as a lifeline: its end means that the HTTP process is gone, however it went.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback

import msgspec
import zmq

from vivace import __version__
from vivace.api.engine import Engine
from vivace.errors import ConfigError, EngineDied, StepFailed, VivaceError
from vivace.pipelines.requests import Reply, described
from vivace.serve import protocol
from vivace.serve.process import freeze_loaded, log_to_stderr

log = logging.getLogger("vivace.engine")


def main() -> int:
    """Serve one HTTP process; the exit status is 0 after its end, 1 if the engine cannot start or has died."""
    # Signals of the terminal go to the whole group: the HTTP process decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_to_stderr()
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=protocol.Setup)
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    context = zmq.Context()
    replies = _connect(context, zmq.PUSH, setup.replies_address)
    outbox = Outbox(replies)
    try:
        engine = _load(setup, outbox)
    except VivaceError as error:
        replies.send(protocol.encode(protocol.Failed(described(error))))
        context.destroy(linger=1000)
        return 1
    freeze_loaded()
    replies.send(protocol.encode(protocol.Ready(list(engine.models.values()))))
    requests = _connect(context, zmq.PULL, setup.requests_address)
    while handle(protocol.decode_to_engine(requests.recv()), engine, outbox):
        pass
    context.destroy(linger=1000)
    return 1


class Outbox:
    """Collects replies from the loop's and the receiving thread, and sends them together at the end of a step."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._replies: list[protocol.WireReply] = []

    def add(self, request_id: int, reply: Reply) -> None:
        """Keep a reply for the next `flush`."""
        with self._lock:
            self._replies.append(protocol.pack_reply(request_id, reply))

    def flush(self) -> None:
        """Send what was collected, as one message."""
        with self._lock:
            if self._replies:
                self._socket.send(protocol.encode(protocol.Step(self._replies)))
                self._replies = []

    def send(self, message: protocol.FromEngine) -> None:
        """Send a message of its own."""
        with self._lock:
            self._socket.send(protocol.encode(message))


def _load(setup: protocol.Setup, outbox: Outbox) -> Engine:
    if setup.version != __version__:
        message = f"the server runs version {setup.version}, the installed package is {__version__}"
        raise ConfigError(message, hint="start the server again")
    engine = Engine(setup.config, after_step=outbox.flush)
    for name, source in setup.models.items():
        engine.add_model(source, name=name)
    engine.start()
    return engine


def handle(message: protocol.ToEngine, engine: Engine, outbox: Outbox) -> bool:
    """Do what one message asks for. False if the engine has died: this process must end, to be started again."""
    if isinstance(message, protocol.Generate | protocol.Embed):
        return _submit(message, engine, outbox)
    if isinstance(message, protocol.Cancel):
        engine.cancel(message.id)
    else:
        outbox.send(protocol.Stats(message.id, engine.stats()))
    return True


def _submit(message: protocol.Generate | protocol.Embed, engine: Engine, outbox: Outbox) -> bool:
    request_id = message.id
    is_alive = True
    try:
        engine.submit(
            message.model, message.request, lambda reply: outbox.add(request_id, reply), request_id=request_id
        )
        return is_alive
    except VivaceError as error:
        is_alive = not isinstance(error, EngineDied)
        refusal = described(error)
    except Exception:  # a fault of ours in a check must fail this request alone
        log.error("request %d failed before it started\n%s", request_id, traceback.format_exc())
        refusal = described(StepFailed("the request could not be started", hint="the server's log has the details"))
    outbox.add(request_id, Reply(finished="error", error=refusal))
    outbox.flush()
    return is_alive


def _connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.connect(address)
    return socket


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
