// A team of threads that run one function together, with barriers and shared counters of work inside it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace anchorstream {

// Not thread-safe itself: one thread at a time calls run, and takes part as member 0.
class Team {
  public:
    explicit Team(int size);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    int size() const { return size_; }

    // Runs body(member) on every member and returns when all have finished. `body` must not throw.
    void run(const std::function<void(int)> &body);

    // The next of `total` pieces of the current stage, or -1 when none is left. Only inside run.
    int claim(int total) {
        const int piece = counters_[stage_ % kCounters].next.fetch_add(1, std::memory_order_relaxed);
        return piece < total ? piece : -1;
    }

    // Waits until every member has arrived; then the next stage begins, its counter at 0. Only inside run.
    void barrier();

  private:
    static constexpr int kCounters = 4;
    struct alignas(64) Counter {
        std::atomic<int> next{0};
    };

    void work(int member);

    const int size_;
    alignas(64) std::atomic<unsigned> stage_{0};
    alignas(64) std::atomic<int> arrived_{0};
    Counter counters_[kCounters];
    alignas(64) std::atomic<unsigned> round_{0}; // counts calls of run
    alignas(64) std::atomic<int> running_{0};
    std::atomic<bool> quit_{false};
    const std::function<void(int)> *body_ = nullptr;
    std::vector<std::thread> threads_;
};

} // namespace anchorstream
