// Integer kernels in registers of sixteen bytes, as the compiler's vector extensions have them everywhere.
//
// Without a broadcast from memory and with few registers, all that can be done once is: activations are spread when
// they are quantized, weights are unpacked and their scales converted once for all rows that a thread has.
#pragma once

#include <algorithm>

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

// Rows that weights serve once they are unpacked; and rows whose sums of eight outputs fit into registers.
constexpr int kTileRows = 24;
constexpr int kGroupRows = 6;

// A block of a panel as the kernels want it: the weights of a pair of columns for four outputs, and for the other four.
struct Unpacked {
  S8 weights[16][2];
  F4 scales[2];
  F4 minima[2];
};

// Four columns of four outputs, each of four bits, as pairs in 16 bits in the order of `Spread`.
GRAFTLM_INLINE S8 nibbles(U8 both, int part) {
  switch (part) {
    case 0: return reinterpret_cast<S8>(both & 15);
    case 1: return reinterpret_cast<S8>((both >> 8) & 15);
    case 2: return reinterpret_cast<S8>((both >> 4) & 15);
    default: return reinterpret_cast<S8>(both >> 12);
  }
}

// Eight bytes with their signs, the lower or the higher ones of sixteen.
template <bool kHigh>
GRAFTLM_INLINE S8 with_signs(const uint8_t* from) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  const Bytes all = load16<Bytes>(from);
  constexpr int k = kHigh ? 8 : 0;
  const Bytes twice = __builtin_shufflevector(all, all, k, k, k + 1, k + 1, k + 2, k + 2, k + 3, k + 3, k + 4, k + 4,
      k + 5, k + 5, k + 6, k + 6, k + 7, k + 7);
  return reinterpret_cast<S8>(twice) >> 8;
}

GRAFTLM_INLINE void load_halves(const uint8_t* from, F4* to) {
  const V8 all = load(reinterpret_cast<const F16*>(from));
  std::memcpy(to, &all, 32);
}

template <Format kFormat>
GRAFTLM_INLINE void unpack(const Block<kFormat>& block, Unpacked& to) {
  const uint8_t* weights = block.weights();
  if constexpr (kFormat == Format::q8_0) {
#pragma GCC unroll 4
    for (int k = 0; k < 16; ++k) {
      to.weights[k][0] = with_signs<false>(weights + 16 * k);
      to.weights[k][1] = with_signs<true>(weights + 16 * k);
    }
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      for (int half = 0; half < 2; ++half) {
        const U8 both = load16<U8>(weights + 32 * j + 16 * half);
        for (int part = 0; part < 4; ++part) to.weights[4 * j + part][half] = nibbles(both, part);
      }
    }
  }
  load_halves(block.from, to.scales);
  if constexpr (kFormat == Format::q4_1) load_halves(block.from + 16, to.minima);
}

// Adds a block's part to the totals of four outputs: whole numbers times both scales, and what a minimum adds.
template <Format kFormat>
GRAFTLM_INLINE F4 scaled(F4 total, I4 found, F4 scale, F4 minimum, const Spread& x) {
  const F4 sums = __builtin_convertvector(found, F4);
  if constexpr (kFormat == Format::q4_0) {  // a minimum of -8 scales, which the sums already carry
    return (sums * x.scale + x.sum) * scale + total;
  } else {
    total = sums * (scale * x.scale) + total;
    return kFormat == Format::q4_1 ? minimum * x.sum + total : total;
  }
}

// One row takes weights straight from memory, for which it waits. Bytes between what it reads and what it asks for.
constexpr int64_t kAhead = 2048;

template <Format kFormat>
static void baseline_row(const LinearJob& job, int64_t panel, int64_t row) {
  const int64_t num_blocks = job.columns / kBlock;
  const Spread* x = spread(job) + row * num_blocks;
  Block<kFormat> block{job.weights + panel * num_blocks * Block<kFormat>::kBytes};
  F4 totals[2] = {};
  for (int64_t b = 0; b < num_blocks; ++b, block.from += Block<kFormat>::kBytes) {
    for (int line = 0; line < Block<kFormat>::kBytes; line += 64) __builtin_prefetch(block.from + kAhead + line);
    I4 sums[2] = {};
    if constexpr (kFormat == Format::q8_0) {
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        sums[0] += pair_products(with_signs<false>(block.weights() + 16 * k), x[b].pairs[k]);
        sums[1] += pair_products(with_signs<true>(block.weights() + 16 * k), x[b].pairs[k]);
        in_order(sums[0]);
        in_order(sums[1]);
      }
    } else {
      // Numbers are left where they stand, and the products stand as high: 4 * 2 * 15 * 256 * 32,767 fits.
      I4 higher[2] = {}, middle[2] = {};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        for (int half = 0; half < 2; ++half) {
          const U8 both = load16<U8>(block.weights() + 32 * j + 16 * half);
          const S8* pairs = x[b].pairs + 4 * j;
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
    F4 scales[2], minima[2] = {};
    load_halves(block.from, scales);
    if constexpr (kFormat == Format::q4_1) load_halves(block.from + 16, minima);
    for (int half = 0; half < 2; ++half)
      totals[half] = scaled<kFormat>(totals[half], sums[half], scales[half], minima[half], x[b]);
  }
  V8 found;
  std::memcpy(&found, totals, 32);
  put(job, row, panel * 8, found, job.outputs - panel * 8);
}

// One block of a panel for a few rows.
template <Format kFormat, int kRows>
GRAFTLM_INLINE void add_group(const Unpacked& panel, const Spread* x, int64_t stride, F4 (*totals)[2]) {
  I4 sums[kRows][2];
#pragma GCC unroll 4
  for (int k = 0; k < 16; ++k) {
    const S8 first = panel.weights[k][0], second = panel.weights[k][1];
    for (int r = 0; r < kRows; ++r) {
      S8 numbers = x[r * stride].pairs[k];
      in_order(numbers);
      const I4 products[2]{pair_products(first, numbers), pair_products(second, numbers)};
      for (int half = 0; half < 2; ++half) {
        sums[r][half] = k == 0 ? products[half] : sums[r][half] + products[half];
        in_order(sums[r][half]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half)
      totals[r][half] =
          scaled<kFormat>(totals[r][half], sums[r][half], panel.scales[half], panel.minima[half], x[r * stride]);
}

template <Format kFormat>
GRAFTLM_INLINE void add_rows(const Unpacked& panel, const Spread* x, int64_t stride, F4 (*totals)[2], int rows) {
  switch (rows) {
    case 6: add_group<kFormat, 6>(panel, x, stride, totals); break;
    case 5: add_group<kFormat, 5>(panel, x, stride, totals); break;
    case 4: add_group<kFormat, 4>(panel, x, stride, totals); break;
    case 3: add_group<kFormat, 3>(panel, x, stride, totals); break;
    case 2: add_group<kFormat, 2>(panel, x, stride, totals); break;
    default: add_group<kFormat, 1>(panel, x, stride, totals); break;
  }
}

template <Format kFormat, int kPanels>
static void baseline_tile(const LinearJob& job, int64_t panel, int64_t row, int rows) {
  const int64_t num_blocks = job.columns / kBlock, panel_bytes = num_blocks * Block<kFormat>::kBytes;
  const Spread* x = spread(job) + row * num_blocks;
  F4 totals[kPanels][kTileRows][2];
  std::memset(totals, 0, sizeof(totals));
  const int groups = (rows + kGroupRows - 1) / kGroupRows, least = rows / groups, larger = rows % groups;
  for (int64_t b = 0; b < num_blocks; ++b) {
    Unpacked unpacked[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      const Block<kFormat> block{job.weights + (panel + p) * panel_bytes + b * Block<kFormat>::kBytes};
      for (int line = 0; line < Block<kFormat>::kBytes; line += 64)  // the same place of the panels that come next
        __builtin_prefetch(block.from + kPanels * panel_bytes + line);
      unpack(block, unpacked[p]);
    }
    for (int group = 0, r = 0; group < groups; ++group) {
      const int count = least + (group < larger);
      for (int p = 0; p < kPanels; ++p)
        add_rows<kFormat>(unpacked[p], x + b + r * num_blocks, num_blocks, totals[p] + r, count);
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

template <Format kFormat>
static void baseline_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  if (row_end - row == 1) {
    for (; panel < panel_end; ++panel) baseline_row<kFormat>(job, panel, row);
    return;
  }
  for (; panel + 2 <= panel_end; panel += 2)
    for (int64_t r = row; r < row_end; r += kTileRows)
      baseline_tile<kFormat, 2>(job, panel, r, static_cast<int>(std::min<int64_t>(kTileRows, row_end - r)));
  for (; panel < panel_end; ++panel)
    for (int64_t r = row; r < row_end; r += kTileRows)
      baseline_tile<kFormat, 1>(job, panel, r, static_cast<int>(std::min<int64_t>(kTileRows, row_end - r)));
}

}  // namespace graftlm::GRAFTLM_PATH

#endif
