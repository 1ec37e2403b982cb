// A small persistent thread pool: one call at a time, its items in one part for each thread, the caller works too.
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

    // Call task(context, item) for every item below count (below 2^32 - 1). Tasks must not throw. A second caller that comes
    // while the pool is busy, or a forked child (which has no workers), computes its items alone.
    void run(int64_t count, Task task, const void* context);

    // While a Step lives, the pool belongs to the thread that made it, and its workers do not sleep between calls: they
    // pause, then yield. Where the pool is busy, or in a forked child, that thread computes alone.
    class Step {
    public:
        explicit Step(Pool& pool);
        ~Step();
        Step(const Step&) = delete;
        Step& operator=(const Step&) = delete;

    private:
        friend class Pool;
        Pool& pool_;
        Step* const before_;
        const bool has_pool_;
    };

    // Whether this thread is in a Step of this pool, so that sharing out work costs less than a microsecond.
    bool is_in_step() const;

private:
    struct Crew;

    // The step that this thread is in: of this pool or of another.
    static Step*& current_step();

    bool try_take_turn();

    const int threads_;
    const pid_t owner_;
    std::unique_ptr<Crew> crew_;
};

}  // namespace vivace
