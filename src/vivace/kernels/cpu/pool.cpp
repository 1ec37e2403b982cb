#include "pool.h"

#include <unistd.h>

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

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// The workers and what they share with the caller.
struct Pool::Crew {
    std::vector<std::thread> workers;
    std::mutex turn;  // held by the caller whose items are being computed

    Task task = nullptr;
    const void* context = nullptr;
    int64_t count = 0;
    std::atomic<int64_t> next{0};
    std::atomic<int> unfinished{0};

    std::mutex sleep;
    std::condition_variable wake;
    std::atomic<uint64_t> call{0};
    std::atomic<bool> stop{false};

    void serve() {
        for (uint64_t seen = 0;;) {
            seen = wait_for_call(seen);
            if (stop.load()) return;
            take_items();
            unfinished.fetch_sub(1, std::memory_order_release);
        }
    }

    void take_items() {
        for (;;) {
            const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= count) return;
            task(context, item);
        }
    }

    uint64_t wait_for_call(uint64_t seen) {
        for (int spin = 0; spin < kSpins; ++spin) {
            const uint64_t current = call.load(std::memory_order_acquire);
            if (current != seen || stop.load(std::memory_order_relaxed)) return current;
            relax();
        }
        std::unique_lock<std::mutex> lock(sleep);
        wake.wait(lock, [&] { return call.load(std::memory_order_acquire) != seen || stop.load(); });
        return call.load(std::memory_order_acquire);
    }

    void announce() {
        {
            std::lock_guard<std::mutex> lock(sleep);
            call.fetch_add(1, std::memory_order_release);
        }
        wake.notify_all();
    }

    void wait_for_workers() const {
        for (int spin = 0; unfinished.load(std::memory_order_acquire) != 0; ++spin) {
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

void Pool::run(int64_t count, Task task, const void* context) {
    std::unique_lock<std::mutex> turn(crew_->turn, std::try_to_lock);
    if (!turn.owns_lock() || count < 2 || threads_ == 1 || getpid() != owner_) {
        for (int64_t item = 0; item < count; ++item) task(context, item);
        return;
    }
    crew_->task = task;
    crew_->context = context;
    crew_->count = count;
    crew_->next.store(0, std::memory_order_relaxed);
    crew_->unfinished.store(threads_ - 1, std::memory_order_relaxed);
    crew_->announce();
    crew_->take_items();
    crew_->wait_for_workers();
}

}  // namespace vivace
