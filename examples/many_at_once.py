"""Many prompts at once: they share the steps of one engine, so that together they take less time than one by one."""

import asyncio
import time

import vivace

COUNTRIES = ["France", "Egypt", "Greece", "Japan", "Kenya", "Norway", "Peru", "Poland"]


async def ask(model: vivace.Model, country: str) -> None:
    answer = await model.achat(f"What is the capital of {country}?", max_tokens=16)
    print(f"{country}: {answer.text.splitlines()[0]}")


async def main() -> None:
    with vivace.load("smollm2") as model:
        start = time.perf_counter()
        await asyncio.gather(*(ask(model, country) for country in COUNTRIES))
        print(f"{len(COUNTRIES)} answers in {time.perf_counter() - start:.1f} s")


asyncio.run(main())
