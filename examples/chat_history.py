"""Hold a conversation: the history is a list of messages, and the tokens that two turns share are computed once."""

import vivace

QUESTIONS = ["What is the capital of Italy?", "Which language do people speak there?"]

with vivace.load("smollm2") as model:
    messages = [{"role": "system", "content": "Answer in one short sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = model.chat(messages, max_tokens=40)
        messages.append({"role": "assistant", "content": answer.text})
        print(f"> {question}\n{answer.text}")
        print(f"  ({answer.usage.cached} of {answer.usage.prompt} prompt tokens came from the cache)")
