// Activations as whole numbers, with a scale for each block of 32. It knows no weights.
#pragma once

#include "path.h"
#include "spread.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

using S16 = int16_t __attribute__((vector_size(32)));
using B32 = int8_t __attribute__((vector_size(32)));

GRAFTLM_INLINE I8 rounded(V8 value) {
#if GRAFTLM_USE_AVX2
  return reinterpret_cast<I8>(_mm256_cvtps_epi32(value));
#else
  const V8 shift = set1(12582912.0f);
  return __builtin_convertvector((value + shift) - shift, I8);
#endif
}

// Lanes of `a`, then of `b`, in half the bits; what would not fit does not occur.
GRAFTLM_INLINE S16 narrow(I8 a, I8 b) {
#if GRAFTLM_USE_AVX2
  const __m256i mixed = _mm256_packs_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return reinterpret_cast<S16>(_mm256_permute4x64_epi64(mixed, 0xd8));
#elif defined(__SSE2__)
  __m128i in[4], out[2];
  std::memcpy(in, &a, 32);
  std::memcpy(in + 2, &b, 32);
  for (int i = 0; i < 2; ++i) out[i] = _mm_packs_epi32(in[2 * i], in[2 * i + 1]);
  S16 result;
  std::memcpy(&result, out, 32);
  return result;
#else
  const S16 x = reinterpret_cast<S16>(a), y = reinterpret_cast<S16>(b);  // the low halves are the even ones
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#endif
}

GRAFTLM_INLINE B32 narrow(S16 a, S16 b) {
#if GRAFTLM_USE_AVX2
  const __m256i mixed = _mm256_packs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return reinterpret_cast<B32>(_mm256_permute4x64_epi64(mixed, 0xd8));
#elif defined(__SSE2__)
  __m128i in[4], out[2];
  std::memcpy(in, &a, 32);
  std::memcpy(in + 2, &b, 32);
  for (int i = 0; i < 2; ++i) out[i] = _mm_packs_epi16(in[2 * i], in[2 * i + 1]);
  B32 result;
  std::memcpy(&result, out, 32);
  return result;
#else
  const B32 x = reinterpret_cast<B32>(a), y = reinterpret_cast<B32>(b);
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40,
      42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62);
#endif
}

#if GRAFTLM_USE_AVX2

// Not by way of memory where one register holds it all: reading back what was just written waits for every store
// before it, and those go to lines that other cores have read.
GRAFTLM_INLINE void put_halves(S16 a, bool even_first, int16_t* to) {
  if (even_first) a = __builtin_shufflevector(a, a, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  std::memcpy(to, &a, 32);
}

#else

GRAFTLM_INLINE void put_halves(S16 a, bool even_first, S8* to) {
  S8 parts[2];
  std::memcpy(parts, &a, 32);
  for (int i = 0; i < 2; ++i) {
    if (even_first) parts[i] = __builtin_shufflevector(parts[i], parts[i], 0, 2, 1, 3, 4, 6, 5, 7);
    put_spread(parts[i], to + 4 * i);
  }
}

#endif

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
#if GRAFTLM_USE_AVX2
    const int64_t place = row * job.columns + b * kBlock;
    if constexpr (kWide) {
      for (int i = 0; i < 2; ++i) put_halves(halves[i], job.even_first, job.q16 + place + 16 * i);
    } else {
      const B32 bytes = narrow(halves[0], halves[1]);
      std::memcpy(job.q8 + place, &bytes, 32);
    }
#else
    Spread& to = *spread(job, b, row);
    for (int i = 0; i < 2; ++i) put_halves(halves[i], job.even_first, to.pairs + 8 * i);
#endif
    const int total = total_of((whole[0] + whole[1]) + (whole[2] + whole[3]));
    // Not a number where x is none or infinite, and so will be the results.
    const float scale = bits < 0x7f800000 ? most / steps : bits_to_float(0x7fc00000);
    const float sum = scale * static_cast<float>(total) * job.sum_factor;
#if GRAFTLM_USE_AVX2
    job.scales[row * blocks + b] = scale;
    job.sums[row * blocks + b] = sum;
#else
    to.scale = F4{scale, scale, scale, scale};
    to.sum = F4{sum, sum, sum, sum};
#endif
  }
}

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
