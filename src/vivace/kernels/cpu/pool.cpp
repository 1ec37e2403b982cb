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
// Threads claim a part of the items at a time: several parts each, so that a slow thread delays nobody for long.
constexpr int64_t kClaims = 4;

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
// A claim succeeds only while its call is the current one, so a worker that comes late finds nothing and nobody waits for
// it: the caller waits for claimed items alone. A call is described while the ticket is closed. Who reads a part of the
// next description fails to claim by the old ticket, because it was closed before.
struct Pool::Crew {
    std::vector<std::thread> workers;
    std::mutex turn;  // held by the caller whose items are being computed

    std::atomic<Task> task{nullptr};
    std::atomic<const void*> context{nullptr};
    std::atomic<int64_t> count{0};
    std::atomic<int64_t> claim{1};  // items taken at a time
    alignas(64) std::atomic<uint64_t> ticket{kClosed};
    alignas(64) std::atomic<int64_t> done{0};

    alignas(64) std::atomic<bool> is_step{false};
    std::atomic<bool> stop{false};
    std::atomic<int> sleepers{0};
    std::mutex sleep;
    std::condition_variable wake;

    void serve() {
        for (int idle = 0; !stop.load(std::memory_order_relaxed);) {
            if (try_items()) {
                idle = 0;
            } else if (++idle < kSpins || (idle < kStepSpins && is_step.load(std::memory_order_relaxed))) {
                relax();
            } else if (is_step.load(std::memory_order_relaxed)) {
                std::this_thread::yield();
            } else {
                wait_for_work();
                idle = 0;
            }
        }
    }

    // Compute what can be claimed of the current call; false if there was nothing.
    bool try_items() {
        bool has_worked = false;
        uint64_t seen = ticket.load(std::memory_order_acquire);
        for (;;) {
            const int64_t total = count.load(std::memory_order_acquire), step = claim.load(std::memory_order_acquire);
            const Task call = task.load(std::memory_order_acquire);
            const void* what = context.load(std::memory_order_acquire);
            const int64_t first = next_item(seen);
            if (first >= total) return has_worked;
            const int64_t last = std::min(total, first + step);
            const uint64_t next = seen + static_cast<uint64_t>(last - first);
            if (!ticket.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            for (int64_t item = first; item < last; ++item) call(what, item);
            done.fetch_add(last - first, std::memory_order_release);
            has_worked = true;
            seen = next;
        }
    }

    void wait_for_work() {
        std::unique_lock<std::mutex> lock(sleep);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return stop.load() || is_step.load() || has_items(); });
        sleepers.fetch_sub(1);
    }

    bool has_items() const { return next_item(ticket.load()) < count.load(); }

    // Every load and store around `sleepers` is sequentially consistent: either the worker sees the work, or it is seen.
    void wake_sleepers() {
        if (sleepers.load() == 0) return;
        { std::lock_guard<std::mutex> lock(sleep); }
        wake.notify_all();
    }

    void run(int64_t total, Task call, const void* what) {
        const auto crew = static_cast<int64_t>(workers.size()) + 1;
        const uint64_t number = ((ticket.load(std::memory_order_relaxed) >> kItemBits) + 1) << kItemBits;
        ticket.store(number | kClosed);
        task.store(call, std::memory_order_release);
        context.store(what, std::memory_order_release);
        count.store(total, std::memory_order_release);
        claim.store(std::max<int64_t>(1, total / (crew * kClaims)), std::memory_order_release);
        done.store(0, std::memory_order_relaxed);
        ticket.store(number);
        wake_sleepers();
        try_items();
        for (int spin = 0; done.load(std::memory_order_acquire) != total; ++spin) {
            if (spin < kSpins) {
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }
};

Pool::Pool(int threads) : threads_(threads), owner_(getpid()), crew_(std::make_unique<Crew>()) {
    Crew* crew = crew_.get();
    for (int i = 1; i < threads; ++i) crew->workers.emplace_back([crew] { crew->serve(); });
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
