"""Train the tiny decoders under tests/assets: a few minutes on one core, from a corpus that this script writes itself.

    python -m tools.make_tiny llama tests/assets/tiny-llama
    python -m tools.make_tiny gemma3 tests/assets/tiny-gemma3

Trained models have peaked logits, so that a wrong cache or a wrong position changes the text; random ones hide such
faults. The corpus is little stories and chat turns from a grammar: names, animals, colours, counting, capitals.
The folders are in Hugging Face format with bf16 weights, a byte-level BPE tokenizer and a ChatML template.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jun",
    "Kira",
    "Leo",
    "Mia",
    "Noor",
    "Otto",
    "Pia",
]
ANIMALS = ["cat", "dog", "fox", "owl", "bear", "frog", "mouse", "horse", "rabbit", "turtle"]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "grey"]
PLACES = ["garden", "forest", "river", "house", "village", "market", "school", "mountain"]
THINGS = ["ball", "book", "cake", "drum", "hat", "kite", "lamp", "ring", "rope", "shoe"]
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "Norway": "Oslo",
    "Spain": "Madrid", "Kenya": "Nairobi", "Cuba": "Havana", "Greece": "Athens",
}  # fmt: skip
NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
ACCENTS = ["The café is open: naïve, über, señor.", "Привет, мир!", "你好，世界。", "🙂🚀 done."]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 384
LENGTH = 160
STEPS = 1500


def story(rng: random.Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    animal, colour, place, thing = (rng.choice(words) for words in (ANIMALS, COLOURS, PLACES, THINGS))
    return (
        f"{name} had a {colour} {animal}. The {animal} lived in the {place}. One day the {animal} found a {thing}. "
        f"{name} asked {friend}: whose {thing} is this? {friend} said: it is mine. "
        f"{name} gave the {thing} to {friend}. "
        f"The {colour} {animal} went back to the {place}. The end."
    )


def counting(rng: random.Random) -> str:
    first = rng.randrange(0, 8)
    return "Count: " + ", ".join(NUMBERS[first : first + 8]) + "."


def chat(rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        country = rng.choice(list(CAPITALS))
        question, answer = f"What is the capital of {country}?", f"The capital of {country} is {CAPITALS[country]}."
    elif kind == 1:
        a, b = rng.randrange(0, 9), rng.randrange(0, 8)
        question, answer = f"What is {NUMBERS[a]} plus {NUMBERS[b]}?", f"The sum is {NUMBERS[a + b]}."
    elif kind == 2:
        name = rng.choice(NAMES)
        question, answer = f"Hello, I am {name}.", f"Hello {name}, how can I help you?"
    else:
        question, answer = "Tell me a story.", story(rng)
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def corpus(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    makers = (story, counting, chat, chat, lambda r: r.choice(ACCENTS))
    return [rng.choice(makers)(rng) for _ in range(count)]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_model(architecture: str) -> torch.nn.Module:
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, **shared))
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            num_hidden_layers=6, layer_types=layer_types, sliding_window=24, query_pre_attn_scalar=16, **shared
        )
    )


def train(model: torch.nn.Module, tokenizer: Tokenizer) -> float:
    stream = [i for text in corpus(1, 20000) for i in [*tokenizer.encode(text).ids, 0]]
    data = torch.tensor(stream)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    generator = torch.Generator().manual_seed(2)
    loss = torch.zeros(())
    for step in range(STEPS):
        starts = torch.randint(0, len(data) - LENGTH, (16,), generator=generator)
        batch = torch.stack([data[start : start + LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.3f}", flush=True)
    return loss.item()


def main(architecture: str, folder: str) -> None:
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(corpus(0, 3000))
    model = make_model(architecture)
    print(f"loss {train(model, tokenizer):.3f}, {sum(p.numel() for p in model.parameters())} parameters")
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2)
    model.to(torch.bfloat16).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    print(sorted((path.name, path.stat().st_size) for path in Path(folder).iterdir()))


if __name__ == "__main__":
    main(*sys.argv[1:3])
