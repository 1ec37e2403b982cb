"""Load the default model and ask it one question. The first run downloads the model (98 MB)."""

import vivace

with vivace.load("smollm2") as model:
    answer = model.chat("What is the capital of France?")

print(answer.text)
print(f"({answer.usage.prompt} tokens read, {answer.usage.generated} written, ended by: {answer.finish_reason})")
