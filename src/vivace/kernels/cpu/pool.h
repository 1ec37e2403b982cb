// A small persistent thread pool: one call at a time, items shared out by a counter, the caller works too.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

namespace vivace {

class Pool {
public:
    using Task = void (*)(const void* context, int64_t item);

    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }

    // Call task(context, item) for every item below count. Tasks must not throw. A second caller that comes while the
    // pool is busy, or a forked child (which has no workers), computes its items alone.
    void run(int64_t count, Task task, const void* context);

private:
    struct Crew;

    const int threads_;
    const pid_t owner_;
    std::unique_ptr<Crew> crew_;
};

}  // namespace vivace
