#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vivace {
namespace {

// Waking a sleeping thread costs tens of microseconds, about what one operation takes: so spin that long before sleeping.
constexpr int kSpins = 4000;
// Within a step work comes every few microseconds; whoever waits longer gives its core to another thread.
constexpr int kStepSpins = 2000;
// Threads claim some of the items of a part at a time, so that a slow thread delays nobody for long.
constexpr int64_t kClaims = 16;

// A ticket: the number of a call above, the next item that nobody has claimed below; kClosed while no call is described.
constexpr int kItemBits = 32;
constexpr uint64_t kClosed = (uint64_t{1} << kItemBits) - 1;

int64_t next_item(uint64_t ticket) { return static_cast<int64_t>(ticket & kClosed); }

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void run_alone(int64_t count, Pool::Task task, const void* context) {
    for (int64_t item = 0; item < count; ++item) task(context, item);
}

}  // namespace

// The workers and what they share with the caller.
//
// The items are cut into one part for each thread, so that a thread works on items that follow each other: what it fetched
// ahead is what it needs next. Who has finished its own part takes from the others.
//
// A claim succeeds only while its call is the current one, so a worker that comes late finds nothing and nobody waits for
// it: the caller waits for claimed items alone. A call is described while the tickets are closed. Who reads some of the
// next description fails to claim by an old ticket, because all were closed before.
struct Pool::Crew {
    std::vector<std::thread> workers;
    std::mutex turn;  // held by the caller whose items are being computed

    std::atomic<Task> task{nullptr};
    std::atomic<const void*> context{nullptr};
    std::atomic<int64_t> count{0};
    std::atomic<int64_t> claim{1};  // items taken at a time
    struct alignas(64) Part {
        std::atomic<uint64_t> ticket{kClosed};
    };
    const int64_t crew;  // threads, the caller included
    const std::unique_ptr<Part[]> parts;
    alignas(64) std::atomic<int64_t> done{0};

    alignas(64) std::atomic<bool> is_step{false};
    std::atomic<bool> stop{false};
    std::atomic<int> sleepers{0};
    std::mutex sleep;
    std::condition_variable wake;

    explicit Crew(int threads) : crew(threads), parts(std::make_unique<Part[]>(static_cast<size_t>(threads))) {}

    // A waiting worker watches the ticket of its own part alone: every other line that it read would have to come back to
    // the thread that writes it.
    void serve(int64_t thread) {
        const auto& own = parts[static_cast<size_t>(thread)].ticket;
        uint64_t last = 0;  // number of the last call that was seen
        for (int idle = 0; !stop.load(std::memory_order_relaxed);) {
            const uint64_t seen = own.load(std::memory_order_acquire), number = seen >> kItemBits;
            if (number != last && (seen & kClosed) != kClosed) {
                last = number;
                try_items(thread);
                idle = 0;
            } else if (++idle < kSpins || (idle < kStepSpins && is_step.load(std::memory_order_relaxed))) {
                relax();
            } else if (is_step.load(std::memory_order_relaxed)) {
                std::this_thread::yield();
            } else {
                wait_for_work(own, last);
                idle = 0;
            }
        }
    }

    // Compute what can be claimed of the current call, of the thread's own part first.
    void try_items(int64_t thread) {
        for (int64_t turn = 0; turn < crew; ++turn) try_part((thread + turn) % crew);
    }

    void try_part(int64_t part) {
        int64_t computed = 0;
        auto& ticket = parts[static_cast<size_t>(part)].ticket;
        uint64_t seen = ticket.load(std::memory_order_acquire);
        for (;;) {
            const int64_t end = first_of(part + 1), step = claim.load(std::memory_order_acquire);
            const Task call = task.load(std::memory_order_acquire);
            const void* what = context.load(std::memory_order_acquire);
            const int64_t first = next_item(seen);
            if (first >= end) break;
            const int64_t last = std::min(end, first + step);
            const uint64_t next = seen + static_cast<uint64_t>(last - first);
            if (!ticket.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            for (int64_t item = first; item < last; ++item) call(what, item);
            computed += last - first;
            seen = next;
        }
        if (computed > 0) done.fetch_add(computed, std::memory_order_release);
    }

    // The first item of a part, or where the last part ends.
    int64_t first_of(int64_t part) const { return count.load(std::memory_order_acquire) * part / crew; }

    void wait_for_work(const std::atomic<uint64_t>& own, uint64_t last) {
        std::unique_lock<std::mutex> lock(sleep);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return stop.load() || is_step.load() || own.load() >> kItemBits != last; });
        sleepers.fetch_sub(1);
    }

    // Every load and store around `sleepers` is sequentially consistent: either the worker sees the work, or it is seen.
    void wake_sleepers() {
        if (sleepers.load() == 0) return;
        { std::lock_guard<std::mutex> lock(sleep); }
        wake.notify_all();
    }

    void run(int64_t total, Task call, const void* what) {
        const uint64_t number = ((parts[0].ticket.load(std::memory_order_relaxed) >> kItemBits) + 1) << kItemBits;
        for (int64_t part = 0; part < crew; ++part) {
            parts[static_cast<size_t>(part)].ticket.store(number | kClosed, std::memory_order_relaxed);
        }
        task.store(call, std::memory_order_release);
        context.store(what, std::memory_order_release);
        count.store(total, std::memory_order_release);
        claim.store(std::max<int64_t>(1, total / (crew * kClaims)), std::memory_order_release);
        done.store(0, std::memory_order_relaxed);
        for (int64_t part = 0; part < crew; ++part) {
            parts[static_cast<size_t>(part)].ticket.store(number | static_cast<uint64_t>(first_of(part)));
        }
        wake_sleepers();
        try_items(0);
        for (int spin = 0; done.load(std::memory_order_acquire) != total; ++spin) {
            if (spin < kSpins) {
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }
};

Pool::Pool(int threads) : threads_(threads), owner_(getpid()), crew_(std::make_unique<Crew>(threads)) {
    Crew* crew = crew_.get();
    for (int i = 1; i < threads; ++i) crew->workers.emplace_back([crew, i] { crew->serve(i); });
}

Pool::~Pool() {
    if (getpid() != owner_) {
        // A forked child: the workers do not exist here, and joining them, or destroying what they wait for, never ends.
        static_cast<void>(crew_.release());
        return;
    }
    {
        std::lock_guard<std::mutex> lock(crew_->sleep);
        crew_->stop.store(true);
    }
    crew_->wake.notify_all();
    for (auto& worker : crew_->workers) worker.join();
}

bool Pool::try_take_turn() { return threads_ > 1 && getpid() == owner_ && crew_->turn.try_lock(); }

void Pool::run(int64_t count, Task task, const void* context) {
    if (is_in_step()) {
        if (count < 2 || !current_step()->has_pool_) return run_alone(count, task, context);
        return crew_->run(count, task, context);
    }
    if (count < 2 || !try_take_turn()) return run_alone(count, task, context);
    std::lock_guard<std::mutex> turn(crew_->turn, std::adopt_lock);
    crew_->run(count, task, context);
}

bool Pool::is_in_step() const { return current_step() && &current_step()->pool_ == this; }

Pool::Step*& Pool::current_step() {
    thread_local Step* step = nullptr;
    return step;
}

Pool::Step::Step(Pool& pool) : pool_(pool), before_(current_step()), has_pool_(pool.try_take_turn()) {
    current_step() = this;
    if (!has_pool_) return;
    pool_.crew_->is_step.store(true);
    pool_.crew_->wake_sleepers();
}

Pool::Step::~Step() {
    current_step() = before_;
    if (!has_pool_) return;
    pool_.crew_->is_step.store(false);
    pool_.crew_->turn.unlock();
}

}  // namespace vivace
