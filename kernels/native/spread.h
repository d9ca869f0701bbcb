// Activations as the kernels of sixteen bytes want them, which have no broadcast from memory. It knows no weights.
#pragma once

#include <algorithm>

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

// They stand in place of `activation_bytes`: [blocks, rows], so that rows of one block follow each other.
template <class Job>
GRAFTLM_INLINE Spread* spread(const Job& job, int64_t block, int64_t row) {
  return reinterpret_cast<Spread*>(const_cast<uint8_t*>(job.blocks)) + block * job.rows + row;
}

// Eight numbers as four pairs.
GRAFTLM_INLINE void put_spread(S8 numbers, bool even_first, S8* to) {
  if (even_first) numbers = __builtin_shufflevector(numbers, numbers, 0, 2, 1, 3, 4, 6, 5, 7);
  const I4 pairs = reinterpret_cast<I4>(numbers);
  to[0] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 0, 0, 0, 0));
  to[1] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 1, 1, 1, 1));
  to[2] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 2, 2, 2, 2));
  to[3] = reinterpret_cast<S8>(__builtin_shufflevector(pairs, pairs, 3, 3, 3, 3));
}

GRAFTLM_INLINE F4 set_four(float value) { return F4{value, value, value, value}; }

GRAFTLM_INLINE void load_eight(const float* from, F4* to) { std::memcpy(to, from, 32); }
template <class X>
GRAFTLM_INLINE void load_eight(const X* from, F4* to) {
  const V8 all = load(from);
  std::memcpy(to, &all, 32);
}

GRAFTLM_INLINE I4 rounded(F4 value) {
#if defined(__SSE2__)
  return reinterpret_cast<I4>(_mm_cvtps_epi32(reinterpret_cast<__m128>(value)));
#else
  const F4 shift = set_four(12582912.0f);
  return __builtin_convertvector((value + shift) - shift, I4);
#endif
}

// Lanes of `a`, then of `b`, in half the bits; what would not fit does not occur.
GRAFTLM_INLINE S8 narrow(I4 a, I4 b) {
#if defined(__SSE2__)
  return reinterpret_cast<S8>(_mm_packs_epi32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const S8 x = reinterpret_cast<S8>(a), y = reinterpret_cast<S8>(b);  // the low halves are the even ones
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14);
#endif
}

// Four lanes combined in all of them.
template <class Vector, class Combine>
GRAFTLM_INLINE Vector in_all(Vector v, Combine&& combine) {
  v = combine(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  return combine(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
}

// A block's numbers, four in each register.
template <class X>
GRAFTLM_INLINE void load_block(const X* from, F4* to) {
  for (int i = 0; i < 4; ++i) load_eight(from + 8 * i, to + 2 * i);
}

template <class X, bool kWide>
static void quantize_row(const QuantizeJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  const int64_t blocks = job.columns / kBlock;
  const F4 steps = set_four(kWide ? 32767.0f : 127.0f);
  const auto larger_of = [](F4 a, F4 b) { return a > b ? a : b; };
  const auto sum_of = [](auto a, auto b) { return a + b; };
  // First the scales of a few blocks, so that none waits for its own division.
  constexpr int kAtOnce = 8;
  F4 inverses[kAtOnce], parts[8];
  for (int64_t begin = 0; begin < blocks; begin += kAtOnce) {
    const int count = static_cast<int>(std::min<int64_t>(kAtOnce, blocks - begin));
    for (int b = 0; b < count; ++b) {
      load_block(x + (begin + b) * kBlock, parts);
      F4 largest[2] = {}, sizes[2] = {};
      for (int i = 0; i < 8; ++i) {
        const F4 size = reinterpret_cast<F4>(reinterpret_cast<I4>(parts[i]) & 0x7fffffff);
        largest[i % 2] = larger_of(largest[i % 2], size);
        sizes[i % 2] += size;
      }
      const F4 most = in_all(larger_of(largest[0], largest[1]), larger_of), size = in_all(sizes[0] + sizes[1], sum_of);
      inverses[b] = reinterpret_cast<F4>((most > 0) & reinterpret_cast<I4>(steps / most));
      // Not a number where x is none or infinite, and so will be the results; `most` may have passed over the former.
      const I4 is_good = (most < set_four(bits_to_float(0x7f800000))) & (size == size);
      spread(job, begin + b, row)->scale = reinterpret_cast<F4>(reinterpret_cast<I4>(most / steps) | ~is_good);
    }
    for (int b = 0; b < count; ++b) {
      Spread& to = *spread(job, begin + b, row);
      load_block(x + (begin + b) * kBlock, parts);
      I4 totals = {};
      for (int i = 0; i < 4; ++i) {
        const S8 numbers = narrow(rounded(parts[2 * i] * inverses[b]), rounded(parts[2 * i + 1] * inverses[b]));
        totals += pair_products(numbers, S8{1, 1, 1, 1, 1, 1, 1, 1});
        put_spread(numbers, job.even_first, to.pairs + 4 * i);
      }
      to.sum = to.scale * __builtin_convertvector(in_all(totals, sum_of), F4) * set_four(job.sum_factor);
    }
  }
}

}  // namespace graftlm::GRAFTLM_PATH

#endif
