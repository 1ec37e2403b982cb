"""Print an answer while it is written. Closing the iterator early would end the work."""

import vivace

with vivace.load("smollm2") as model:
    for delta in model.chat_stream("Name three colours of the rainbow.", max_tokens=60):
        print(delta.text, end="", flush=True)
        if delta.usage:
            print(f"\n({delta.usage.generated} tokens)")
