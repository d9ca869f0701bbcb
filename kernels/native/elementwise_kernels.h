// Normalization, gated activation and rotary embedding, row by row. It knows no layer.
#pragma once

#include <cmath>

#include "path.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

template <class X>
static void rms_norm_row(const NormJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  X* residual = job.residual ? static_cast<X*>(job.residual) + row * job.residual_stride : nullptr;
  const X* weight = static_cast<const X*>(job.weight);
  X* y = static_cast<X*>(job.y) + row * job.columns;
  const int64_t columns = job.columns;
  V8 squares = V8{};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + 8 <= columns; i += 8) {
    V8 value = load(x + i);
    if (residual) {
      value += load(residual + i);
      store(residual + i, value);
      value = load(residual + i);  // as the residual keeps it
    }
    squares = fma(value, value, squares);
  }
  for (; i < columns; ++i) {
    float value = to_float(x[i]);
    if (residual) {
      from_float(value + to_float(residual[i]), residual + i);
      value = to_float(residual[i]);
    }
    rest += value * value;
  }
  const float mean = (sum_of(squares) + rest) / static_cast<float>(columns);
  const float factor = 1.0f / std::sqrt(mean + job.eps);
  const X* from = residual ? residual : x;
  for (i = 0; i + 8 <= columns; i += 8) store(y + i, load(from + i) * set1(factor) * load(weight + i));
  for (; i < columns; ++i) from_float(to_float(from[i]) * factor * to_float(weight[i]), y + i);
}

static void rms_norm(const NormJob& job, int64_t row, int64_t row_end) {
  for (; row < row_end; ++row) {
    switch (job.type) {
      case DType::f32: rms_norm_row<float>(job, row); break;
      case DType::bf16: rms_norm_row<Bf16>(job, row); break;
      case DType::f16: rms_norm_row<F16>(job, row); break;
    }
  }
}

// (x - mean) / sqrt(variance + eps) * weight + bias. The variance is that of differences from the mean: sums of squares
// would lose what a large mean leaves of it.
template <class X>
static void layer_norm_row(const NormJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  X* residual = job.residual ? static_cast<X*>(job.residual) + row * job.residual_stride : nullptr;
  const X *weight = static_cast<const X*>(job.weight), *bias = static_cast<const X*>(job.bias);
  X* y = static_cast<X*>(job.y) + row * job.columns;
  const int64_t columns = job.columns, whole = columns / 8 * 8;
  if (residual) {
    for (int64_t i = 0; i < whole; i += 8) store(residual + i, load(x + i) + load(residual + i));
    for (int64_t i = whole; i < columns; ++i) from_float(to_float(x[i]) + to_float(residual[i]), residual + i);
    x = residual;
  }
  V8 sums = V8{};
  float rest = 0.0f;
  for (int64_t i = 0; i < whole; i += 8) sums += load(x + i);
  for (int64_t i = whole; i < columns; ++i) rest += to_float(x[i]);
  const float mean = (sum_of(sums) + rest) / static_cast<float>(columns);
  V8 squares = V8{};
  rest = 0.0f;
  for (int64_t i = 0; i < whole; i += 8) {
    const V8 difference = load(x + i) - set1(mean);
    squares = fma(difference, difference, squares);
  }
  for (int64_t i = whole; i < columns; ++i) rest += (to_float(x[i]) - mean) * (to_float(x[i]) - mean);
  const float variance = (sum_of(squares) + rest) / static_cast<float>(columns);
  const float factor = 1.0f / std::sqrt(variance + job.eps);
  for (int64_t i = 0; i < whole; i += 8) {
    const V8 value = (load(x + i) - set1(mean)) * set1(factor) * (weight ? load(weight + i) : set1(1.0f));
    store(y + i, bias ? value + load(bias + i) : value);
  }
  for (int64_t i = whole; i < columns; ++i) {
    const float value = (to_float(x[i]) - mean) * factor * (weight ? to_float(weight[i]) : 1.0f);
    from_float(bias ? value + to_float(bias[i]) : value, y + i);
  }
}

static void layer_norm(const NormJob& job, int64_t row, int64_t row_end) {
  for (; row < row_end; ++row) {
    switch (job.type) {
      case DType::f32: layer_norm_row<float>(job, row); break;
      case DType::bf16: layer_norm_row<Bf16>(job, row); break;
      case DType::f16: layer_norm_row<F16>(job, row); break;
    }
  }
}

GRAFTLM_INLINE V8 silu(V8 x) { return x / (set1(1.0f) + exp(-x)); }

template <class X>
static void silu_and_mul_row(const ActivationJob& job, int64_t row, int64_t begin, int64_t end) {
  const X* gate = static_cast<const X*>(job.x) + row * job.x_stride;
  const X* up = gate + job.columns;
  X* y = static_cast<X*>(job.y) + row * job.columns;
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) store(y + i, silu(load(gate + i)) * load(up + i));
  for (; i < end; ++i) from_float(silu(set1(to_float(gate[i])))[0] * to_float(up[i]), y + i);
}

static void silu_and_mul(const ActivationJob& job, int64_t row, int64_t begin, int64_t end) {
  switch (job.type) {
    case DType::f32: silu_and_mul_row<float>(job, row, begin, end); break;
    case DType::bf16: silu_and_mul_row<Bf16>(job, row, begin, end); break;
    case DType::f16: silu_and_mul_row<F16>(job, row, begin, end); break;
  }
}

// Reads one head into `to`, rotated where there is a rotation, times `factor`.
template <class X>
GRAFTLM_INLINE void read_head(
    const X* from, const Rotation& rotation, int64_t token, int64_t head_size, float factor, float* to) {
  const int64_t dims = rotation.table ? rotation.dims : 0;
  if (dims) {
    const int64_t row = rotation.positions[token] * 2 * dims;
    const int64_t half = dims / 2;
    if (rotation.neox && rotation.table_type == DType::f32 && half % 8 == 0) {
      const float* cosines = static_cast<const float*>(rotation.table) + row;
      const float* sines = cosines + dims;
      for (int64_t i = 0; i < half; i += 8) {
        const V8 first = load(from + i), second = load(from + half + i);
        store(to + i, (first * load(cosines + i) + second * load(sines + i)) * set1(factor));
        store(to + half + i, (second * load(cosines + half + i) + first * load(sines + half + i)) * set1(factor));
      }
    } else {
      for (int64_t i = 0; i < dims; ++i) {
        const int64_t partner = rotation.neox ? (i < half ? i + half : i - half) : i ^ 1;
        const float cosine = load_any(rotation.table, row + i, rotation.table_type);
        const float sine = load_any(rotation.table, row + dims + i, rotation.table_type);
        to[i] = (to_float(from[i]) * cosine + to_float(from[partner]) * sine) * factor;
      }
    }
  }
  int64_t i = dims;
  for (; i + 8 <= head_size; i += 8) store(to + i, load(from + i) * set1(factor));
  for (; i < head_size; ++i) to[i] = to_float(from[i]) * factor;
}

// Largest head that a kernel keeps on its stack; larger ones are refused before any kernel runs.
constexpr int64_t kMaxHead = 1024;

template <class X>
static void rotate_token(const RotateJob& job, int64_t token) {
  float head[kMaxHead];
  for (int64_t h = 0; h < job.heads; ++h) {
    const X* from = static_cast<const X*>(job.x) + token * job.x_stride + h * job.head_size;
    X* to = static_cast<X*>(job.y) + token * job.y_stride + h * job.head_size;
    read_head(from, job.rotation, token, job.head_size, 1.0f, head);
    for (int64_t i = 0; i < job.head_size; ++i) from_float(head[i], to + i);
  }
}

static void rotate(const RotateJob& job, int64_t token, int64_t end) {
  for (; token < end; ++token) {
    switch (job.type) {
      case DType::f32: rotate_token<float>(job, token); break;
      case DType::bf16: rotate_token<Bf16>(job, token); break;
      case DType::f16: rotate_token<F16>(job, token); break;
    }
  }
}

}  // namespace graftlm::GRAFTLM_PATH
