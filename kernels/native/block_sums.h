// Whole-number products of one block of packed weights with a few rows of activations, per instruction set.
#pragma once

#include <type_traits>

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
  V8 minima() const { return load(reinterpret_cast<const F16*>(from + 16)); }
  const uint8_t* weights() const { return from + 16 + kMinBytes; }
};

// Activations as whole numbers, in 16 bits or in 8.
template <bool kWide>
using Whole = std::conditional_t<kWide, int16_t, int8_t>;

// Numbers from one block to the next, with room for the block's scale and sum.
template <bool kWide>
constexpr int kBlockStep = kBlock + 8 / sizeof(Whole<kWide>);

template <bool kWide>
GRAFTLM_INLINE const Whole<kWide>* whole_row(const LinearJob& job, int64_t row) {
  return reinterpret_cast<const Whole<kWide>*>(job.blocks) + row * (job.columns / kBlock) * kBlockStep<kWide>;
}

template <bool kWide>
GRAFTLM_INLINE const float* scale_and_sum(const Whole<kWide>* block) {
  return reinterpret_cast<const float*>(block + kBlock);
}

#if GRAFTLM_USE_AVX2

// Straight from memory: the compiler would rather load four bytes and then spend another instruction on them.
GRAFTLM_INLINE __m256i broadcast4(const void* from) {
  struct [[gnu::packed, gnu::may_alias]] Four {
    int32_t value;
  };
  __m256i all;
  asm("vpbroadcastd %1, %0" : "=x"(all) : "m"(*static_cast<const Four*>(from)));
  return all;
}

// Adds the products of neighbouring 16-bit numbers to 32-bit sums. One instruction would do with VNNI, but what is
// left to this (one row, an odd panel) has too few sums at a time to hide how long each takes.
GRAFTLM_INLINE void add_products(__m256i& sum, __m256i a, __m256i b, bool is_first) {
  const __m256i products = _mm256_madd_epi16(a, b);
  sum = is_first ? products : _mm256_add_epi32(sum, products);
  in_order(sum);
}

// As above, of 4-bit weights without a sign and of 8-bit numbers to 16-bit sums.
GRAFTLM_INLINE void add_narrow_products(__m256i& sum, __m256i a, __m256i b, bool is_first) {
  const __m256i products = _mm256_maddubs_epi16(a, b);
  sum = is_first ? products : _mm256_add_epi16(sum, products);
  in_order(sum);
}

// The sums of one block of each panel for each row: eight outputs in eight lanes.
template <Format kFormat, bool kWide, int kRows, int kPanels>
GRAFTLM_INLINE void block_sums(
    const Block<kFormat>* blocks, const Whole<kWide>* const* x, int64_t column, V8 (*found)[kRows]) {
  __m256i sums[kPanels][kRows];
  if constexpr (kFormat == Format::q8_0) {
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      __m256i weights[kPanels];
      for (int p = 0; p < kPanels; ++p)
        weights[p] = _mm256_cvtepi8_epi16(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[p].weights() + 16 * k)));
      for (int r = 0; r < kRows; ++r) {
        const __m256i a = broadcast4(x[r] + column + 2 * k);
        for (int p = 0; p < kPanels; ++p) add_products(sums[p][r], weights[p], a, k == 0);
      }
    }
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(sums[p][r]);
  } else if constexpr (kWide) {
    const __m256i low = _mm256_set1_epi16(15);
#pragma GCC unroll 4
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
          const __m256i a = broadcast4(x[r] + column + 8 * j + 2 * part);
          for (int p = 0; p < kPanels; ++p) add_products(sums[p][r], weights[p], a, j + part == 0);
        }
      }
    }
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(sums[p][r]);
  } else {
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
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
        const __m256i a = broadcast4(x[r] + column + 8 * j);
        for (int p = 0; p < kPanels; ++p) add_narrow_products(sums[p][r], first[p], a, j == 0);
        const __m256i b = broadcast4(x[r] + column + 8 * j + 4);
        for (int p = 0; p < kPanels; ++p) add_narrow_products(sums[p][r], second[p], b, false);
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r) found[p][r] = _mm256_cvtepi32_ps(_mm256_madd_epi16(sums[p][r], ones));
  }
}

#endif

}  // namespace graftlm::GRAFTLM_PATH
