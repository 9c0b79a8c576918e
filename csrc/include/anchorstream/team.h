// A team of threads that run one function together, with barriers and shared counters of work inside it.
#pragma once

#include <atomic>
#include <cstdint>
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

    // The next of `total` pieces of the current stage, or -1 when none is left. Each member has a range of its own, so
    // that it reads memory in order, and helps the others when it is through. Only inside run.
    int claim(int member, int total) {
        Counter *counters =
            &counters_[static_cast<size_t>(stage_.load(std::memory_order_relaxed) % kStages * static_cast<unsigned>(size_))];
        for (int i = 0; i < size_; ++i) {
            const int owner = (member + i) % size_;
            const int piece = begin(owner, total) + counters[owner].next.fetch_add(1, std::memory_order_relaxed);
            if (piece < begin(owner + 1, total)) return piece;
        }
        return -1;
    }

    // The first piece of a member's own range.
    int begin(int member, int total) const { return static_cast<int>(static_cast<int64_t>(total) * member / size_); }

    // Waits until every member has arrived; then the next stage begins, its counter at 0. Only inside run.
    void barrier();

  private:
    static constexpr unsigned kStages = 4; // the counters of a stage are cleared two stages ahead
    struct alignas(64) Counter {
        std::atomic<int> next{0};
    };

    void work(int member);

    const int size_;
    alignas(64) std::atomic<unsigned> stage_{0};
    alignas(64) std::atomic<int> arrived_{0};
    std::vector<Counter> counters_;              // [stage % kStages][member]
    alignas(64) std::atomic<unsigned> round_{0}; // counts calls of run
    alignas(64) std::atomic<int> running_{0};
    std::atomic<bool> quit_{false};
    const std::function<void(int)> *body_ = nullptr;
    std::vector<std::thread> threads_;
};

} // namespace anchorstream
