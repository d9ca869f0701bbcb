// Whole-number products of one block of packed weights with a few rows of activations, per instruction set.
#pragma once

#include "path.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

// One block of columns of a packed panel: eight outputs' scales, their minima (Q4_1), their weights.
//
// 4 bits: 4 vectors of 32 bytes; byte o * 4 + i of vector j holds output o's weights of columns 8j + i (low half)
// and 8j + 4 + i (high half). 8 bits: 16 vectors of 16 bytes; byte o * 2 + i of vector p is column 2p + i.
template <Format kFormat>
struct Block {
  static constexpr int kMinBytes = kFormat == Format::q4_1 ? 16 : 0;
  static constexpr int kBytes = 16 + kMinBytes + (kFormat == Format::q8_0 ? 256 : 128);
  const uint8_t* from;

  V8 scales() const { return load(reinterpret_cast<const F16*>(from)); }
  // Q4_0 is Q4_1 with a minimum of -8 scales; the sums of the activations already carry the -8.
  V8 minima(V8 scale) const { return kMinBytes ? load(reinterpret_cast<const F16*>(from + 16)) : scale; }
  const uint8_t* weights() const { return from + 16 + kMinBytes; }
};

// Where a 16-bit activation lies: beside 4-bit weights, the even columns of four stand before the odd ones.
template <Format kFormat>
GRAFTLM_INLINE int wide_place(int k) {
  return kFormat == Format::q8_0 || k % 4 == 0 || k % 4 == 3 ? k : k % 4 == 1 ? k + 1 : k - 1;
}

#if GRAFTLM_USE_AVX2

GRAFTLM_INLINE __m256i broadcast4(const void* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm256_set1_epi32(four);
}

// Keeps the compiler from adding all products of a block in an order of its own, which would need more registers
// than there are.
GRAFTLM_INLINE void in_order(__m256i& value) { asm("" : "+x"(value)); }

// Adds the products of neighbouring 16-bit numbers to 32-bit sums. One instruction would do with VNNI, but what is
// left to this (one row, an odd panel) has too few sums at a time to hide how long each takes.
GRAFTLM_INLINE void add_products(__m256i& sum, __m256i a, __m256i b) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  in_order(sum);
}

#if GRAFTLM_USE_VNNI

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
GRAFTLM_INLINE void pair_sums(const LinearJob& job, const Block<kFormat>* blocks, int64_t row, int64_t column,
    V8 (*found)[kRows]) {
  // Few rows alternate between two sums each, since an addition takes several cycles.
  constexpr int kParts = kRows <= 3 ? 2 : 1;
  __m512i sums[kParts][kRows];
  for (int part = 0; part < kParts; ++part)
    for (int r = 0; r < kRows; ++r) sums[part][r] = _mm512_setzero_si512();
  const uint8_t *low = blocks[0].weights(), *high = blocks[1].weights();
  if constexpr (kFormat == Format::q8_0) {
    const int16_t* x = job.q16 + row * job.columns + column;
    for (int k = 0; k < 16; ++k) {
      const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + 16 * k));
      const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high + 16 * k));
      const __m512i weights = _mm512_cvtepi8_epi16(_mm256_set_m128i(second, first));
      for (int r = 0; r < kRows; ++r) {
        __m512i& sum = sums[k % kParts][r];
        sum = _mm512_dpwssd_epi32(sum, weights, broadcast4_wide(x + r * job.columns + 2 * k));
      }
    }
  } else if constexpr (kWide) {
    const __m512i fifteen = _mm512_set1_epi16(15);
    const int16_t* x = job.q16 + row * job.columns + column;
    for (int j = 0; j < 4; ++j) {
      const __m512i both = pair(low + 32 * j, high + 32 * j);
      for (int part = 0; part < 4; ++part) {
        const int shift = part == 0 ? 0 : part == 1 ? 8 : part == 2 ? 4 : 12;
        const __m512i weights = _mm512_and_si512(_mm512_srli_epi16(both, shift), fifteen);
        for (int r = 0; r < kRows; ++r) {
          __m512i& sum = sums[part % kParts][r];
          sum = _mm512_dpwssd_epi32(sum, weights, broadcast4_wide(x + r * job.columns + 8 * j + 2 * part));
        }
      }
    }
  } else {
    const __m512i fifteen = _mm512_set1_epi8(15);
    const int8_t* x = job.q8 + row * job.columns + column;
    for (int j = 0; j < 4; ++j) {
      const __m512i both = pair(low + 32 * j, high + 32 * j);
      const __m512i first = _mm512_and_si512(both, fifteen);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), fifteen);
      for (int r = 0; r < kRows; ++r) {
        __m512i &sum = sums[0][r], &other = sums[kParts - 1][r];
        sum = _mm512_dpbusd_epi32(sum, first, broadcast4_wide(x + r * job.columns + 8 * j));
        other = _mm512_dpbusd_epi32(other, second, broadcast4_wide(x + r * job.columns + 8 * j + 4));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i sum = kParts == 1 ? sums[0][r] : _mm512_add_epi32(sums[0][r], sums[kParts - 1][r]);
    found[0][r] = _mm256_cvtepi32_ps(_mm512_castsi512_si256(sum));
    found[1][r] = _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(sum, 1));
  }
}

#endif

// The sums of one block of each panel for each row: eight outputs in eight lanes.
template <Format kFormat, bool kWide, int kRows, int kPanels>
GRAFTLM_INLINE void block_sums(const LinearJob& job, const Block<kFormat>* blocks, int64_t row, int64_t column,
    V8 (*found)[kRows]) {
#if GRAFTLM_USE_VNNI
  if constexpr (kPanels == 2) return pair_sums<kFormat, kWide, kRows>(job, blocks, row, column, found);
#endif
  __m256i sums[kPanels][kRows];
  for (int p = 0; p < kPanels; ++p)
    for (int r = 0; r < kRows; ++r) sums[p][r] = _mm256_setzero_si256();
  if constexpr (kFormat == Format::q8_0) {
    const int16_t* x = job.q16 + row * job.columns + column;
    for (int k = 0; k < 16; ++k) {
      __m256i weights[kPanels];
      for (int p = 0; p < kPanels; ++p)
        weights[p] = _mm256_cvtepi8_epi16(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[p].weights() + 16 * k)));
      for (int r = 0; r < kRows; ++r) {
        const __m256i a = broadcast4(x + r * job.columns + 2 * k);
        for (int p = 0; p < kPanels; ++p) add_products(sums[p][r], weights[p], a);
      }
    }
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(sums[p][r]);
  } else if constexpr (kWide) {
    const __m256i low = _mm256_set1_epi16(15);
    const int16_t* x = job.q16 + row * job.columns + column;
    for (int j = 0; j < 4; ++j) {
      __m256i both[kPanels];
      for (int p = 0; p < kPanels; ++p)
        both[p] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks[p].weights() + 32 * j));
      // The even and the odd columns of the low halves, then of the high ones.
      for (int part = 0; part < 4; ++part) {
        const int shift = part == 0 ? 0 : part == 1 ? 8 : part == 2 ? 4 : 12;
        __m256i weights[kPanels];
        for (int p = 0; p < kPanels; ++p) weights[p] = _mm256_and_si256(_mm256_srli_epi16(both[p], shift), low);
        for (int r = 0; r < kRows; ++r) {
          const __m256i a = broadcast4(x + r * job.columns + 8 * j + 2 * part);
          for (int p = 0; p < kPanels; ++p) add_products(sums[p][r], weights[p], a);
        }
      }
    }
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(sums[p][r]);
  } else {
    const __m256i low = _mm256_set1_epi8(15);
    const int8_t* x = job.q8 + row * job.columns + column;
    for (int j = 0; j < 4; ++j) {
      __m256i first[kPanels], second[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        const __m256i both =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks[p].weights() + 32 * j));
        first[p] = _mm256_and_si256(both, low);
        second[p] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      }
      // 16 bits hold 8 steps: 8 * 2 * 15 * 127 = 30,480.
      for (int r = 0; r < kRows; ++r) {
        const __m256i a = broadcast4(x + r * job.columns + 8 * j);
        for (int p = 0; p < kPanels; ++p) {
          sums[p][r] = _mm256_add_epi16(sums[p][r], _mm256_maddubs_epi16(first[p], a));
          in_order(sums[p][r]);
        }
        const __m256i b = broadcast4(x + r * job.columns + 8 * j + 4);
        for (int p = 0; p < kPanels; ++p) {
          sums[p][r] = _mm256_add_epi16(sums[p][r], _mm256_maddubs_epi16(second[p], b));
          in_order(sums[p][r]);
        }
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(_mm256_madd_epi16(sums[p][r], ones));
  }
}

#else

template <Format kFormat, bool kWide, int kRows, int kPanels>
GRAFTLM_INLINE void block_sums(const LinearJob& job, const Block<kFormat>* blocks, int64_t row, int64_t column,
    V8 (*found)[kRows]) {
  for (int p = 0; p < kPanels; ++p) {
    const uint8_t* weights = blocks[p].weights();
    I8 sums[kRows] = {};
    for (int k = 0; k < kBlock; ++k) {
      I8 w;
      for (int o = 0; o < 8; ++o) {
        if constexpr (kFormat == Format::q8_0) {
          w[o] = static_cast<int8_t>(weights[16 * (k / 2) + 2 * o + k % 2]);
        } else {
          const uint8_t both = weights[32 * (k / 8) + 4 * o + k % 4];
          w[o] = k % 8 < 4 ? both & 15 : both >> 4;
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const int64_t first = (row + r) * job.columns + column;
        sums[r] += w * static_cast<int32_t>(kWide ? job.q16[first + wide_place<kFormat>(k)] : job.q8[first + k]);
      }
    }
    for (int r = 0; r < kRows; ++r) found[p][r] = __builtin_convertvector(sums[r], V8);
  }
}

#endif

}  // namespace graftlm::GRAFTLM_PATH
