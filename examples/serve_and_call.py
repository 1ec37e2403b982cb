"""Start `vivace serve` on a free port of this machine and call it with the official client (pip install openai)."""

import socket
import subprocess
import sys
import time
import urllib.request

from openai import OpenAI

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([sys.executable, "-m", "vivace", "serve", "smollm2", "--port", str(port)])


def is_ready() -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready").status == 200
    except OSError:  # not listening yet, or 503 while the model is loaded
        return False


try:
    while server.poll() is None and not is_ready():
        time.sleep(0.2)
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="not needed on this machine")
    question = {"role": "user", "content": "What is the capital of France?"}
    for chunk in client.chat.completions.create(model="smollm2", messages=[question], temperature=0, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
finally:
    server.terminate()
    server.wait()
