// Linear layers over packed weights: float formats by multiply-add, integer formats by whole numbers.
//
// Panels of outputs are independent; rows are taken a few at a time so that unpacked weights serve all of them.
#pragma once

#include "baseline_kernels.h"
#include "block_sums.h"
#include "pair_kernels.h"
#include "put.h"

namespace graftlm::GRAFTLM_PATH {

GRAFTLM_INLINE void load_pair(const float* weights, V8& a, V8& b) {
  a = load(weights);
  b = load(weights + 8);
}

GRAFTLM_INLINE void load_pair(const F16* weights, V8& a, V8& b) {
  a = load(weights);
  b = load(weights + 8);
}

// Packed so that output i lies in the low half of word i and output 8 + i in its high half.
GRAFTLM_INLINE void load_pair(const Bf16* weights, V8& a, V8& b) {
  using U8 = uint32_t __attribute__((vector_size(32)));
  U8 words;
  std::memcpy(&words, weights, 32);
  const U8 low = words << 16, high = words & 0xffff0000u;
  std::memcpy(&a, &low, 32);
  std::memcpy(&b, &high, 32);
}

template <class W, int kRows>
static void float_tile(const LinearJob& job, const W* panel, int64_t row, int64_t output) {
  const float* x = job.x + row * job.x_stride;
  const int64_t stride = job.x_stride;
  // One row alone would wait for each addition: it sums in two halves.
  constexpr int kParts = kRows == 1 ? 2 : 1;
  V8 sums[kParts][kRows][2] = {};
  int64_t k = 0;
  for (; k + kParts <= job.columns; k += kParts) {
    for (int part = 0; part < kParts; ++part) {
      V8 a, b;
      load_pair(panel + (k + part) * 16, a, b);
      for (int r = 0; r < kRows; ++r) {
        const V8 value = set1(x[r * stride + k + part]);
        sums[part][r][0] = fma(value, a, sums[part][r][0]);
        sums[part][r][1] = fma(value, b, sums[part][r][1]);
      }
    }
  }
  for (; k < job.columns; ++k) {
    V8 a, b;
    load_pair(panel + k * 16, a, b);
    for (int r = 0; r < kRows; ++r) {
      sums[0][r][0] = fma(set1(x[r * stride + k]), a, sums[0][r][0]);
      sums[0][r][1] = fma(set1(x[r * stride + k]), b, sums[0][r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (kParts == 2) {
      sums[0][r][0] += sums[kParts - 1][r][0];
      sums[0][r][1] += sums[kParts - 1][r][1];
    }
    put(job, row + r, output, sums[0][r][0], job.outputs - output);
    put(job, row + r, output + 8, sums[0][r][1], job.outputs - output - 8);
  }
}

template <class W>
static void float_panel(const LinearJob& job, int64_t panel, int64_t row, int64_t end) {
  const W* weights = reinterpret_cast<const W*>(job.weights) + panel * 16 * job.columns;
  const int64_t output = panel * 16;
  for (; row + 6 <= end; row += 6) float_tile<W, 6>(job, weights, row, output);
  switch (end - row) {
    case 5: float_tile<W, 5>(job, weights, row, output); break;
    case 4: float_tile<W, 4>(job, weights, row, output); break;
    case 3: float_tile<W, 3>(job, weights, row, output); break;
    case 2: float_tile<W, 2>(job, weights, row, output); break;
    case 1: float_tile<W, 1>(job, weights, row, output); break;
    default: break;
  }
}

#if GRAFTLM_USE_AVX2

// One row waits for memory alone. Bytes between what it reads and what it asks for, which lies right behind.
constexpr int64_t kAhead = 2048;

template <Format kFormat, bool kWide, int kRows, int kPanels>
static void integer_tile(const LinearJob& job, int64_t panel, int64_t row) {
#if GRAFTLM_USE_VNNI
  if constexpr (kPanels == 2) return pair_tile<kFormat, kWide, kRows>(job, panel, row);
#endif
  const int64_t num_blocks = job.columns / kBlock;
  Block<kFormat> blocks[kPanels];
  for (int p = 0; p < kPanels; ++p) blocks[p].from = job.weights + (panel + p) * num_blocks * Block<kFormat>::kBytes;
  const Whole<kWide>* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = whole_row<kWide>(job, row + r);
  V8 totals[kPanels][kRows] = {};
  for (int64_t b = 0; b < num_blocks; ++b) {
    if constexpr (kRows == 1) {
      for (int line = 0; line < Block<kFormat>::kBytes; line += 64)
        __builtin_prefetch(blocks[0].from + kAhead + line);
    } else {  // the same place of the panels that come next
      for (int p = 0; p < kPanels; ++p)
        for (int line = 0; line < Block<kFormat>::kBytes; line += 64)
          __builtin_prefetch(blocks[p].from + kPanels * num_blocks * Block<kFormat>::kBytes + line);
    }
    V8 found[kPanels][kRows];
    block_sums<kFormat, kWide, kRows, kPanels>(blocks, x, 0, found);
    for (int p = 0; p < kPanels; ++p) {
      const V8 scale = blocks[p].scales();
      for (int r = 0; r < kRows; ++r) {
        const V8 x_scale = set1(scale_and_sum<kWide>(x[r])[0]);
        if constexpr (kFormat == Format::q4_0) {  // a minimum of -8 scales, which the sums already carry
          totals[p][r] = fma(scale, fma(found[p][r], x_scale, set1(scale_and_sum<kWide>(x[r])[1])), totals[p][r]);
        } else {
          totals[p][r] = fma(found[p][r], scale * x_scale, totals[p][r]);
        }
      }
      if constexpr (kFormat == Format::q4_1) {
        const V8 minimum = blocks[p].minima();
        for (int r = 0; r < kRows; ++r)
          totals[p][r] = fma(minimum, set1(scale_and_sum<kWide>(x[r])[1]), totals[p][r]);
      }
      blocks[p].from += Block<kFormat>::kBytes;
    }
    for (int r = 0; r < kRows; ++r) x[r] += kBlockStep<kWide>;
  }
  for (int p = 0; p < kPanels; ++p)
    for (int r = 0; r < kRows; ++r) put(job, row + r, (panel + p) * 8, totals[p][r], job.outputs - (panel + p) * 8);
}

template <Format kFormat, bool kWide, int kPanels>
static void integer_panels(const LinearJob& job, int64_t panel, int64_t row, int64_t end) {
#if GRAFTLM_USE_VNNI
  // With twice the registers, weights once unpacked serve twice the rows.
  for (; row + 8 <= end; row += 8) integer_tile<kFormat, kWide, 8, kPanels>(job, panel, row);
#endif
  for (; row + 4 <= end; row += 4) integer_tile<kFormat, kWide, 4, kPanels>(job, panel, row);
  switch (end - row) {
    case 3: integer_tile<kFormat, kWide, 3, kPanels>(job, panel, row); break;
    case 2: integer_tile<kFormat, kWide, 2, kPanels>(job, panel, row); break;
    case 1: integer_tile<kFormat, kWide, 1, kPanels>(job, panel, row); break;
    default: break;
  }
}

// Two panels share what is read of the activations.
template <Format kFormat, bool kWide>
static void integer_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  if (row_end - row > 1)
    for (; panel + 2 <= panel_end; panel += 2) integer_panels<kFormat, kWide, 2>(job, panel, row, row_end);
  for (; panel < panel_end; ++panel) integer_panels<kFormat, kWide, 1>(job, panel, row, row_end);
}

#else

template <Format kFormat, bool>
static void integer_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  job.finite ? baseline_range<kFormat, true>(job, panel, panel_end, row, row_end)
             : baseline_range<kFormat, false>(job, panel, panel_end, row, row_end);
}

#endif

template <Format kFormat>
static void four_bit_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  job.wide ? integer_range<kFormat, true>(job, panel, panel_end, row, row_end)
          : integer_range<kFormat, false>(job, panel, panel_end, row, row_end);
}

template <class W>
static void float_range(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  for (; panel < panel_end; ++panel) float_panel<W>(job, panel, row, row_end);
}

static void linear(const LinearJob& job, int64_t panel, int64_t panel_end, int64_t row, int64_t row_end) {
  switch (job.format) {
    case Format::f32: float_range<float>(job, panel, panel_end, row, row_end); break;
    case Format::bf16: float_range<Bf16>(job, panel, panel_end, row, row_end); break;
    case Format::f16: float_range<F16>(job, panel, panel_end, row, row_end); break;
    case Format::q4_0: four_bit_range<Format::q4_0>(job, panel, panel_end, row, row_end); break;
    case Format::q4_1: four_bit_range<Format::q4_1>(job, panel, panel_end, row, row_end); break;
    case Format::q8_0: integer_range<Format::q8_0, true>(job, panel, panel_end, row, row_end); break;
  }
}

}  // namespace graftlm::GRAFTLM_PATH
