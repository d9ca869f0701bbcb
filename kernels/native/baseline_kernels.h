// Integer kernels in registers of sixteen bytes, as the compiler's vector extensions have them everywhere.
//
// There is no broadcast from memory, so activations are spread once, when they are quantized; and there are few
// registers, so weights of four outputs meet up to twelve rows as they are unpacked, without a detour over memory.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "block_sums.h"
#include "put.h"
#include "spread.h"

#if !GRAFTLM_USE_AVX2

namespace graftlm::GRAFTLM_PATH {

using U8 = uint16_t __attribute__((vector_size(16)));

template <class Vector>
GRAFTLM_INLINE Vector load16(const void* from) {
  Vector value;
  std::memcpy(&value, from, 16);
  return value;
}

template <class Vector>
GRAFTLM_INLINE Vector load8(const void* from) {
  using Words = int64_t __attribute__((vector_size(16)));
  int64_t word;
  std::memcpy(&word, from, 8);
  return reinterpret_cast<Vector>(Words{word, 0});
}

// Rows whose sums of four outputs fit into registers, beside weights and a product; and those that share a panel.
constexpr int kGroupRows = 12;
constexpr int kTileRows = 24;

// Four columns of four outputs, each of four bits, as pairs in 16 bits in the order of `Spread`.
GRAFTLM_INLINE S8 nibbles(U8 both, int part) {
  switch (part) {
    case 0: return reinterpret_cast<S8>(both & 15);
    case 1: return reinterpret_cast<S8>((both >> 8) & 15);
    case 2: return reinterpret_cast<S8>((both >> 4) & 15);
    default: return reinterpret_cast<S8>(both >> 12);
  }
}

// Eight bytes with their signs.
GRAFTLM_INLINE S8 with_signs(const uint8_t* from) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  const Bytes all = load8<Bytes>(from);
  return reinterpret_cast<S8>(__builtin_shufflevector(all, all, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)) >> 8;
}

// Pair `k` of columns of four outputs: the lower ones of a panel or the higher ones.
template <Format kFormat>
GRAFTLM_INLINE S8 weights_of(const Block<kFormat>& block, int k, int half) {
  if constexpr (kFormat == Format::q8_0) return with_signs(block.weights() + 16 * k + 8 * half);
  else return nibbles(load16<U8>(block.weights() + k / 4 * 32 + 16 * half), k % 4);
}

template <bool kFinite>
GRAFTLM_INLINE F4 four_halves(const uint8_t* from) {
  const S8 zeros = {};
  return from_halves<kFinite>(__builtin_shufflevector(zeros, load8<S8>(from), 0, 8, 1, 9, 2, 10, 3, 11));
}

// A block's scales and minima of four outputs.
struct Scales {
  F4 scale;
  F4 minimum;
};

template <Format kFormat, bool kFinite>
GRAFTLM_INLINE Scales scales_of(const Block<kFormat>& block, int half) {
  Scales found{four_halves<kFinite>(block.from + 8 * half), {}};
  if constexpr (kFormat == Format::q4_1) found.minimum = four_halves<kFinite>(block.from + 16 + 8 * half);
  return found;
}

template <bool kFinite>
GRAFTLM_INLINE void load_halves(const uint8_t* from, F4& low, F4& high) {
  const S8 zeros = {}, halves = load16<S8>(from);
  low = from_halves<kFinite>(__builtin_shufflevector(zeros, halves, 0, 8, 1, 9, 2, 10, 3, 11));
  high = from_halves<kFinite>(__builtin_shufflevector(zeros, halves, 4, 12, 5, 13, 6, 14, 7, 15));
}

// Adds a block's part to the totals of four outputs: whole numbers times both scales, and what a minimum adds.
template <Format kFormat>
GRAFTLM_INLINE F4 scaled(F4 total, I4 found, const Scales& scales, const Spread& x) {
  const F4 sums = __builtin_convertvector(found, F4);
  if constexpr (kFormat == Format::q4_0) {  // a minimum of -8 scales, which the sums already carry
    return (sums * x.scale + x.sum) * scales.scale + total;
  } else {
    total = sums * x.scale * scales.scale + total;
    return kFormat == Format::q4_1 ? scales.minimum * x.sum + total : total;
  }
}

// One row takes weights straight from memory, for which it waits. Bytes between what it reads and what it asks for.
constexpr int64_t kAhead = 2048;

template <Format kFormat, bool kFinite>
static void baseline_row(const LinearJob& job, int64_t panel, int64_t row) {
  const int64_t num_blocks = job.columns / kBlock;
  const Spread* x = spread(job, 0, row);
  Block<kFormat> block{job.weights + panel * num_blocks * Block<kFormat>::kBytes};
  F4 totals[2] = {};
  for (int64_t b = 0; b < num_blocks; ++b, block.from += Block<kFormat>::kBytes, x += job.rows) {
    for (int line = 0; line < Block<kFormat>::kBytes; line += 64) __builtin_prefetch(block.from + kAhead + line);
    I4 sums[2] = {};
    if constexpr (kFormat == Format::q8_0) {
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        for (int half = 0; half < 2; ++half) {
          sums[half] += pair_products(weights_of(block, k, half), x->pairs[k]);
          in_order(sums[half]);
        }
      }
    } else {
      // Numbers are left where they stand, and the products stand as high: 4 * 2 * 15 * 256 * 32,767 fits.
      I4 higher[2] = {}, middle[2] = {};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        for (int half = 0; half < 2; ++half) {
          const U8 both = load16<U8>(block.weights() + 32 * j + 16 * half);
          const S8* pairs = x->pairs + 4 * j;
          sums[half] += pair_products(reinterpret_cast<S8>(both & 15), pairs[0]);
          in_order(sums[half]);
          higher[half] += pair_products(reinterpret_cast<S8>(both & uint16_t{15 << 8}), pairs[1]);
          in_order(higher[half]);
          middle[half] += pair_products(reinterpret_cast<S8>(both & uint16_t{15 << 4}), pairs[2]);
          in_order(middle[half]);
          sums[half] += pair_products(reinterpret_cast<S8>(both >> 12), pairs[3]);
          in_order(sums[half]);
        }
      }
      for (int half = 0; half < 2; ++half) sums[half] += (higher[half] >> 8) + (middle[half] >> 4);
    }
    Scales scales[2];
    load_halves<kFinite>(block.from, scales[0].scale, scales[1].scale);
    if constexpr (kFormat == Format::q4_1)
      load_halves<kFinite>(block.from + 16, scales[0].minimum, scales[1].minimum);
    for (int half = 0; half < 2; ++half) totals[half] = scaled<kFormat>(totals[half], sums[half], scales[half], *x);
  }
  V8 found;
  std::memcpy(&found, totals, 32);
  put(job, row, panel * 8, found, job.outputs - panel * 8);
}

// One block of a panel for a few rows: all eight outputs where their sums fit into registers, else four and then the
// other four.
template <Format kFormat, bool kFinite, int kRows>
[[gnu::noinline]] static void add_group(const uint8_t* from, const Spread* x, F4 (*totals)[2]) {
  constexpr int kHalves = 2 * kRows <= kGroupRows ? 2 : 1;
  const Block<kFormat> block{from};
#pragma GCC unroll 1
  for (int begin = 0; begin < 2; begin += kHalves) {
    asm volatile("" : "+r"(x), "+r"(begin));  // read twice: no register is left to hold anything in between
    I4 sums[kRows][kHalves];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      S8 weights[kHalves];
      for (int half = 0; half < kHalves; ++half) weights[half] = weights_of(block, k, begin + half);
      for (int r = 0; r < kRows; ++r) {
        S8 numbers = x[r].pairs[k];
        if (kHalves == 2 && r + 1 < kRows) in_order(numbers);
        for (int half = 0; half < kHalves; ++half) {
          const I4 products = pair_products(weights[half], numbers);
          sums[r][half] = k == 0 ? products : sums[r][half] + products;
        }
        for (int half = 0; half < kHalves; ++half) in_order(sums[r][half]);
      }
    }
    for (int half = 0; half < kHalves; ++half) {
      const Scales scales = scales_of<kFormat, kFinite>(block, begin + half);
      for (int r = 0; r < kRows; ++r)
        totals[r][begin + half] = scaled<kFormat>(totals[r][begin + half], sums[r][half], scales, x[r]);
    }
  }
}

using Group = void (*)(const uint8_t* from, const Spread* x, F4 (*totals)[2]);

template <Format kFormat, bool kFinite, int... kLess>
constexpr std::array<Group, kGroupRows> groups_of(std::integer_sequence<int, kLess...>) {
  return {add_group<kFormat, kFinite, kLess + 1>...};
}

// For one row, for two, and so on.
template <Format kFormat, bool kFinite>
static constexpr auto kOfRows = groups_of<kFormat, kFinite>(std::make_integer_sequence<int, kGroupRows>());

template <Format kFormat, bool kFinite, int kPanels>
static void baseline_tile(const LinearJob& job, int64_t panel, int64_t row, int rows) {
  const int64_t num_blocks = job.columns / kBlock, panel_bytes = num_blocks * Block<kFormat>::kBytes;
  F4 totals[kPanels][kTileRows][2];
  std::memset(totals, 0, sizeof(totals));
  const int groups = (rows + kGroupRows - 1) / kGroupRows;  // of much the same size
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint8_t* block = job.weights + panel * panel_bytes + b * Block<kFormat>::kBytes;
    for (int p = 0; p < kPanels; ++p)
      for (int line = 0; line < Block<kFormat>::kBytes; line += 64)  // the same place of the panels that come next
        __builtin_prefetch(block + (kPanels + p) * panel_bytes + line);
    const Spread* x = spread(job, b, row);
    for (int group = 0, r = 0; group < groups; ++group) {
      const int count = (rows + group) / groups;
      const Group add = kOfRows<kFormat, kFinite>[count - 1];
      for (int p = 0; p < kPanels; ++p) add(block + p * panel_bytes, x + r, totals[p] + r);
      r += count;
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < rows; ++r) {
      V8 found;
      std::memcpy(&found, totals[p][r], 32);
      put(job, row + r, (panel + p) * 8, found, job.outputs - (panel + p) * 8);
    }
  }
}

template <Format kFormat, bool kFinite>
static void baseline_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  if (row_end - row == 1) {
    for (; panel < panel_end; ++panel) baseline_row<kFormat, kFinite>(job, panel, row);
    return;
  }
  for (; panel + 2 <= panel_end; panel += 2)
    for (int64_t r = row; r < row_end; r += kTileRows)
      baseline_tile<kFormat, kFinite, 2>(job, panel, r, static_cast<int>(std::min<int64_t>(kTileRows, row_end - r)));
  for (; panel < panel_end; ++panel)
    for (int64_t r = row; r < row_end; r += kTileRows)
      baseline_tile<kFormat, kFinite, 1>(job, panel, r, static_cast<int>(std::min<int64_t>(kTileRows, row_end - r)));
}

}  // namespace graftlm::GRAFTLM_PATH

#endif
