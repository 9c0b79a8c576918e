#include "anchorstream/team.h"

#include <csignal>
#include <pthread.h>

namespace anchorstream {
namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A stage lasts microseconds, so members spin; where threads outnumber processors they must give way in the end.
template <class Done> void spin_until(Done done) {
    for (int i = 0; !done(); ++i) {
        if (i < 20000) pause();
        else std::this_thread::yield();
    }
}

} // namespace

Team::Team(int size) : size_(size), counters_(kStages * static_cast<size_t>(size)) {
    sigset_t all, before; // signals belong to the interpreter's thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int member = 1; member < size_; ++member) threads_.emplace_back([this, member] { work(member); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::~Team() {
    quit_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)> &body) {
    body_ = &body;
    running_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    body(0);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
    // Every member is out: the counters of both this and the next stage may start anew.
    for (Counter &counter : counters_) counter.next.store(0, std::memory_order_relaxed);
}

void Team::work(int member) {
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < 20000 && round_.load(std::memory_order_acquire) == seen; ++i) pause();
        round_.wait(seen, std::memory_order_acquire); // returns at once if the round has changed
        ++seen;
        if (quit_) return;
        (*body_)(member);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

void Team::barrier() {
    const unsigned stage = stage_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        const size_t later = (stage + 2) % kStages * static_cast<size_t>(size_);
        for (size_t i = 0; i < static_cast<size_t>(size_); ++i) counters_[later + i].next.store(0, std::memory_order_relaxed);
        arrived_.store(0, std::memory_order_relaxed);
        stage_.store(stage + 1, std::memory_order_release);
    } else {
        spin_until([&] { return stage_.load(std::memory_order_acquire) != stage; });
    }
}

} // namespace anchorstream
