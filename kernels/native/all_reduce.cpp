// Numbered messages in shared memory: no lock, and one meeting for each collective.
#include "all_reduce.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "path.h"
#include "pool.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <ctime>
#endif

namespace graftlm {

using namespace std::chrono_literals;

// A message of a decode step fits many times over; longer ones go in pieces.
static constexpr int64_t kSlotBytes = 1 << 20;
static constexpr int kSlots = 2;
static constexpr int64_t kMailboxBytes = 128;
// How long to look out for a message before sleeping: about what sleeping and being woken cost.
static constexpr std::chrono::nanoseconds kPatience = 30us, kLeastPatience = 2us;
// How often a sleeper looks whether the other rank still lives.
static constexpr std::chrono::nanoseconds kLookAround = 50ms;

struct SharedGroup::Mailbox {
  std::atomic<uint32_t> sent;      // the number of its last message
  std::atomic<uint32_t> sleepers;  // how many ranks wait for the next one
  std::atomic<int32_t> core;       // where it was sent from; 0 is unknown
  std::atomic<int64_t> bytes[kSlots];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

static void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Numbers begin anew after 2^32 messages.
static bool reached(uint32_t number, uint32_t wanted) { return static_cast<int32_t>(number - wanted) >= 0; }

static void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  const timespec limit{0, kLookAround.count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
#else
  static_cast<void>(word), static_cast<void>(value);
  std::this_thread::sleep_for(50us);
#endif
}

static void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
#else
  static_cast<void>(word);
#endif
}

[[maybe_unused]] static struct flock byte_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

// The core that this thread runs on, counted from 1; 0 where nobody says.
static int32_t own_core() {
#if defined(__linux__)
  return sched_getcpu() + 1;
#else
  return 0;
#endif
}

int64_t SharedGroup::bytes_for(int size) { return size * (kMailboxBytes + kSlots * kSlotBytes); }

SharedGroup::SharedGroup(void* memory, int rank, int size)
    : rank_(rank), size_(size), memory_(static_cast<char*>(memory)), patience_(kPatience) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(size) + "; at most " +
                                std::to_string(kMostRanks) + " share memory");
  }
}

SharedGroup::SharedGroup(int descriptor, int rank, int size) : SharedGroup(nullptr, rank, size) {
  const auto bytes = static_cast<size_t>(bytes_for(size));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of shared memory");
  descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  bool marked = descriptor_ >= 0;
#ifdef F_OFD_SETLK
  // A lock on the rank's own byte of the file, which goes with the process, however it ends.
  struct flock lock = byte_of(rank);
  marked = marked && fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
#endif
  if (!marked) {
    const int problem = errno;
    munmap(memory, bytes);
    if (descriptor_ >= 0) close(descriptor_);
    throw std::system_error(problem, std::generic_category(), "lock on shared memory");
  }
  memory_ = static_cast<char*>(memory);
}

SharedGroup::~SharedGroup() {
  if (descriptor_ < 0) return;
  munmap(memory_, static_cast<size_t>(bytes_for(size_)));
  close(descriptor_);
}

SharedGroup::Mailbox& SharedGroup::mailbox(int rank) const {
  static_assert(sizeof(Mailbox) <= kMailboxBytes);
  return *std::launder(reinterpret_cast<Mailbox*>(memory_ + rank * kMailboxBytes));
}

char* SharedGroup::slot(int rank, uint32_t number) const {
  return memory_ + size_ * kMailboxBytes + (rank * kSlots + number % kSlots) * kSlotBytes;
}

bool SharedGroup::is_alive(int rank) const {
#ifdef F_OFD_SETLK
  struct flock lock = byte_of(rank);
  return descriptor_ < 0 || fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
#else
  static_cast<void>(rank);
  return true;
#endif
}

void SharedGroup::sleep_until(Mailbox& box, int rank, uint32_t number) {
  // The sender looks for sleepers after it has written, a sleeper at the number after it has said so.
  box.sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool gone = false;
  auto looked = std::chrono::steady_clock::now();
  for (;;) {
    const uint32_t seen = box.sent.load(std::memory_order_seq_cst);
    if (reached(seen, number)) break;
    if (gone) {
      box.sleepers.fetch_sub(1);
      throw std::runtime_error("rank " + std::to_string(rank) + " has ended; rank " + std::to_string(rank_) +
                               " waits for its part of a collective in vain");
    }
    sleep_while(box.sent, seen);
    if (const auto now = std::chrono::steady_clock::now(); now - looked >= kLookAround) {
      looked = now;
      gone = !is_alive(rank);  // what it sent before it ended still counts
    }
  }
  box.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void SharedGroup::wait_for(int rank, uint32_t number) {
  Mailbox& box = mailbox(rank);
  if (reached(box.sent.load(std::memory_order_acquire), number)) return;
  // A rank that waits for this very core gets it by sleep alone.
  const int32_t core = box.core.load(std::memory_order_relaxed);
  if (core != 0 && core == own_core()) {
    sleep_until(box, rank, number);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int spins = 0; spins < 32; ++spins) {
      pause();
      if (reached(box.sent.load(std::memory_order_acquire), number)) {
        patience_ = kPatience;
        return;
      }
    }
  } while (std::chrono::steady_clock::now() - begin < patience_);
  sleep_until(box, rank, number);
  // Spinning through a long wait gains nothing, and may take the core from whom it waits for.
  const bool was_short = std::chrono::steady_clock::now() - begin < kPatience;
  patience_ = was_short ? kPatience : std::max(patience_ / 2, kLeastPatience);
}

void SharedGroup::expect(int rank, uint32_t number, int64_t bytes) {
  wait_for(rank, number);
  const int64_t sent = mailbox(rank).bytes[number % kSlots].load(std::memory_order_relaxed);
  if (sent != bytes) {
    throw std::runtime_error("rank " + std::to_string(rank) + " sends " + std::to_string(sent) + " bytes where rank " +
                             std::to_string(rank_) + " expects " + std::to_string(bytes) +
                             "; all ranks must make the same collective calls");
  }
}

uint32_t SharedGroup::send(const void* data, int64_t bytes) {
  const uint32_t number = sent_ + 1;
  // A slot is free when everybody has sent the message after the one that it held: by then they have read it.
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) wait_for(rank, sent_);
  if (data) std::memcpy(slot(rank_, number), data, static_cast<size_t>(bytes));
  Mailbox& own = mailbox(rank_);
  own.bytes[number % kSlots].store(bytes, std::memory_order_relaxed);
  own.core.store(own_core(), std::memory_order_relaxed);
  own.sent.store(number, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) wake_all(own.sent);
  sent_ = number;
  return number;
}

void SharedGroup::all_reduce(void* x, int64_t count, DType type) {
  const Path& path = current_path();
  const int64_t most = kSlotBytes / size_of(type);
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t part = std::min(most, count - begin), bytes = part * size_of(type);
    void* own = at(x, begin, type);
    const uint32_t number = send(own, bytes);
    const void* parts[kMostRanks];
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) expect(rank, number, bytes);
      parts[rank] = rank == rank_ ? own : slot(rank, number);
    }
    const SumJob job{parts, size_, own, type};
    for_ranges(part, 16384, [&](int64_t first, int64_t last) { path.sum(job, first, last); });
  }
}

void SharedGroup::gather(const void* x, int64_t rows, int64_t row_bytes, void* out, bool sends) {
  const int64_t total = rows * row_bytes;
  for (int64_t begin = 0; begin < total; begin += kSlotBytes) {
    const int64_t part = std::min(kSlotBytes, total - begin);
    const char* own = static_cast<const char*>(x) + begin;
    const uint32_t number = send(sends ? own : nullptr, part);
    for (int rank = 0; out && rank < size_; ++rank) {
      const char* from = own;
      if (rank != rank_) {
        expect(rank, number, part);
        from = slot(rank, number);
      }
      for (int64_t done = 0; done < part;) {
        const int64_t row = (begin + done) / row_bytes, place = (begin + done) % row_bytes;
        const int64_t bytes = std::min(row_bytes - place, part - done);
        std::memcpy(static_cast<char*>(out) + (row * size_ + rank) * row_bytes + place, from + done,
            static_cast<size_t>(bytes));
        done += bytes;
      }
    }
  }
}

void SharedGroup::broadcast(void* x, int64_t bytes, int source) {
  for (int64_t begin = 0; begin < bytes; begin += kSlotBytes) {
    const int64_t part = std::min(kSlotBytes, bytes - begin);
    char* own = static_cast<char*>(x) + begin;
    const uint32_t number = send(rank_ == source ? own : nullptr, part);
    if (rank_ == source) continue;
    expect(source, number, part);
    std::memcpy(own, slot(source, number), static_cast<size_t>(part));
  }
}

}  // namespace graftlm
