// A step's kernel calls, kept to be run again as one call with other inputs.
//
// Calls are kept by the thread that records them, in the order in which it makes them. What they read and write stays
// where it is, but for the addresses that were named as the step's inputs. It knows no kernel.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace graftlm {

// What differs from step to step: addresses, the block table's row stride, and among how many requests (0: as it was
// said in the call) the step's tokens are shared.
constexpr int kStepInputs = 6;
struct StepInputs {
  std::array<uintptr_t, kStepInputs> addresses{};
  int64_t table_stride = 0;
  int64_t requests = 0;
};

class CapturedStep {
 public:
  using Call = std::function<void(const StepInputs&)>;

  explicit CapturedStep(const StepInputs& inputs) : inputs_(inputs) {}
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;
  ~CapturedStep() { end(); }

  // From now on this thread's calls are kept, and run as ever.
  void begin() { recording() = this; }
  void end() {
    if (recording() == this) recording() = nullptr;
  }

  void run(const StepInputs& inputs) const {
    for (const Call& call : calls_) call(inputs);
  }

  int64_t size() const { return static_cast<int64_t>(calls_.size()); }

 private:
  friend class Place;
  template <class Body>
  friend void run_kept(Body&& body);

  static CapturedStep*& recording() {
    static thread_local CapturedStep* current = nullptr;
    return current;
  }

  StepInputs inputs_;
  std::vector<Call> calls_;
};

// An address that a kept call may find elsewhere in a later step.
class Place {
 public:
  explicit Place(uintptr_t address) : address_(address) {
    const CapturedStep* step = CapturedStep::recording();
    for (int i = 0; step && address && i < kStepInputs; ++i)
      if (step->inputs_.addresses[i] == address) input_ = i;
  }

  template <class T>
  T* in(const StepInputs& inputs) const {
    return reinterpret_cast<T*>(input_ < 0 ? address_ : inputs.addresses[input_]);
  }

 private:
  uintptr_t address_;
  int input_ = -1;
};

// Runs `body(inputs)` now, and keeps it where this thread is recording.
template <class Body>
void run_kept(Body&& body) {
  CapturedStep* step = CapturedStep::recording();
  body(step ? step->inputs_ : StepInputs{});
  if (step) step->calls_.push_back(std::forward<Body>(body));
}

}  // namespace graftlm
