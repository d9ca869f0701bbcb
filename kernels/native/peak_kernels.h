// The rates that no kernel can pass: whole-number products of registers with registers, and memory read in order.
//
// A measure for benchmarks; nothing serves with it.
#pragma once

#include "path.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

// `kPeakSums` sums are more than an addition takes cycles, and leave registers for what is multiplied.
#if GRAFTLM_USE_VNNI
using PeakVector = __m512i;
constexpr int kPeakSums = 16;
#elif GRAFTLM_USE_AVX2
using PeakVector = __m256i;
constexpr int kPeakSums = 12;
#else
using PeakVector = I4;
constexpr int kPeakSums = 6;
#endif

// One instruction, or the pair of them, that adds products to a register of sums, as the integer kernels do it.
template <bool kWide>
GRAFTLM_INLINE void peak_step(PeakVector& sum, const PeakVector& a, const PeakVector& b) {
#if GRAFTLM_USE_VNNI
  sum = kWide ? _mm512_dpwssd_epi32(sum, a, b) : _mm512_dpbusd_epi32(sum, a, b);
#elif GRAFTLM_USE_AVX2
  sum = kWide ? _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) : _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
#else
  sum += pair_products(reinterpret_cast<S8>(a), reinterpret_cast<S8>(b));
#endif
}

// Multiply-adds of a step.
template <bool kWide>
constexpr int peak_step_products() {
#if GRAFTLM_USE_AVX2
  return static_cast<int>(sizeof(PeakVector)) / (kWide ? 2 : 1);
#else
  return 8;
#endif
}

template <bool kWide>
static int64_t peak_products(int64_t rounds) {
  PeakVector sums[kPeakSums] = {}, a = {}, b = {};
  in_order(b);  // and so nothing is known of it
  for (int64_t i = 0; i < rounds; ++i) {
    for (int s = 0; s < kPeakSums; ++s) {
      in_order(a);
      peak_step<kWide>(sums[s], a, b);
      in_order(sums[s]);
    }
  }
  return rounds * kPeakSums * peak_step_products<kWide>();
}

static int64_t peak(bool wide, int64_t rounds) {
  return wide ? peak_products<true>(rounds) : peak_products<false>(rounds);
}

// Reads `bytes`, a multiple of 1024, and returns something that depends on all of them. In four places at a time: a
// processor fetches ahead for each by itself, and one alone does not keep it busy.
static int64_t read_through(const void* from, int64_t bytes) {
  I8 sums[8] = {};
  const int64_t quarter = bytes / 4;
  for (int64_t at = 0; at + 256 <= quarter; at += 256) {
    for (int place = 0; place < 4; ++place) {
      for (int s = 0; s < 8; ++s) {
        I8 value;
        std::memcpy(&value, static_cast<const char*>(from) + place * quarter + at + 32 * s, 32);
        sums[s] ^= value;
      }
    }
  }
  for (int s = 1; s < 8; ++s) sums[0] ^= sums[s];
  return sums[0][0];
}

}  // namespace graftlm::GRAFTLM_PATH
