// Packing, and how one multiplication is shared by the threads.
#include "linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pool.h"
#include "shares.h"

namespace graftlm {

// Multiply-adds of a unit of work: fewer would cost more to claim than to do, and a thread waits for the last one.
constexpr int64_t kUnitWork = 64 << 10;
// Outputs of each thread that are so many times the work of making whole numbers of all activations, and activations
// that are no more than this (fewer where they are spread): each thread makes its own, which costs less than to meet
// and to fetch the others'.
constexpr int64_t kOwnOutputs = 256, kOwnActivations = 32 << 10, kOwnSpread = 2 << 10;
// Activations of a unit should stay in a core's second cache while the panels pass by.
constexpr int64_t kRowBytes = 128 << 10;
// A multiple of what the kernels of either kind take at once.
constexpr int64_t kRows = 24;
// What a thread packs at a time: several large pages. The system finds one at the first touch, and fills it with zeros;
// threads that touch one page together have each fill one.
constexpr int64_t kPackedBytes = 4 << 20;
// Spread activations take several times their numbers' bytes; a batch that would take more comes in parts.
constexpr int64_t kSpreadBytes = 16 << 20;

PackedMatrix::PackedMatrix(Format format, int64_t outputs, int64_t columns)
    : format_(format), outputs_(outputs), columns_(columns) {
  if (outputs < 0 || columns < 0) throw std::invalid_argument("a matrix has no negative size");
  if (!is_float(format) && columns % kBlock) {
    throw std::invalid_argument("quantized weights come in blocks of 32 columns, not " + std::to_string(columns));
  }
  const int64_t lanes = panel_outputs(format);
  // More than any address reaches, and well before a size would overflow.
  constexpr int64_t kMost = int64_t{1} << 48;
  if (outputs > kMost || columns > kMost / (outputs + lanes)) throw std::bad_alloc();
  panels_ = (outputs + lanes - 1) / lanes;
  bytes_ = panels_ * steps() * panel_step_bytes(format);
  memory_ = WeightMemory(bytes_);
}

uint8_t* PackedMatrix::step_of(int64_t output, int64_t step) const {
  const int64_t panel = output / panel_outputs(format_);
  return memory_.data() + (panel * steps() + step) * panel_step_bytes(format_);
}

// Offset, in bytes, of a block's weights behind its scales and minima.
static int64_t weights_offset(Format format) { return format == Format::q4_1 ? 32 : 16; }

static int64_t file_block_bytes(Format format) {
  switch (format) {
    case Format::q4_0: return 18;
    case Format::q4_1: return 20;
    case Format::q8_0: return 34;
    case Format::f32: return 4;
    default: return 2;
  }
}

// The place of one column within a panel's step, in elements, for 16-bit floats.
static int half_place(Format format, int lane) {
  return format == Format::bf16 ? (lane < 8 ? 2 * lane : 2 * (lane - 8) + 1) : lane;
}

static uint32_t four_bytes(const uint8_t* from) {
  uint32_t four;
  std::memcpy(&four, from, 4);
  return four;
}

// A half that is infinite or not a number.
static bool is_endless(const uint8_t* from) { return (from[1] & 0x7c) == 0x7c; }

// Four columns' bytes, or two columns' of 8 bits, are moved at once: a start waits for all of a model's weights.
static void pack_block(Format format, const uint8_t* from, int lane, uint8_t* to) {
  std::memcpy(to + 2 * lane, from, 2);
  if (format == Format::q4_1) std::memcpy(to + 16 + 2 * lane, from + 2, 2);
  uint8_t* weights = to + weights_offset(format);
  const uint8_t* own = from + (format == Format::q4_1 ? 4 : 2);
  if (format == Format::q8_0) {
    for (int pair = 0; pair < kBlock / 2; ++pair) std::memcpy(weights + 16 * pair + 2 * lane, own + 2 * pair, 2);
    return;
  }
  // The file holds columns 0..15 in the low halves of its 16 bytes and 16..31 in the high ones.
  constexpr uint32_t kLow = 0x0f0f0f0f, kHigh = 0xf0f0f0f0;
  for (int j = 0; j < 2; ++j) {
    const uint32_t first = four_bytes(own + 8 * j), second = four_bytes(own + 8 * j + 4);
    const uint32_t low = (first & kLow) | ((second & kLow) << 4), high = ((first >> 4) & kLow) | (second & kHigh);
    std::memcpy(weights + 32 * j + 4 * lane, &low, 4);
    std::memcpy(weights + 32 * (j + 2) + 4 * lane, &high, 4);
  }
}

void PackedMatrix::pack_rows(int64_t offset, int64_t rows, const void* from, int64_t stride) {
  if (offset < 0 || rows < 0 || offset + rows > outputs_) {
    throw std::out_of_range("rows " + std::to_string(offset) + ":" + std::to_string(offset + rows) +
                            " of a matrix of " + std::to_string(outputs_));
  }
  const int64_t lanes = panel_outputs(format_), unit = file_block_bytes(format_);
  auto pack = [&](int64_t begin, int64_t end) {
    bool endless = false;
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* source = static_cast<const uint8_t*>(from) + row * stride;
      const int lane = static_cast<int>((offset + row) % lanes);
      for (int64_t step = 0; step < steps(); ++step) {
        uint8_t* to = step_of(offset + row, step);
        if (!is_float(format_)) {
          pack_block(format_, source + step * unit, lane, to);
          endless |= is_endless(source + step * unit);
          if (format_ == Format::q4_1) endless |= is_endless(source + step * unit + 2);
        } else if (format_ == Format::f32) {
          std::memcpy(to + 4 * lane, source + step * unit, 4);
        } else {
          std::memcpy(to + 2 * half_place(format_, lane), source + step * unit, 2);
        }
      }
    }
    if (endless) finite_.store(false, std::memory_order_relaxed);
  };
  // Whole panels, so that two threads never write to one byte; the first may begin within a panel.
  const int64_t first = offset / lanes, last = (offset + rows + lanes - 1) / lanes;
  const int64_t panel_bytes = std::max<int64_t>(steps() * panel_step_bytes(format_), 1);
  for_ranges(last - first, std::max<int64_t>(1, kPackedBytes / panel_bytes), [&](int64_t begin, int64_t end) {
    pack(std::max<int64_t>((first + begin) * lanes - offset, 0), std::min((first + end) * lanes - offset, rows));
  });
  forget_stalls();
}

void PackedMatrix::multiply(
    const LinearInput& in, const void* bias, DType bias_type, const LinearOutput& out) const {
  if (in.rows <= 0 || outputs_ == 0) return;
  const Path& path = current_path();
  if (path.spread_bytes && !is_float(format_)) {
    const int64_t row_bytes = std::max<int64_t>(steps() * path.spread_bytes, 1);
    const int64_t most = std::max(kRows, kSpreadBytes / row_bytes / kRows * kRows);
    for (int64_t row = 0; in.rows > most && row < in.rows; row += most) {
      const LinearInput part{at(in.x, row * in.stride, in.type), in.type, in.stride, std::min(most, in.rows - row)};
      multiply(part, bias, bias_type, {at(out.y, row * out.stride, out.type), out.type, out.stride});
    }
    if (in.rows > most) return;
  }
  LinearJob job{};
  job.weights = memory_.data();
  job.format = format_;
  job.outputs = outputs_;
  job.columns = columns_;
  job.bias = bias;
  job.bias_type = bias_type;
  job.y = out.y;
  job.y_type = out.type;
  job.y_stride = out.stride;
  int64_t row_bytes = columns_ * 4;
  QuantizeJob quantize{in.x, in.type, in.stride, columns_, nullptr, wide_ || format_ == Format::q8_0,
      format_ == Format::q4_0 ? -8.0f : 1.0f, format_ != Format::q8_0, in.rows};
  bool each_its_own = false;
  if (is_float(format_)) {
    job.x = static_cast<const float*>(in.x);
    job.x_stride = in.stride;
    if (in.type != DType::f32) {
      auto* converted = static_cast<float*>(scratch(0, in.rows * columns_ * 4));
      for (int64_t row = 0; row < in.rows; ++row)
        for (int64_t k = 0; k < columns_; ++k)
          converted[row * columns_ + k] = load_any(in.x, row * in.stride + k, in.type);
      job.x = converted;
      job.x_stride = columns_;
    }
  } else {
    job.wide = quantize.wide;
    job.finite = finite_.load(std::memory_order_relaxed);
    job.rows = in.rows;
    row_bytes = columns_ / kBlock * (path.spread_bytes ? path.spread_bytes : activation_bytes(job.wide));
    each_its_own = in.rows * columns_ <= (path.spread_bytes ? kOwnSpread : kOwnActivations) &&
                   outputs_ >= kOwnOutputs * num_threads();
    if (!each_its_own) {
      job.blocks = quantize.blocks = static_cast<uint8_t*>(scratch(0, in.rows * row_bytes));
      const int64_t share = path.spread_bytes ? 2400 : 4096;  // of numbers: spreading them takes longer
      for_ranges(in.rows, std::max<int64_t>(1, share / std::max<int64_t>(columns_, 1)),
          [&](int64_t begin, int64_t end) { path.quantize(quantize, begin, end); });
    }
  }

  const int64_t fitting = std::max(kRows, kRowBytes / std::max<int64_t>(row_bytes, 1) / kRows * kRows);
  const int64_t row_chunks = (in.rows + fitting - 1) / fitting;
  const int64_t row_step = ((in.rows + row_chunks - 1) / row_chunks + kRows - 1) / kRows * kRows;
  // Integer kernels take panels in pairs; units of one size, in full turns of the threads, leave none with one more to
  // do than the others.
  const int64_t pair_work = 2 * std::min(row_step, in.rows) * columns_ * panel_outputs(format_);
  const int64_t pairs = (panels_ + 1) / 2, most = std::max<int64_t>(1, kUnitWork / std::max<int64_t>(pair_work, 1));
  const int64_t least = (pairs + most - 1) / most, threads = num_threads();
  const int64_t chunks = least > threads ? (least + threads - 1) / threads * threads : least;
  const int64_t panel_step = 2 * ((pairs + chunks - 1) / chunks);
  const int64_t panel_chunks = (panels_ + panel_step - 1) / panel_step;
  auto begin = [&](int64_t unit) {
    if (!each_its_own) return job;
    LinearJob own = job;
    QuantizeJob alone = quantize;
    own.blocks = alone.blocks = static_cast<uint8_t*>(scratch(0, in.rows * row_bytes));
    // The first panels come from memory meanwhile; from there on kernels ask ahead.
    const int64_t panel_bytes = steps() * panel_step_bytes(format_), first = unit % panel_chunks * panel_step;
    const int64_t ahead = std::min<int64_t>(std::min<int64_t>(2, panels_ - first) * panel_bytes / in.rows, 1024);
    const uint8_t* weights = job.weights + first * panel_bytes;
    for (int64_t row = 0; row < in.rows; ++row) {
      for (int64_t line = row * ahead; line < (row + 1) * ahead; line += 64) __builtin_prefetch(weights + line);
      path.quantize(alone, row, row + 1);
    }
    return own;
  };
  for_shares(panel_chunks * row_chunks, begin, [&](const LinearJob& own, int64_t unit) {
    const int64_t row = unit / panel_chunks * row_step, panel = unit % panel_chunks * panel_step;
    path.linear(own, panel, std::min(panel + panel_step, panels_), row, std::min(row + row_step, in.rows));
  });
}

void PackedMatrix::read_row(int64_t output, void* to, DType type) const {
  const int lane = static_cast<int>(output % panel_outputs(format_));
  for (int64_t step = 0; step < steps(); ++step) {
    const uint8_t* from = step_of(output, step);
    if (is_float(format_)) {
      const auto own = static_cast<DType>(static_cast<int>(format_));
      store_any(to, step, type, load_any(from, half_place(format_, lane), own));
      continue;
    }
    const float scale = load_any(from, lane, DType::f16);
    const float minimum = format_ == Format::q4_1 ? load_any(from + 16, lane, DType::f16) : 0.0f;
    const uint8_t* weights = from + weights_offset(format_);
    for (int k = 0; k < kBlock; ++k) {
      float value;
      if (format_ == Format::q8_0) {
        value = static_cast<int8_t>(weights[16 * (k / 2) + 2 * lane + k % 2]);
      } else {
        const uint8_t both = weights[32 * (k / 8) + 4 * lane + k % 4];
        value = static_cast<float>(k % 8 < 4 ? both & 15 : both >> 4) - (format_ == Format::q4_0 ? 8.0f : 0.0f);
      }
      store_any(to, step * kBlock + k, type, value * scale + minimum);
    }
  }
}

void PackedMatrix::gather(const int64_t* ids, int64_t count, void* to, DType type) const {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= outputs_) {
      throw std::out_of_range("row " + std::to_string(ids[i]) + " of a matrix of " + std::to_string(outputs_));
    }
  }
  for_ranges(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) read_row(ids[i], at(to, i * columns_, type), type);
  });
}

}  // namespace graftlm
