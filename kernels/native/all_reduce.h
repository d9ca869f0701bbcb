// Collectives of the ranks of one host, over memory that all of them have mapped.
//
// Each rank writes to its own part only and numbers its messages; others read them where they lie. It does not know
// how the ranks agree on the memory, nor what they compute.
#pragma once

#include <atomic>
#include <chrono>

#include "types.h"

namespace graftlm {

constexpr int kMostRanks = 64;

class SharedGroup {
 public:
  // Bytes that the file of `size` ranks must have, all zeros at first.
  static int64_t bytes_for(int size);

  // Maps the file and marks this rank as alive. The descriptor may be closed afterwards; each rank must have opened
  // the file itself.
  SharedGroup(int descriptor, int rank, int size);
  // Ranks that are threads of one process, over its own zeroed memory; their lives are not watched.
  SharedGroup(void* memory, int rank, int size);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  // All ranks make the same calls, with equal sizes, in the same order; a rank that has ended raises in the others.

  // x becomes the sum over ranks: added as floats in the order of ranks, rounded once, the same bits on every rank.
  void all_reduce(void* x, int64_t count, DType type);

  // Rank r's row i [row_bytes] becomes part r of row i of `out` [rows, size, row_bytes], where `out` is given.
  // `sends`: whether any other rank wants this one's rows.
  void gather(const void* x, int64_t rows, int64_t row_bytes, void* out, bool sends);

  // x becomes rank `source`'s.
  void broadcast(void* x, int64_t bytes, int source);

 private:
  struct Mailbox;

  Mailbox& mailbox(int rank) const;
  char* slot(int rank, uint32_t number) const;
  uint32_t send(const void* data, int64_t bytes);
  void wait_for(int rank, uint32_t number);
  void expect(int rank, uint32_t number, int64_t bytes);
  void sleep_until(Mailbox& box, int rank, uint32_t number);
  bool is_alive(int rank) const;

  int descriptor_ = -1;
  int rank_;
  int size_;
  char* memory_;
  uint32_t sent_ = 0;
  std::chrono::nanoseconds patience_;
};

}  // namespace graftlm
