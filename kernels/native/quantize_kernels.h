// Activations as whole numbers, with a scale for each block of 32. It knows no weights.
#pragma once

#include "path.h"
#include "spread.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

#if GRAFTLM_USE_AVX2

using S16 = int16_t __attribute__((vector_size(32)));
using B32 = int8_t __attribute__((vector_size(32)));

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

// Lane i is the result of all lanes of vector i, i below 4.
template <class Join>
GRAFTLM_INLINE __m128i across(const __m256i* v, Join join) {
  const __m256i first = join(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  const __m256i second = join(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  const __m256i both = join(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
  const __m256i swapped = _mm256_permute2x128_si256(both, both, 1);
  return _mm256_castsi256_si128(join(both, swapped));
}

// Up to four blocks side by side: they share divisions and sums across lanes.
template <class X, bool kWide, int kCount>
GRAFTLM_INLINE void quantize_blocks(const X* x, float sum_factor, bool even_first, uint8_t* to) {
  constexpr float kSteps = kWide ? 32767.0f : 127.0f;
  const __m256i positive = _mm256_set1_epi32(0x7fffffff);
  __m256i largest[4], totals[4];
  for (int i = 0; i < 4; ++i) {
    const X* from = x + i % kCount * kBlock;
    largest[i] = reinterpret_cast<__m256i>(load(from)) & positive;
    for (int k = 8; k < kBlock; k += 8)
      largest[i] = _mm256_max_epi32(largest[i], reinterpret_cast<__m256i>(load(from + k)) & positive);
  }
  const __m128i bits = across(largest, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
  const __m128 most = _mm_castsi128_ps(bits), steps = _mm_set1_ps(kSteps);
  alignas(16) float inverse[4], scales[4], sums[4];
  _mm_store_ps(inverse, _mm_and_ps(_mm_div_ps(steps, most), _mm_cmpgt_ps(most, _mm_setzero_ps())));
  for (int i = 0; i < 4; ++i) {
    const X* from = x + i % kCount * kBlock;
    const __m256 all = _mm256_broadcast_ss(inverse + i);
    __m256i whole[4];
    for (int k = 0; k < 4; ++k) whole[k] = _mm256_cvtps_epi32(_mm256_mul_ps(load(from + 8 * k), all));
    totals[i] = _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
    if (i >= kCount) continue;
    const S16 halves[2]{narrow(reinterpret_cast<I8>(whole[0]), reinterpret_cast<I8>(whole[1])),
        narrow(reinterpret_cast<I8>(whole[2]), reinterpret_cast<I8>(whole[3]))};
    uint8_t* block = to + i * activation_bytes(kWide);
    if constexpr (kWide) {
      for (int k = 0; k < 2; ++k) put_halves(halves[k], even_first, reinterpret_cast<int16_t*>(block) + 16 * k);
    } else {
      const B32 bytes = narrow(halves[0], halves[1]);
      std::memcpy(block, &bytes, 32);
    }
  }
  const __m128i total = across(totals, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
  // Not a number where x is none or infinite, and so will be the results.
  const __m128i is_none = _mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7f7fffff));
  const __m128 scale = _mm_or_ps(_mm_div_ps(most, steps), _mm_castsi128_ps(is_none));
  _mm_store_ps(scales, scale);
  _mm_store_ps(sums, _mm_mul_ps(_mm_mul_ps(scale, _mm_cvtepi32_ps(total)), _mm_set1_ps(sum_factor)));
  for (int i = 0; i < kCount; ++i) {
    float* behind = reinterpret_cast<float*>(to + (i + 1) * activation_bytes(kWide) - 8);
    behind[0] = scales[i];
    behind[1] = sums[i];
  }
}

template <class X, bool kWide>
static void quantize_row(const QuantizeJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  const int64_t blocks = job.columns / kBlock, bytes = activation_bytes(kWide);
  uint8_t* to = job.blocks + row * blocks * bytes;
  auto some = [&]<int kCount>() {
    quantize_blocks<X, kWide, kCount>(x, job.sum_factor, job.even_first, to);
    x += kCount * kBlock;
    to += kCount * bytes;
  };
  int64_t left = blocks;
  for (; left >= 4; left -= 4) some.template operator()<4>();
  if (left & 2) some.template operator()<2>();
  if (left & 1) some.template operator()<1>();
}

#endif

template <class X>
static void quantize_rows(const QuantizeJob& job, int64_t row, int64_t row_end) {
  for (; row < row_end; ++row) job.wide ? quantize_row<X, true>(job, row) : quantize_row<X, false>(job, row);
}

static void quantize(const QuantizeJob& job, int64_t row, int64_t row_end) {
  switch (job.x_type) {
    case DType::f32: quantize_rows<float>(job, row, row_end); break;
    case DType::bf16: quantize_rows<Bf16>(job, row, row_end); break;
    case DType::f16: quantize_rows<F16>(job, row, row_end); break;
  }
}

}  // namespace graftlm::GRAFTLM_PATH
