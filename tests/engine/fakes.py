"""Fake pipelines with a memory: they write into pages and read from pages, and complain about every wrong value.

A unit's value is a hash of all units before it, its own key and the root. A step reads, through the block tables, all
that a real model would read and compares it with what the job itself wrote or may share; so a page that was freed too
early, given to two jobs, shared too far or not copied is found at the first read. Written pages hold poison until the
step comes back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from zlib import crc32

from vivace.engine.batch import Batch, Fork, Keep, Lane, Outcome, PageGroup, Span
from vivace.engine.job import Group, Job

VOCABULARY = 3
POISON = -1


class Fault(Exception):
    """An injected fault of a step."""


def mix(value: int, key: int) -> int:
    """The value of a unit with this key after a unit with that value."""
    return (value * 0x5851F42D + key * 0x9E3779B1 + 0x1234567) & 0x7FFFFFFF


def next_key(value: int, salt: int = 0) -> int:
    """What a greedy model would say after a unit with this value."""
    return ((value ^ salt * 0x5A5A5) >> 7) % VOCABULARY


class Greedy:
    """Payload of a decoder: greedy, one unit at a time. All other sequence payloads derive from it.

    tokens   keys of all known units; values holds the value of each
    want     tokens wanted in all
    guilty   steps that contain this unit fail ("raise") or give an outcome that makes no sense ("nonsense")
    """

    drafts = 0

    def __init__(self, root: bytes, tokens: list[int], want: int) -> None:
        self.root = root
        self.tokens: list[int] = []
        self.values: list[int] = []
        self.want = want
        self.draft: list[int] = []
        self.guilty: tuple[int, str] | None = None
        self.extend(tokens)
        self.born = len(tokens)  # tokens that it starts with

    def extend(self, tokens: Sequence[int]) -> None:
        value = self.values[-1] if self.values else crc32(self.root) & 0x7FFFFFFF
        for token in tokens:
            value = mix(value, token)
            self.tokens.append(token)
            self.values.append(value)

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        del self.values[length:]

    def span_values(self, start: int, stop: int) -> list[int]:
        """Values of units start .. stop, drafted ones included."""
        values = self.values[start:stop]
        value = self.values[-1]
        for token in self.draft[: max(0, stop - len(self.values))]:
            value = mix(value, token)
            values.append(value)
        return values[: stop - start]

    def step(self, job: Job, start: int, stop: int) -> Outcome:
        """What the span start .. stop led to."""
        known = len(self.tokens)
        if stop < known:
            return Outcome(job.goal)
        tried = self.draft[: stop - known]
        fresh: list[int] = []
        value = self.values[-1]
        for token in tried:
            if token != next_key(value):
                break
            fresh.append(token)
            value = mix(value, token)
        accepted = len(fresh)
        fresh.append(next_key(value))
        fresh = fresh[: self.want - known]
        accepted = min(accepted, len(fresh))
        self.extend(fresh)
        return self.advance(job, fresh, len(tried) - accepted)

    def advance(self, job: Job, fresh: list[int], rollback: int) -> Outcome:
        """The outcome after fresh tokens."""
        length = len(self.tokens)
        self.draft = self.guess(min(self.drafts, job.limit - length))
        finished = "length" if length >= self.want else None
        goal = min(length + len(self.draft), job.limit)
        return Outcome(goal, rollback, bytes(fresh), finished, output=list(fresh))

    def guess(self, count: int) -> list[int]:
        """A draft that is right about two times in three."""
        value = self.values[-1]
        draft = []
        for _ in range(max(0, count)):
            token = next_key(value)
            if value % 3 == 0:
                token = (token + 1) % VOCABULARY
            draft.append(token)
            value = mix(value, token)
        return draft

    def alone(self) -> list[int]:
        """The tokens that it must end with whatever happens around it; called before it starts."""
        other = Greedy(self.root, self.tokens, self.want)
        while len(other.tokens) < self.want:
            other.extend([next_key(other.values[-1])])
        return other.tokens


class Drafted(Greedy):
    """Speculation: the same tokens as greedy, some steps at once, rejected drafts rolled back."""

    drafts = 3


class Sampled(Greedy):
    """Parallel samples: once the prompt is done, others branch off with another first token, in the group or alone."""

    def __init__(self, root: bytes, tokens: list[int], want: int, others: int, grouped: bool) -> None:
        super().__init__(root, tokens, want)
        self.others = others if len(tokens) + 1 < want else 0
        self.grouped = grouped

    def branches(self) -> list[list[int]]:
        """The tokens that the others begin with; called when the prompt is done, and only once."""
        *prompt, first = self.tokens[: self.born + 1]
        count, self.others = self.others, 0
        return [[*prompt, (first + number) % VOCABULARY] for number in range(1, count + 1)]

    def all_alone(self) -> list[list[int]]:
        """The tokens of all samples; called before it starts."""
        first = next_key(self.values[-1])
        begins = [[*self.tokens, (first + number) % VOCABULARY] for number in range(1, self.others + 1)]
        return [self.alone(), *(Greedy(self.root, begin, self.want).alone() for begin in begins)]


class Windowed(Greedy):
    """Whole windows are tried again with another salt if their last value says so, as transcription does."""

    size = 4

    def __init__(self, root: bytes, tokens: list[int], want: int) -> None:
        super().__init__(root, tokens, want)
        self.begin = len(tokens)
        self.attempt = 0

    def step(self, job: Job, start: int, stop: int) -> Outcome:
        if stop < len(self.tokens):
            return Outcome(job.goal)
        fresh = [next_key(self.values[-1], self.attempt)]
        self.extend(fresh)
        length = len(self.tokens)
        if length < min(self.begin + self.size, self.want):
            return Outcome(length, keys=bytes(fresh))
        if self.values[-1] % 2 and self.attempt < 2:
            self.attempt += 1
            self.cut(self.begin)
            last = self.begin - 1  # its logits are needed again
            return Outcome(self.begin, stop - last, bytes(self.tokens[last:]))
        window = self.tokens[self.begin :]
        self.begin, self.attempt = length, 0
        return Outcome(length, keys=bytes(fresh), finished="length" if length >= self.want else None, output=window)

    def alone(self) -> list[int]:
        other = Windowed(self.root, self.tokens, self.want)
        while other.begin < self.want:
            stop = len(other.tokens)
            other.step(Job(0, "", stop, other.want), stop - 1, stop)
        return other.tokens


class Encoding(Greedy):
    """An embedding: ends when its gap closes."""

    def step(self, job: Job, start: int, stop: int) -> Outcome:
        return Outcome(job.goal, output=[self.values[-1]] if stop == job.goal else None)

    def alone(self) -> list[int]:
        return list(self.tokens)


class Diffusion:
    """One of a guidance pair: a fixed number of evaluations, each of which needs the other's latest latent."""

    def __init__(self, seed: int, count: int) -> None:
        self.latents = [seed]
        self.count = count
        self.partner: Diffusion | None = None
        self.guilty: tuple[int, str] | None = None

    def rewind(self, start: int) -> None:
        """Forget what came after the first `start` evaluations."""
        del self.latents[start + 1 :]

    def evaluate(self, stop: int) -> int:
        assert self.partner is not None
        return mix(self.latents[stop - 1], self.partner.latents[stop - 1])

    def alone(self) -> list[int]:
        assert self.partner is not None
        mine, other = list(self.latents), list(self.partner.latents)
        while len(mine) <= self.count:
            mine, other = [*mine, mix(mine[-1], other[-1])], [*other, mix(other[-1], mine[-1])]
        return mine


class Beam(Greedy):
    """A member of a beam gang: it forks, is pruned or goes on, by a rule over all members of its gang."""

    width = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one member of a beam gang."""

    pruned: bool = False
    fork_back: int | None = None  # units before its end at which it forks


def choose_beams(values: Sequence[int]) -> list[Choice]:
    """The rule: members in order; at least one goes on, at most `Beam.width` do."""
    size = len(values)
    choices = []
    for value in values:
        if value % 5 == 0 and size > 1:
            size -= 1
            choices.append(Choice(pruned=True))
        elif value % 3 == 0 and size < Beam.width:
            size += 1
            choices.append(Choice(fork_back=(value >> 8) % 4))
        else:
            choices.append(Choice())
    return choices


def beams_alone(root: bytes, tokens: list[int], want: int) -> list[list[int]]:
    """What the members of a beam gang must end with, in any order."""
    members = [Greedy(root, tokens, want)]
    while len(members[0].tokens) < want:
        children = []
        rest = []
        for member, choice in zip(members, choose_beams([m.values[-1] for m in members]), strict=True):
            if choice.pruned:
                continue
            token = next_key(member.values[-1])
            if choice.fork_back is not None and len(member.tokens) + 1 < want:
                children.append(Greedy(root, [*member.tokens, (token + 1) % VOCABULARY], want))
            member.extend([token])
            rest.append(member)
        members = rest + children
    return [member.tokens for member in members]


@dataclass
class Memory:
    """What stands in the pages of one lane."""

    lane: Lane
    pages: dict[str, list[list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        counts = self.lane.pages or {}
        self.pages = {}
        for group in self.lane.groups:
            units = 1 if group.keep in (Keep.CHECKPOINT, Keep.WHOLE) else group.page_size
            self.pages[group.name] = [[POISON] * units for _ in range(counts[group.name] + 1)]


class FakePipeline:
    """A pipeline of any of the kinds above. `fault_rate`: share of the steps that fail although no job is at fault."""

    def __init__(self, lane: Lane, rng: Random, fault_rate: float = 0.0, first_fork: int = 1_000_000) -> None:
        self.lane = lane
        self.memory = Memory(lane)
        self.rng = rng
        self.fault_rate = fault_rate
        self.released: list[int] = []
        self.preempted: list[int] = []
        self._next_id = first_fork

    def launch(self, batch: Batch) -> FakeTicket:
        assert batch.lane == self.lane.name
        for copy in batch.copies:
            pages = self.memory.pages[copy.group]
            pages[copy.target][:] = pages[copy.source]
        for span in batch.spans:
            self.read(span)
        for span in batch.spans:
            self.write(span, poison=True)
        if self.rng.random() < 0.5:
            self.fail(batch)
        return FakeTicket(self, batch)

    def fallback(self, job: Job) -> int:
        self.preempted.append(job.id)
        return 0 if self.lane.groups else job.done

    def release(self, job: Job) -> None:
        self.released.append(job.id)

    def fail(self, batch: Batch) -> None:
        """Raise if a job is at fault, or by chance if that cannot hit a job that is alone."""
        for span in batch.spans:
            guilty = span.job.payload.guilty
            if guilty and guilty[1] == "raise" and span.start <= guilty[0] < span.start + span.count:
                raise Fault(f"job {span.job.id} fails at unit {guilty[0]}")
        crews = {span.job.group if span.job.group and span.job.group.gang else span.job for span in batch.spans}
        if len(crews) > 1 and self.rng.random() < self.fault_rate:
            raise Fault("this step fails, the next one would not")

    def read(self, span: Span) -> None:
        """Check every unit that the span may read, and that what it writes has a page."""
        job, start, stop = span.job, span.start, span.start + span.count
        assert span.count > 0 and start == job.done and stop <= job.goal
        for begin, end in job.blocks:
            assert not (begin < start < end) and not (begin < stop < min(end, job.goal)), "a block was cut"
        for group in self.lane.groups:
            table, pages = job.tables[group.name], self.memory.pages[group.name]
            if group.keep is Keep.CHECKPOINT:
                expected = job.payload.values[start - 1] if start else None
                assert (pages[table[0]][0] if table[0] else None) == expected, f"job {job.id}: wrong state at {start}"
                assert table[1] and table[1] != table[0], f"job {job.id} has no page to write its state to"
            elif group.keep is Keep.WHOLE:
                assert table[0] and (not start or pages[table[0]][0] == object_of(job)), f"job {job.id}: wrong object"
            else:
                self._read_units(group, table, job, start, stop)

    def _read_units(self, group: PageGroup, table: array[int], job: Job, start: int, stop: int) -> None:
        size, pages = group.page_size, self.memory.pages[group.name]
        values = job.payload.values
        first = max(0, start - group.span) if group.keep is Keep.LAST else 0
        for index in range(first // size, -(-start // size)):
            low, high = max(first - index * size, 0), min(start - index * size, size)
            found = pages[table[index]][low:high]
            expected = values[index * size + low : index * size + high]
            assert table[index] and found == expected, f"job {job.id}: wrong units in page {index} of {group.name}"
        assert len(table) == -(-stop // size) and all(table[start // size :]), f"job {job.id} lacks pages to write"

    def write(self, span: Span, *, poison: bool) -> None:
        """Write the span's units, or poison in their place."""
        job, start, stop = span.job, span.start, span.start + span.count
        if not self.lane.groups:
            return
        values = [POISON] * span.count
        if not poison and isinstance(job.payload, Greedy):
            values = job.payload.span_values(start, stop)
        for group in self.lane.groups:
            table, pages = job.tables[group.name], self.memory.pages[group.name]
            if group.keep is Keep.CHECKPOINT:
                pages[table[1]][0] = values[-1]
                for mark in range(start // group.span + 1, stop // group.span + 1):
                    if table[1 + mark]:
                        pages[table[1 + mark]][0] = values[mark * group.span - 1 - start]
            elif group.keep is Keep.WHOLE:
                if start == 0:
                    pages[table[0]][0] = POISON if poison else object_of(job)
            else:
                size = group.page_size
                for offset, value in enumerate(values):
                    unit = start + offset
                    pages[table[unit // size]][unit % size] = value

    def outcomes(self, batch: Batch) -> list[Outcome]:
        """Compute the step, all gangs at once."""
        for span in batch.spans:
            self.read(span)
        self.fail(batch)
        for span in batch.spans:
            self.write(span, poison=False)
        answers: dict[int, Outcome] = {}
        gangs: dict[int, list[Span]] = {}
        for span in batch.spans:
            group = span.job.group
            assert group is not None
            if group.gang:
                gangs.setdefault(group.id, []).append(span)
            else:
                answers[span.job.id] = self._step_alone(span)
        for spans in gangs.values():
            group = spans[0].job.group
            assert group is not None
            answers.update(self._step_gang(group, spans))
        return [self._spoil(span, answers[span.job.id]) for span in batch.spans]

    def _step_alone(self, span: Span) -> Outcome:
        job, stop = span.job, span.start + span.count
        outcome: Outcome = job.payload.step(job, span.start, stop)
        if isinstance(job.payload, Sampled) and len(job.payload.tokens) > job.payload.born:
            group = job.group if job.payload.grouped else None
            children = [self._child(job, Greedy(job.root, t, job.payload.want), group) for t in job.payload.branches()]
            outcome = replace(outcome, forks=tuple(Fork(child, stop) for child in children))
        return outcome

    def _child(self, job: Job, payload: Greedy, group: Group | None) -> Job:
        self._next_id += 1
        options = {"limit": job.limit, "unit_cost": job.unit_cost, "priority": job.priority, "group": group}
        return fake_job(self._next_id, job.lane, payload, **options)

    def _spoil(self, span: Span, outcome: Outcome) -> Outcome:
        guilty = span.job.payload.guilty
        if guilty and guilty[1] == "nonsense" and span.start <= guilty[0] < span.start + span.count:
            return Outcome(span.job.limit + 1)
        return outcome

    def _step_gang(self, group: Group, spans: list[Span]) -> dict[int, Outcome]:
        closed = [span.start + span.count == span.job.goal for span in spans]
        assert not any(closed) or (all(closed) and len(spans) == len(group.members)), "a gang came apart"
        if isinstance(spans[0].job.payload, Diffusion):
            return self._step_pair(spans)
        if not any(closed):
            return {span.job.id: Outcome(span.job.goal) for span in spans}
        choices = choose_beams([span.job.payload.values[-1] for span in spans])
        return {span.job.id: self._step_beam(span, choice) for span, choice in zip(spans, choices, strict=True)}

    def _step_pair(self, spans: list[Span]) -> dict[int, Outcome]:
        assert len(spans) == 2 and spans[0].start == spans[1].start and spans[0].count == spans[1].count
        pair = [span.job.payload for span in spans]
        for mine in pair:
            mine.rewind(spans[0].start)
        for stop in range(spans[0].start + 1, spans[0].start + spans[0].count + 1):
            fresh = [mine.evaluate(stop) for mine in pair]
            for mine, latent in zip(pair, fresh, strict=True):
                mine.latents.append(latent)
        return {span.job.id: Outcome(span.job.goal) for span in spans}

    def _step_beam(self, span: Span, choice: Choice) -> Outcome:
        job, stop = span.job, span.start + span.count
        beam: Beam = job.payload
        if choice.pruned:
            return Outcome(job.goal, finished="pruned")
        token = next_key(beam.values[-1])
        forks: tuple[Fork, ...] = ()
        if choice.fork_back is not None and len(beam.tokens) + 1 < beam.want:
            other = Beam(beam.root, [*beam.tokens, (token + 1) % VOCABULARY], beam.want)
            forks = (Fork(self._child(job, other, job.group), max(0, stop - choice.fork_back)),)
        beam.extend([token])
        length = len(beam.tokens)
        return Outcome(length, keys=bytes([token]), forks=forks, finished="length" if length >= beam.want else None)


@dataclass
class FakeTicket:
    """A step that computes when it is asked for its outcomes."""

    pipeline: FakePipeline
    batch: Batch

    def outcomes(self) -> list[Outcome]:
        return self.pipeline.outcomes(self.batch)


def object_of(job: Job) -> int:
    """What the job's WHOLE pages hold: it depends on the root only."""
    return crc32(b"object" + job.root)


def fake_job(id: int, lane: str, payload: Any, **options: Any) -> Job:
    """A job for a sequence payload, with keys for all tokens that it starts with."""
    tokens = payload.tokens
    limit = options.pop("limit", max(payload.want, len(tokens)))
    return Job(id, lane, len(tokens), limit, root=payload.root, keys=bytearray(tokens), payload=payload, **options)
