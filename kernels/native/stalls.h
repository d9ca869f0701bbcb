// Whether a caller should compute alone for a while, since another process has the core of the thread it waits for.
//
// A thread whose core is taken keeps the chunk that it holds for a tick or more of the system's scheduler: milliseconds
// in which the caller could have computed it several times. It knows neither the pool nor what is computed.
#pragma once

#include <algorithm>
#include <chrono>

namespace graftlm {

class Stalls {
 public:
  using Clock = std::chrono::steady_clock;

  // Asked before each job; reads the clock only while the caller computes alone.
  bool alone() { return until_ != Clock::time_point{} && alone(Clock::now()); }

  bool alone(Clock::time_point now) {
    if (now < until_) return true;
    if (until_ != Clock::time_point{}) tried_at_ = now;
    until_ = {};
    return false;
  }

  // What was waited for was no core: nothing follows from it.
  void forget() { *this = {}; }

  // Told how long the caller waited when it had nothing left to compute itself.
  void waited(Clock::time_point since, Clock::time_point now) {
    if (now - since < kStall) return;
    const bool again = now - tried_at_ < kClose;  // the first one after a time alone is enough
    count_ = now - last_ < kClose ? count_ + 1 : 1;
    last_ = now;
    if (!again && count_ < kStalls) return;
    length_ = again ? std::min(2 * length_, kLongest) : kShortest;
    until_ = now + length_;
    count_ = 0;
  }

 private:
  // Shorter waits are for threads that have not lost their core.
  static constexpr std::chrono::milliseconds kStall{3};
  // So many stalls so close together, and the core is taken; one alone may be anything.
  static constexpr int kStalls = 3;
  static constexpr std::chrono::milliseconds kClose{50};
  // Times alone double while the core stays taken.
  static constexpr std::chrono::milliseconds kShortest{100}, kLongest{6400};

  Clock::time_point until_{}, tried_at_{}, last_{};
  std::chrono::milliseconds length_ = kShortest;
  int count_ = 0;
};

}  // namespace graftlm
