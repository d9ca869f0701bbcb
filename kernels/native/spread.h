// Activations as the kernels of sixteen bytes want them, which have no broadcast from memory. It knows no weights.
#pragma once

#include "path.h"
#include "vec.h"

#if !GRAFTLM_USE_AVX2

namespace graftlm::GRAFTLM_PATH {

// A block of a row: each pair of neighbouring 16-bit numbers four times, and so what belongs to all of them. Those of
// 4-bit weights come in the order of their bits: of each four columns the even ones, then the odd ones.
struct Spread {
  S8 pairs[16];
  F4 scale;
  F4 sum;
};

// They stand in place of numbers of 8 or of 16 bits: [blocks, rows], so that rows of one block follow each other.
template <class Job>
GRAFTLM_INLINE Spread* spread(const Job& job, int64_t block, int64_t row) {
  const void* at = job.q8 ? static_cast<const void*>(job.q8) : job.q16;
  return static_cast<Spread*>(const_cast<void*>(at)) + block * job.rows + row;
}

GRAFTLM_INLINE void put_spread(S8 numbers, S8* to) {
  const I4 pairs = reinterpret_cast<I4>(numbers);
  to[0] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 0, 0, 0, 0));
  to[1] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 1, 1, 1, 1));
  to[2] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 2, 2, 2, 2));
  to[3] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 3, 3, 3, 3));
}

}  // namespace graftlm::GRAFTLM_PATH

#endif
