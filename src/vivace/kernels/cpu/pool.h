// A small persistent thread pool: one call at a time, items shared out by a counter, the caller works too.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace vivace {

class Pool {
public:
    using Task = void (*)(const void* context, int64_t item);

    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Call task(context, item) for every item below count. Tasks must not throw. A second caller that comes while the
    // pool is busy, or a forked child (which has no workers), computes its items alone.
    void run(int64_t count, Task task, const void* context);

private:
    void serve();
    void take_items();
    uint64_t wait_for_call(uint64_t seen);

    std::vector<std::thread> workers_;
    const pid_t owner_;
    std::mutex turn_;  // held by the caller whose items are being computed

    Task task_ = nullptr;
    const void* context_ = nullptr;
    int64_t count_ = 0;
    std::atomic<int64_t> next_{0};
    std::atomic<int> unfinished_{0};

    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<uint64_t> call_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace vivace
