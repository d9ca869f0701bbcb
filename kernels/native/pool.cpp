// The pool's threads, and how work reaches them.
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "stalls.h"

namespace graftlm {
namespace {

// Longer than the pause between two kernels of a step, shorter than anybody would notice.
constexpr auto kSpin = std::chrono::microseconds(40);

using Clock = Stalls::Clock;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// `word` holds the number of chunks and the next one to claim, below a generation that makes each job's words
// differ. A claim is a compare-and-swap of the whole word, so a late thread cannot claim from a job it has not seen.
constexpr int kBits = 24;
constexpr uint64_t kMask = (1u << kBits) - 1;

uint64_t next_of(uint64_t word) { return word & kMask; }
uint64_t limit_of(uint64_t word) { return (word >> kBits) & kMask; }

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int index = 1; index < threads; ++index) std::thread([this, index] { work(index); }).detach();
  }

  int threads() const { return threads_; }

  void run(uint64_t chunks, ChunkFunction function, void* context) {
    std::unique_lock<std::mutex> own(busy_, std::try_to_lock);
    // Another thread of this process computes just now, or another process has the cores.
    if (!own.owns_lock() || stalls_.alone()) {
      for (uint64_t chunk = 0; chunk < chunks; ++chunk) function(context, static_cast<int64_t>(chunk), 0);
      return;
    }
    function_ = function;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ++generation_;
    word_.store((generation_ << (2 * kBits)) | (chunks << kBits), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      epoch_.fetch_add(1);
      epoch_.notify_all();
    }
    while (claim_one(0)) {
    }
    for (int spins = 0; spins < 400; ++spins) {
      if (done_.load(std::memory_order_acquire) == chunks) return;
      pause();
    }
    const auto since = Clock::now();
    while (done_.load(std::memory_order_acquire) != chunks) sched_yield();  // it may be waiting for this very core
    const auto now = Clock::now();
    stalls_.waited(since, now);
  }

  void forget_stalls() {
    std::lock_guard<std::mutex> own(busy_);
    stalls_.forget();
  }

  // Threads end by themselves once they see it; the pool itself is never freed.
  void stop() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }

 private:
  bool claim_one(int thread) {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (next_of(word) < limit_of(word)) {
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) {
        function_(context_, static_cast<int64_t>(next_of(word)), thread);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void work(int index) {
    auto last = Clock::now();
    for (unsigned spins = 0; !stop_.load(std::memory_order_relaxed); ++spins) {
      if (claim_one(index)) {
        last = Clock::now();
        continue;
      }
      pause();
      if (spins % 32 || Clock::now() - last < kSpin) continue;
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
      const uint64_t word = word_.load(std::memory_order_seq_cst);
      if (next_of(word) >= limit_of(word) && !stop_.load()) epoch_.wait(epoch);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      last = Clock::now();
    }
  }

  const int threads_;
  std::mutex busy_;
  Stalls stalls_;  // of who holds `busy_`
  uint64_t generation_ = 0;
  ChunkFunction function_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> word_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

std::atomic<int> wanted{1};
std::atomic<Pool*> current{nullptr};
std::mutex changing;

// A forked child has none of its parent's threads.
void after_fork() {
  current.store(nullptr);
  new (&changing) std::mutex();
}

Pool& pool() {
  Pool* found = current.load(std::memory_order_acquire);
  if (found && found->threads() == wanted.load(std::memory_order_relaxed)) return *found;
  std::lock_guard<std::mutex> lock(changing);
  found = current.load(std::memory_order_acquire);
  if (!found || found->threads() != wanted.load()) {
    static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
    static_cast<void>(registered);
    if (found) found->stop();
    found = new Pool(wanted.load());
    current.store(found, std::memory_order_release);
  }
  return *found;
}

struct Buffer {
  void* memory = nullptr;
  int64_t bytes = 0;
  ~Buffer() { std::free(memory); }
};

}  // namespace

int num_threads() { return wanted.load(std::memory_order_relaxed); }

void set_num_threads(int count) { wanted.store(count < 1 ? 1 : count); }

void run_chunks(int64_t chunks, ChunkFunction function, void* context) {
  if (chunks <= 0) return;
  if (chunks == 1 || num_threads() == 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) function(context, chunk, 0);
    return;
  }
  Pool& threads = pool();
  const auto most = static_cast<int64_t>(kMask);
  if (chunks <= most) {
    threads.run(static_cast<uint64_t>(chunks), function, context);
    return;
  }
  struct Part {
    ChunkFunction function;
    void* context;
    int64_t begin;
  };
  for (int64_t begin = 0; begin < chunks; begin += most) {
    Part part{function, context, begin};
    const int64_t count = chunks - begin < most ? chunks - begin : most;
    threads.run(
        static_cast<uint64_t>(count),
        [](void* given, int64_t chunk, int thread) {
          auto* own = static_cast<Part*>(given);
          own->function(own->context, own->begin + chunk, thread);
        },
        &part);
  }
}

void forget_stalls() {
  if (num_threads() > 1) pool().forget_stalls();
}

void* scratch(int place, int64_t bytes) {
  static thread_local Buffer buffers[4];
  Buffer& buffer = buffers[place];
  if (buffer.bytes < bytes) {
    std::free(buffer.memory);
    buffer.memory = nullptr;
    buffer.bytes = 0;
    const int64_t rounded = (bytes + bytes / 4 + 63) / 64 * 64;
    buffer.memory = std::aligned_alloc(64, static_cast<size_t>(rounded));
    if (!buffer.memory) throw std::bad_alloc();
    buffer.bytes = rounded;
  }
  return buffer.memory;
}

}  // namespace graftlm
