// Integer kernels for two panels at once, which fill AVX-512's registers; the same sums, bit for bit, as one by one.
#pragma once

#include "block_sums.h"
#include "put.h"

#if GRAFTLM_USE_VNNI

namespace graftlm::GRAFTLM_PATH {

GRAFTLM_INLINE __m512i pair(const void* low, const void* high) {
  const __m256i first = _mm256_loadu_si256(static_cast<const __m256i*>(low));
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(first), _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1);
}

GRAFTLM_INLINE __m512i broadcast4_wide(const void* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm512_set1_epi32(four);
}

// As `block_sums`, for two panels that fill one register.
template <Format kFormat, bool kWide, int kRows>
GRAFTLM_INLINE void pair_sums(
    const Block<kFormat>* blocks, const Whole<kWide>* const* x, int64_t column, __m512* found) {
  // Few rows alternate between two sums each, since an addition takes several cycles.
  constexpr int kParts = kRows <= 3 ? 2 : 1;
  __m512i sums[kParts][kRows];
  for (int part = 0; part < kParts; ++part)
    for (int r = 0; r < kRows; ++r) sums[part][r] = _mm512_setzero_si512();
  const uint8_t *low = blocks[0].weights(), *high = blocks[1].weights();
  if constexpr (kFormat == Format::q8_0) {
#pragma GCC unroll 16  // whole, or `sums` would lie in memory
    for (int k = 0; k < 16; ++k) {
      const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + 16 * k));
      const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high + 16 * k));
      const __m512i weights = _mm512_cvtepi8_epi16(_mm256_set_m128i(second, first));
      for (int r = 0; r < kRows; ++r) {
        __m512i& sum = sums[k % kParts][r];
        sum = _mm512_dpwssd_epi32(sum, weights, broadcast4_wide(x[r] + column + 2 * k));
      }
    }
  } else if constexpr (kWide) {
    const __m512i fifteen = _mm512_set1_epi16(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = pair(low + 32 * j, high + 32 * j);
      for (int part = 0; part < 4; ++part) {
        const int shift = part == 0 ? 0 : part == 1 ? 8 : part == 2 ? 4 : 12;
        const __m512i weights = _mm512_and_si512(_mm512_srli_epi16(both, shift), fifteen);
        for (int r = 0; r < kRows; ++r) {
          __m512i& sum = sums[part % kParts][r];
          sum = _mm512_dpwssd_epi32(sum, weights, broadcast4_wide(x[r] + column + 8 * j + 2 * part));
        }
      }
    }
  } else {
    const __m512i fifteen = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = pair(low + 32 * j, high + 32 * j);
      const __m512i first = _mm512_and_si512(both, fifteen);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), fifteen);
      for (int r = 0; r < kRows; ++r) {
        __m512i &sum = sums[0][r], &other = sums[kParts - 1][r];
        sum = _mm512_dpbusd_epi32(sum, first, broadcast4_wide(x[r] + column + 8 * j));
        other = _mm512_dpbusd_epi32(other, second, broadcast4_wide(x[r] + column + 8 * j + 4));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i sum = kParts == 1 ? sums[0][r] : _mm512_add_epi32(sums[0][r], sums[kParts - 1][r]);
    found[r] = _mm512_cvtepi32_ps(sum);
  }
}

// Sixteen halves, eight from each of two places, as floats.
GRAFTLM_INLINE __m512 halves(const uint8_t* low, const uint8_t* high) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
  return _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), first));
}

template <Format kFormat, bool kWide, int kRows>
static void pair_tile(const LinearJob& job, int64_t panel, int64_t row) {
  const int64_t num_blocks = job.columns / kBlock, panel_bytes = num_blocks * Block<kFormat>::kBytes;
  Block<kFormat> blocks[2]{{job.weights + panel * panel_bytes}, {job.weights + (panel + 1) * panel_bytes}};
  const Whole<kWide>* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = whole_row<kWide>(job, row + r);
  __m512 totals[kRows];
  for (int r = 0; r < kRows; ++r) totals[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (const Block<kFormat>& block : blocks)  // the same place of the panels that come next
      for (int line = 0; line < Block<kFormat>::kBytes; line += 64)
        __builtin_prefetch(block.from + 2 * panel_bytes + line);
    __m512 found[kRows];
    pair_sums<kFormat, kWide, kRows>(blocks, x, 0, found);
    const __m512 scale = halves(blocks[0].from, blocks[1].from);
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(scale_and_sum<kWide>(x[r])[0]);
      if constexpr (kFormat == Format::q4_0) {
        const __m512 sum = _mm512_set1_ps(scale_and_sum<kWide>(x[r])[1]);
        totals[r] = _mm512_fmadd_ps(scale, _mm512_fmadd_ps(found[r], x_scale, sum), totals[r]);
      } else {
        totals[r] = _mm512_fmadd_ps(found[r], _mm512_mul_ps(scale, x_scale), totals[r]);
      }
    }
    if constexpr (kFormat == Format::q4_1) {
      const __m512 minimum = halves(blocks[0].from + 16, blocks[1].from + 16);
      for (int r = 0; r < kRows; ++r)
        totals[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(scale_and_sum<kWide>(x[r])[1]), totals[r]);
    }
    for (Block<kFormat>& block : blocks) block.from += Block<kFormat>::kBytes;
    for (int r = 0; r < kRows; ++r) x[r] += kBlockStep<kWide>;
  }
  for (int r = 0; r < kRows; ++r) {
    const int64_t output = panel * 8;
    put(job, row + r, output, _mm512_castps512_ps256(totals[r]), job.outputs - output);
    put(job, row + r, output + 8, _mm512_extractf32x8_ps(totals[r], 1), job.outputs - output - 8);
  }
}

}  // namespace graftlm::GRAFTLM_PATH

#endif
