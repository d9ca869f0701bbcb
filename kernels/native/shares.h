// One job cut into units, of which each thread has a row of its own: neighbours follow each other on one core, whose
// caches then hold what was fetched ahead. Who has no more takes from the others. It knows no kernel.
#pragma once

#include <algorithm>
#include <atomic>

#include "pool.h"

namespace graftlm {

class Shares {
 public:
  Shares(int64_t units, int64_t count) : count_(std::clamp<int64_t>(count, 1, kMost)) {
    for (int64_t i = 0; i < count_; ++i) {
      shares_[i].left.store(word(units * i / count_, units * (i + 1) / count_), std::memory_order_relaxed);
      shares_[i].has_begun.store(false, std::memory_order_relaxed);
    }
  }

  // The next unit for a thread, or -1.
  int64_t claim(int64_t thread) {
    const int64_t own = thread % count_;
    shares_[own].has_begun.store(true, std::memory_order_relaxed);
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t unit = claim_from(shares_[(own + i) % count_], i > 0);
      if (unit >= 0) return unit;
    }
    return -1;
  }

 private:
  static constexpr int64_t kMost = 32;

  struct alignas(64) Share {
    std::atomic<uint64_t> left;  // the first unit, and the one behind the last
    std::atomic<bool> has_begun;  // its owner
  };

  static uint64_t word(int64_t begin, int64_t end) { return static_cast<uint64_t>(end << 32 | begin); }

  // From the front; where its owner is at work too, others take from the back.
  static int64_t claim_from(Share& share, bool is_others) {
    const bool back = is_others && share.has_begun.load(std::memory_order_relaxed);
    uint64_t now = share.left.load(std::memory_order_relaxed);
    while (true) {
      const auto begin = static_cast<int64_t>(now & 0xffffffffu), end = static_cast<int64_t>(now >> 32);
      if (begin >= end) return -1;
      const uint64_t rest = back ? word(begin, end - 1) : word(begin + 1, end);
      if (share.left.compare_exchange_weak(now, rest, std::memory_order_relaxed)) return back ? end - 1 : begin;
    }
  }

  int64_t count_;
  Share shares_[kMost];
};

// Calls begin(unit) on each thread that takes part, with its first unit, and body(own, unit) for each unit with what
// `begin` returned on that thread.
template <class Begin, class Body>
void for_shares(int64_t units, Begin&& begin, Body&& body) {
  const int64_t threads = std::min<int64_t>(num_threads(), units);
  if (threads <= 1) {
    const auto own = begin(int64_t{0});
    for (int64_t unit = 0; unit < units; ++unit) body(own, unit);
    return;
  }
  Shares shares(units, threads);
  for_chunks(threads, [&](int64_t, int thread) {
    int64_t unit = shares.claim(thread);
    if (unit < 0) return;
    const auto own = begin(unit);
    for (; unit >= 0; unit = shares.claim(thread)) body(own, unit);
  });
}

}  // namespace graftlm
