#include "pool.h"

#include <unistd.h>

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

Pool::Pool(int threads) : owner_(getpid()) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
}

Pool::~Pool() {
    if (getpid() != owner_) {  // a forked child: the threads do not exist here and cannot be joined
        for (auto& worker : workers_) worker.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(sleep_);
        stop_.store(true);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run(int64_t count, Task task, const void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock() || count < 2 || workers_.empty() || getpid() != owner_) {
        for (int64_t item = 0; item < count; ++item) task(context, item);
        return;
    }
    task_ = task;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    {
        std::lock_guard<std::mutex> lock(sleep_);
        call_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take_items();
    for (int spin = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spin) {
        if (spin < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

void Pool::serve() {
    for (uint64_t seen = 0;;) {
        seen = wait_for_call(seen);
        if (stop_.load()) return;
        take_items();
        unfinished_.fetch_sub(1, std::memory_order_release);
    }
}

void Pool::take_items() {
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= count_) return;
        task_(context_, item);
    }
}

uint64_t Pool::wait_for_call(uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
        const uint64_t call = call_.load(std::memory_order_acquire);
        if (call != seen || stop_.load(std::memory_order_relaxed)) return call;
        relax();
    }
    std::unique_lock<std::mutex> lock(sleep_);
    wake_.wait(lock, [&] { return call_.load(std::memory_order_acquire) != seen || stop_.load(); });
    return call_.load(std::memory_order_acquire);
}

}  // namespace vivace
