// The threads that run an operator together: a number, a barrier, and a shared counter.
#pragma once
#include <atomic>
#include <chrono>

#ifdef __SSE2__
#include <immintrin.h>
#endif

// Pauses of 24 nanoseconds, measured on Zen 4 at 2.6 GHz.
constexpr int MAX_SPINS = 2000, MIN_SPINS = 32;
constexpr int SPINS_BACK = 8;  // with each wait that was not in vain
// A share of work that is larger than the others' is done sooner than this.
constexpr std::chrono::microseconds SLICE{150};

struct TeamState {
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> num_arrived{0};
  alignas(64) std::atomic<int> generation{0};
};

class Team {
 public:
  Team(TeamState& state, int thread, int size) : state_(state), thread_(thread), size_(size) {}

  int thread() const { return thread_; }
  int size() const { return size_; }

  // Waits for the others: some microseconds by spinning, then asleep. Where the cores are not
  // ours alone, spinning takes the time of those that are waited for: who waited as long as
  // another program may have a core spins half as long the next time.
  void barrier() {
    if (size_ == 1) {
      state_.next.store(0, std::memory_order_relaxed);
      return;
    }
    int generation = state_.generation.load(std::memory_order_acquire);
    if (state_.num_arrived.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      state_.num_arrived.store(0, std::memory_order_relaxed);
      state_.next.store(0, std::memory_order_relaxed);
      // In the one order of all threads: notify_all wakes nobody where it finds that nobody
      // sleeps, and were it to look before the store is seen, who falls asleep in between would
      // sleep forever.
      state_.generation.store(generation + 1, std::memory_order_seq_cst);
      state_.generation.notify_all();
      return;
    }
    for (int spins = 0; state_.generation.load(std::memory_order_acquire) == generation; spins++) {
      if (spins >= spins_) {
        auto asleep = std::chrono::steady_clock::now();
        state_.generation.wait(generation, std::memory_order_acquire);
        if (std::chrono::steady_clock::now() - asleep > SLICE) spins_ = spins_ / 2 + MIN_SPINS;
        return;
      }
#ifdef __SSE2__
      _mm_pause();
#endif
    }
    spins_ = spins_ + SPINS_BACK < MAX_SPINS ? spins_ + SPINS_BACK : MAX_SPINS;
  }

  // Calls f(i, next) for each i below count; next is the i of the same thread's next call, or
  // count if there is none, so that what it needs can be sent for. All are done on return.
  template <class F>
  void each_ahead(int64_t count, F&& f) {
    int64_t i = state_.next.fetch_add(1, std::memory_order_relaxed);
    while (i < count) {
      int64_t next = state_.next.fetch_add(1, std::memory_order_relaxed);
      f(i, next < count ? next : count);
      i = next;
    }
    barrier();
  }

  // Calls f(first, last) once, with this thread's share of count; all are done on return.
  template <class F>
  void share(int64_t count, F&& f) {
    int64_t first = count * thread_ / size_, last = count * (thread_ + 1) / size_;
    if (first < last) f(first, last);
    barrier();
  }

 private:
  TeamState& state_;
  int thread_, size_;
  int spins_ = MAX_SPINS;
};
