"""One lane at work: its waiting and running jobs, its pages, its prefix tree, and the step that it would run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from vivace.engine.batch import Fork, Lane, PageCopy, Span
from vivace.engine.follow import Followers
from vivace.engine.job import Group, Job, JobState
from vivace.engine.limits import SchedulerConfig, cut_span, is_inside_block, longest_block
from vivace.engine.pages import LanePages, Stretch
from vivace.engine.policy import Policy, WaitingQueue, group_rank
from vivace.engine.prefix import PrefixTree
from vivace.engine.stats import Stats


@dataclass(slots=True)
class Draft:
    """A step that is being put together. Granted jobs count as in flight at once, so that nobody takes their pages."""

    step: int
    spans: list[Span] = field(default_factory=list)
    copies: dict[int, list[PageCopy]] = field(default_factory=dict)  # by job id
    cost: int = 0
    has_preempted: bool = False
    room: int | None = None  # what is left of the gap limit for jobs that are not level; None: no limit
    has_chunk: bool = False  # whether one of them has a span


class LaneState:
    """The jobs and the memory of one lane.

    running   jobs that own pages, by id
    stuck     groups that can never get on, because they need more pages than there are: the scheduler ends them
    counts    sums of what accepted outcomes counted
    """

    def __init__(
        self, lane: Lane, config: SchedulerConfig, policy: Policy, stats: Stats, fallback: Callable[[Job], int]
    ) -> None:
        self.lane = lane
        self.config = config
        self.stats = stats
        self.pages = LanePages(lane)
        shares = lane.can_share and self.pages.is_positional
        self.tree = PrefixTree(self.pages, lane.key_bytes) if shares else None
        self.followers = Followers(self.tree) if self.tree is not None else None
        self.queue = WaitingQueue(policy)
        self.running: dict[int, Job] = {}
        self.stuck: list[Group] = []
        self.counts: Counter[str] = Counter()
        self._fallback = fallback
        self._blocked: tuple[Group | None, list[int]] = (None, [])  # who found no place, and the room there was

    @property
    def has_work(self) -> bool:
        """Whether any job waits or runs."""
        return bool(self.running) or bool(self.queue)

    # ---- planning a step

    def draft(self, step: int, gap_limit: int = 0) -> Draft:
        """The next step of this lane: running jobs first, then as many waiting ones as fit. It may hold no span.

        gap_limit  most that the step may take by the lane's costs; 0: no limit

        Only those that wait with a higher priority than some running job come before all running ones.
        """
        draft = Draft(step, room=self._room(gap_limit))
        if self.tree is not None:
            self.tree.step = step
        self._admit(draft, is_urgent=True)
        for crew in self._ready():
            if self._is_full(draft):
                break
            if crew[0].state is JobState.RUNNING:  # else a better one has just taken its pages
                self._grant(draft, crew)
        while True:
            if not draft.has_preempted or not self.running:
                self._admit(draft, is_urgent=False)  # else those that have just made room would come straight back
            if draft.spans or not self.running or any(job.in_flight for job in self.running.values()):
                return draft
            if not self._restart():
                return draft

    def _ready(self) -> list[list[Job]]:
        """Who wants a span: single jobs, and gangs as one. Those that went without longest come first, then the higher
        priority, then the smaller gap, so that short steps are not held up by long ones."""
        crews: list[tuple[tuple[int, int, int, int], list[Job]]] = []
        gangs: set[int] = set()
        for job in self.running.values():
            if job.in_flight or job.goal <= job.done or self._follows(job):
                continue
            group = job.group
            assert group is not None
            if not group.gang:
                key = (job.granted, -job.priority, (job.goal - job.done) * job.unit_cost, job.id)
                crews.append((key, [job]))
            elif group.id not in gangs and not any(member.in_flight for member in group.members):
                gangs.add(group.id)
                crew = [member for member in group.members if member.gap > 0 and not self._follows(member)]
                cost = sum(member.gap * member.unit_cost for member in crew)
                key = (max(member.granted for member in crew), -max(m.priority for m in crew), cost, job.id)
                crews.append((key, crew))
        crews.sort(key=_first)
        return [crew for _, crew in crews]

    def _room(self, gap_limit: int) -> int | None:
        """What level jobs leave of the limit, all of which may step at once."""
        costs = self.lane.costs
        if costs is None or not gap_limit:
            return None
        level = [job for job in self.running.values() if job.is_level and not job.in_flight]
        return max(0, gap_limit - costs.step - sum(costs.of_span(job.done, job.gap) for job in level))

    def _units(self, draft: Draft, crew: list[Job]) -> int:
        """Most units that each of the crew may have of the step: by its budget, and by the room for jobs not level."""
        left = self.config.step_budget - draft.cost
        units = min(self.config.job_budget, left) // sum(job.unit_cost for job in crew)
        costs = self.lane.costs
        if costs is None or draft.room is None or all(job.is_level for job in crew):
            return units
        fits = min(costs.most_units(job.done, draft.room // len(crew)) for job in crew)
        least = min(self.config.least_chunk, max(job.gap for job in crew))
        if fits < least:
            fits = 0 if draft.has_chunk else least
        return min(units, fits)

    def _is_full(self, draft: Draft) -> bool:
        return draft.cost >= self.config.step_budget or len(draft.spans) >= self.config.max_jobs

    def _has_room(self, draft: Draft) -> bool:
        """Whether one more job that is not level may have a chunk."""
        if draft.room is None or self.lane.costs is None or not draft.has_chunk:
            return True
        return draft.room >= self.lane.costs.of_span(0, self.config.least_chunk)

    def _grant(self, draft: Draft, crew: list[Job]) -> bool:
        """Add spans for the crew to the step, if budget and pages allow; return whether they did."""
        units = self._units(draft, crew)
        if units < 1 or len(draft.spans) + len(crew) > self.config.max_jobs:
            if draft.spans:
                return False  # what costs more than a whole budget gets a step of its own
            units = max(units, 1)
        stretches = self._stretches(draft, crew, units)
        if stretches:
            stretches = self._secure(draft, crew, stretches)
        if not stretches:
            return False
        draft.copies.update(self.pages.grow(stretches))
        for job, start, stop in stretches:
            draft.spans.append(Span(job, start, stop - start))
            draft.cost += (stop - start) * job.unit_cost
            job.in_flight = True
            job.granted = draft.step
            if draft.room is not None and self.lane.costs is not None and not job.is_level:
                draft.room = max(0, draft.room - self.lane.costs.of_span(start, stop - start))
                draft.has_chunk = True
        return True

    def _stretches(self, draft: Draft, crew: list[Job], units: int) -> list[Stretch]:
        """The crew's next spans of at most `units` units each; none if a block makes them too long for this step."""
        counts = [cut_span(job, units) for job in crew]
        group = crew[0].group
        if group is not None and group.gang and len(group.members) > 1:
            counts = self._level(group, crew, counts, units)
        cost = sum(count * job.unit_cost for job, count in zip(crew, counts, strict=True))
        if draft.spans and cost > self.config.step_budget - draft.cost:
            return []
        return [(job, job.done, job.done + count) for job, count in zip(crew, counts, strict=True) if count]

    def _level(self, group: Group, crew: list[Job], counts: list[int], units: int) -> list[int]:
        """A gang closes its gaps in the same step: until all can, each member keeps a unit back or sits it out."""
        is_whole = self.followers is None or not any(member in self.followers for member in group.members)
        if is_whole and all(count == job.gap for job, count in zip(crew, counts, strict=True)):
            return counts
        held_back = [cut_span(job, min(units, job.gap - 1)) for job in crew]
        held_back = [0 if count >= job.gap else count for job, count in zip(crew, held_back, strict=True)]
        return held_back if any(held_back) or not is_whole else [job.gap for job in crew]

    # ---- finding pages

    def _secure(self, draft: Draft, crew: list[Job], stretches: list[Stretch]) -> list[Stretch]:
        """See that there are pages for these units, or for fewer: from the free ones, then the prefix tree, then from
        what only saves work, then from groups of lower rank. Returns what can be granted, or nothing."""
        found = self._fit(draft, crew, stretches)
        if found:
            return found
        if self.pages.spare([job for job in self.running.values() if not job.in_flight]):
            found = self._fit(draft, crew, stretches)
        group = crew[0].group
        assert group is not None
        while not found and (victim := self._victim(group)) is not None:
            self.preempt(victim)
            draft.has_preempted = True
            found = self._fit(draft, crew, stretches)
        return found

    def _fit(self, draft: Draft, crew: list[Job], stretches: list[Stretch]) -> list[Stretch]:
        """These spans, or shorter ones, if there are pages for them without taking any from a job that runs."""
        if self._make_room(stretches):
            return stretches
        units = max(stop - start for _, start, stop in stretches)
        while units > 1:
            units //= 2
            shorter = self._stretches(draft, crew, units)
            if shorter and self._make_room(shorter):
                return shorter
        return []

    def _make_room(self, stretches: list[Stretch]) -> bool:
        short = self.pages.shortage(stretches)
        if short and self.tree is not None:
            if any(missing > keeper.pool.idle_count for keeper, missing in short):
                return False  # evicting would not help
            for keeper, missing in short:
                self.tree.evict(keeper, missing, stretches[0][0].id)
            short = self.pages.shortage(stretches)
        return not short

    def _victim(self, group: Group) -> Group | None:
        """The running group of the lowest rank that is at rest and ranks below `group`."""
        worst, worst_rank = None, group_rank(group)
        for other in {id(job.group): job.group for job in self.running.values()}.values():
            assert other is not None
            is_at_rest = not any(member.in_flight for member in other.members)
            if other is not group and is_at_rest and group_rank(other) > worst_rank:
                worst, worst_rank = other, group_rank(other)
        return worst

    def _restart(self) -> bool:
        """The only group that runs lacks pages: what it holds twice (forks, pages that the tree shares) is in its way.
        Let it start again through the prefix tree. False if that was done before and no member has got further.
        """
        group = next(iter(self.running.values())).group
        assert group is not None and len(group.members) == len(self.running), "the best job must have taken all pages"
        if all(member.stalled >= member.done for member in group.members):
            self.stuck.append(group)
            return False
        for member in group.members:
            member.stalled = max(member.stalled, member.done)
        self.stats.restarts += 1
        self.preempt(group)
        return True

    def preempt(self, group: Group) -> None:
        """Take all pages from a running group at rest and let it wait again."""
        for job in group.members:
            done = self._fallback(job)
            self.pages.free(job)
            job.done = 0 if self.pages.is_positional else max(0, min(done, job.done))
            job.entered = 0
            job.is_level = False
            self._unfollow(job)
            job.preemptions += 1
            job.state = JobState.WAITING
            del self.running[job.id]
            self.stats.preemptions += 1
        self.queue.push(group)

    # ---- admission

    def _admit(self, draft: Draft, *, is_urgent: bool) -> None:
        """Start waiting groups in order and grant them spans; urgent ones displace running groups if they must."""
        while not self._is_full(draft) and self._has_room(draft):
            group = self.queue.peek()
            if group is None or (is_urgent and not self._is_urgent(group)):
                return
            if not self._has_place(group):
                victim = self._victim(group) if is_urgent else None
                if victim is None or group_rank(victim)[0] <= group_rank(group)[0]:
                    return
                self.stats.displacements += 1
                self.preempt(victim)
                continue
            self.queue.pop()
            self._start(group)
            crews = [group.members] if group.gang else [[job] for job in group.members]
            granted = [crew for crew in crews if not self._is_full(draft) and self._grant_if_running(draft, crew)]
            if not granted:
                return

    def _is_urgent(self, group: Group) -> bool:
        priority = max(job.priority for job in group.members)
        return any(job.priority < priority for job in self.running.values())

    def _grant_if_running(self, draft: Draft, crew: list[Job]) -> bool:
        ready = [job for job in crew if job.state is JobState.RUNNING and job.gap > 0 and not self._follows(job)]
        return bool(ready) and self._grant(draft, ready)

    def _has_place(self, group: Group) -> bool:
        """Whether the group may start now: there are pages for all its known units, and some left for those that run.

        When nothing runs it may start in any case.
        """
        if not self.running:
            return True
        if len(self.running) + len(group.members) > self.config.max_running:
            return False
        pools = [keeper.pool for keeper in self.pages.keepers]
        room = [pool.free_count + pool.idle_count - pool.count * self.config.watermark // 1000 for pool in pools]
        blocked, before = self._blocked
        if blocked is group and all(now <= then for now, then in zip(room, before, strict=True)):
            return False
        for index, keeper in enumerate(self.pages.keepers):
            need = sum(keeper.worst(job.goal, longest_block(job)) for job in group.members)
            if need > room[index] and need - self._shared(group, index) > room[index]:
                self._blocked = (group, room)
                return False
        self._blocked = (None, [])
        return True

    def _shared(self, group: Group, index: int) -> int:
        """Pages of that keeper which the group would find in the tree and which running jobs hold anyway."""
        if self.tree is None:
            return 0
        keeper = self.pages.keepers[index]
        if keeper not in self.tree.keepers:
            return 0
        count = 0
        for job in group.members:
            hit = self.tree.match(job, job.goal - 1)
            if hit is not None:
                entries = hit.entries[self.tree.keepers.index(keeper)]
                window = keeper.window(hit.granules)
                kept = entries if window < 0 else entries[len(entries) - window :]
                count += sum(1 for page in kept if not keeper.pool.is_idle(page))
        return count

    def _start(self, group: Group) -> None:
        """Waiting jobs run from now on, with what the prefix tree has for them."""
        for job in group.members:
            self.pages.open(job)
            job.state = JobState.RUNNING
            job.cached = 0
            self.running[job.id] = job
            self.stats.admissions += 1
            if self.tree is not None:
                hit = self.tree.match(job, job.goal - 1)
                if hit is not None:
                    job.done = job.cached = job.entered = self.tree.take(hit, job)
                self.stats.cached_units += job.cached
                self.stats.missed_units += min(job.goal, len(job.keys) // self.lane.key_bytes) - job.cached
        if self.followers is not None and len(group.members) > 1:
            self.followers.start(group)

    def _follows(self, job: Job) -> bool:
        """Whether the job waits for a leader. When the leader is there, the job starts from its pages."""
        if not self.followers or job not in self.followers:
            return False
        if self.followers.must_wait(job):
            return True
        self.followers.drop(job)
        assert self.tree is not None
        hit = self.tree.match(job, job.goal - 1)
        if hit is not None and hit.granules * self.tree.granule > job.done:
            self.pages.free(job)
            self.pages.open(job)
            job.done = job.entered = self.tree.take(hit, job)
            self.stats.cached_units += job.done - job.cached
            self.stats.missed_units -= job.done - job.cached
            job.cached = job.done
        return False

    def _unfollow(self, job: Job) -> None:
        if self.followers is not None:
            self.followers.drop(job)

    # ---- after a step

    def commit(self, job: Job, start: int, stop: int, target: int) -> None:
        """A step over start .. stop is accepted and the job's first `target` units are to count.

        Where a group has no state at `target`, fewer units count and the rest is granted again.
        """
        done = target
        if target != stop:
            done = self.pages.resumable(job, start, stop, target)
            while done < target and is_inside_block(job, done):
                done = self.pages.resumable(job, start, stop, done - 1)
        self.pages.settle(job, start, stop, done)
        job.done = done
        if done > job.stalled:
            job.stalled = -1
        tree = self.tree
        if tree is not None:
            if done < job.entered:
                job.entered = done - done % tree.granule
            known = min(done, len(job.keys) // tree.key_bytes)
            if known - job.entered >= tree.granule:
                tree.enter(job, known)
        self.pages.give_back(job)

    def fork(self, parent: Job, fork: Fork) -> Job:
        """A new job that runs at once on the pages of a committed parent."""
        child = fork.job
        at = min(fork.at, parent.done)
        done = self.pages.fork(parent, child, at)
        while done < at and is_inside_block(child, done):
            self.pages.free(child)
            at = done - 1
            done = self.pages.fork(parent, child, at)
        child.done = done
        child.entered = min(parent.entered, done - done % self.tree.granule) if self.tree is not None else 0
        child.state = JobState.RUNNING
        child.is_level = parent.is_level
        self.running[child.id] = child
        return child

    def end(self, job: Job) -> None:
        """The job is over: it leaves the queue or gives its pages back."""
        group = job.group
        assert group is not None
        if job.state is JobState.WAITING:
            self.queue.remove(group)
            group.members.remove(job)
            if group.members:
                self.queue.push(group)
        else:
            self.pages.free(job)
            self._unfollow(job)
            del self.running[job.id]
            group.members.remove(job)
        job.state = JobState.FINISHED


def _first(entry: tuple[tuple[int, int, int, int], list[Job]]) -> tuple[int, int, int, int]:
    return entry[0]
