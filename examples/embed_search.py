"""Search by meaning: embed some sentences and a question, then sort by cosine. The first run downloads 92 MB."""

import numpy as np

import vivace

SENTENCES = [
    "The cat sleeps on the warm stove.",
    "Interest rates rose for the third time this year.",
    "Bread needs flour, water, salt and time.",
    "The striker scored in the last minute of the match.",
]
QUESTION = "How do I bake a loaf?"

with vivace.load("minilm") as model:
    sentences = np.array([item.vector for item in model.embed(SENTENCES)])  # (sentences, 384), of length one
    question = model.embed(QUESTION).vector  # (384,)

scores = sentences @ question
print(QUESTION)
for index in np.argsort(-scores):
    print(f"  {scores[index]:.2f}  {SENTENCES[index]}")
