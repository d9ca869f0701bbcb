// A weight matrix in the order in which kernels read it, in its own number format. It knows no tensor library.
#pragma once

#include <atomic>

#include "path.h"
#include "weight_memory.h"

namespace graftlm {

struct LinearInput {
  const void* x;
  DType type;
  int64_t stride;
  int64_t rows;
};

struct LinearOutput {
  void* y;
  DType type;
  int64_t stride;
};

class PackedMatrix {
 public:
  // Weights start as zeros; integer formats need whole blocks of 32 columns.
  PackedMatrix(Format format, int64_t outputs, int64_t columns);
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  // Copies `rows` rows (floats, or GGUF blocks) that begin `stride` bytes apart to rows `offset` on.
  void pack_rows(int64_t offset, int64_t rows, const void* from, int64_t stride);

  // y = x times the transposed matrix, plus bias where there is one.
  void multiply(const LinearInput& in, const void* bias, DType bias_type, const LinearOutput& out) const;

  // Activations of 4-bit weights in 16 bits (as exact as float32) or in 8 (faster in batches).
  void set_wide(bool wide) { wide_ = wide; }

  // Rows `ids` as plain numbers, one behind the other.
  void gather(const int64_t* ids, int64_t count, void* to, DType type) const;

  Format format() const { return format_; }
  int64_t outputs() const { return outputs_; }
  int64_t columns() const { return columns_; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t steps() const { return is_float(format_) ? columns_ : columns_ / kBlock; }
  uint8_t* step_of(int64_t output, int64_t step) const;
  void read_row(int64_t output, void* to, DType type) const;

  Format format_;
  bool wide_ = true;
  std::atomic<bool> finite_{true};  // scales and minima: known from packing, so that no kernel looks
  int64_t outputs_;
  int64_t columns_;
  int64_t panels_;
  int64_t bytes_;
  WeightMemory memory_;
};

}  // namespace graftlm
