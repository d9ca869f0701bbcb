// Activations as whole numbers, with a scale for each block of 32. It knows no weights.
#pragma once

#include "path.h"
#include "spread.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

#if GRAFTLM_USE_AVX2

using S16 = int16_t __attribute__((vector_size(32)));
using B32 = int8_t __attribute__((vector_size(32)));

GRAFTLM_INLINE I8 rounded(V8 value) {
  return reinterpret_cast<I8>(_mm256_cvtps_epi32(value));
}

// Lanes of `a`, then of `b`, in half the bits; what would not fit does not occur.
GRAFTLM_INLINE S16 narrow(I8 a, I8 b) {
  const __m256i mixed = _mm256_packs_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return reinterpret_cast<S16>(_mm256_permute4x64_epi64(mixed, 0xd8));
}

GRAFTLM_INLINE B32 narrow(S16 a, S16 b) {
  const __m256i mixed = _mm256_packs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return reinterpret_cast<B32>(_mm256_permute4x64_epi64(mixed, 0xd8));
}

// Not by way of memory where one register holds it all: reading back what was just written waits for every store
// before it, and those go to lines that other cores have read.
GRAFTLM_INLINE void put_halves(S16 a, bool even_first, int16_t* to) {
  if (even_first) a = __builtin_shufflevector(a, a, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  std::memcpy(to, &a, 32);
}

template <class X, bool kWide>
static void quantize_row(const QuantizeJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  const int64_t blocks = job.columns / kBlock;
  const float steps = kWide ? 32767.0f : 127.0f;
  for (int64_t b = 0; b < blocks; ++b) {
    V8 parts[4];
    I8 largest = {};
    for (int i = 0; i < 4; ++i) {
      parts[i] = load(x + b * kBlock + 8 * i);
      largest = larger(largest, reinterpret_cast<I8>(parts[i]) & 0x7fffffff);  // as their sizes, so the bits
    }
    const int bits = largest_of(largest);
    const float most = bits_to_float(static_cast<uint32_t>(bits));
    const V8 inverse = set1(most > 0 ? steps / most : 0.0f);
    I8 whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = rounded(parts[i] * inverse);
    const S16 halves[2]{narrow(whole[0], whole[1]), narrow(whole[2], whole[3])};
    const int64_t place = row * job.columns + b * kBlock;
    if constexpr (kWide) {
      for (int i = 0; i < 2; ++i) put_halves(halves[i], job.even_first, job.q16 + place + 16 * i);
    } else {
      const B32 bytes = narrow(halves[0], halves[1]);
      std::memcpy(job.q8 + place, &bytes, 32);
    }
    const int total = total_of((whole[0] + whole[1]) + (whole[2] + whole[3]));
    // Not a number where x is none or infinite, and so will be the results.
    const float scale = bits < 0x7f800000 ? most / steps : bits_to_float(0x7fc00000);
    job.scales[row * blocks + b] = scale;
    job.sums[row * blocks + b] = scale * static_cast<float>(total) * job.sum_factor;
  }
}

#endif

template <class X>
static void quantize_rows(const QuantizeJob& job, int64_t row, int64_t row_end) {
  for (; row < row_end; ++row) job.q8 ? quantize_row<X, false>(job, row) : quantize_row<X, true>(job, row);
}

static void quantize(const QuantizeJob& job, int64_t row, int64_t row_end) {
  switch (job.x_type) {
    case DType::f32: quantize_rows<float>(job, row, row_end); break;
    case DType::bf16: quantize_rows<Bf16>(job, row, row_end); break;
    case DType::f16: quantize_rows<F16>(job, row, row_end); break;
  }
}

}  // namespace graftlm::GRAFTLM_PATH
