// Sums over ranks, the larger of a number and zero, the best place of each row. It knows neither ranks nor tokens.
#pragma once

#include <cmath>

#include "path.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

template <class X>
static void sum_range(const SumJob& job, int64_t i, int64_t end) {
  X* y = static_cast<X*>(job.y);
  for (; i + 8 <= end; i += 8) {
    V8 total = load(static_cast<const X*>(job.parts[0]) + i);
    for (int part = 1; part < job.num_parts; ++part) total += load(static_cast<const X*>(job.parts[part]) + i);
    store(y + i, total);
  }
  for (; i < end; ++i) {
    float total = to_float(static_cast<const X*>(job.parts[0])[i]);
    for (int part = 1; part < job.num_parts; ++part) total += to_float(static_cast<const X*>(job.parts[part])[i]);
    from_float(total, y + i);
  }
}

static void sum(const SumJob& job, int64_t begin, int64_t end) {
  switch (job.type) {
    case DType::f32: sum_range<float>(job, begin, end); break;
    case DType::bf16: sum_range<Bf16>(job, begin, end); break;
    case DType::f16: sum_range<F16>(job, begin, end); break;
  }
}

template <class X>
static void relu_range(X* x, int64_t i, int64_t end) {
  for (; i + 8 <= end; i += 8) {
    const V8 value = load(x + i);
    store(x + i, value < V8{} ? V8{} : value);  // a NaN stays
  }
  for (; i < end; ++i) {
    if (to_float(x[i]) < 0.0f) from_float(0.0f, x + i);
  }
}

static void relu(void* x, DType type, int64_t begin, int64_t end) {
  switch (type) {
    case DType::f32: relu_range(static_cast<float*>(x), begin, end); break;
    case DType::bf16: relu_range(static_cast<Bf16*>(x), begin, end); break;
    case DType::f16: relu_range(static_cast<F16*>(x), begin, end); break;
  }
}

template <class X>
static void best_of_row(const BestJob& job, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  V8 best[4] = {set1(-INFINITY), set1(-INFINITY), set1(-INFINITY), set1(-INFINITY)};
  I8 is_nan = {};
  int64_t i = 0;
  for (; i + 32 <= job.columns; i += 32) {
    for (int j = 0; j < 4; ++j) {
      const V8 value = load(x + i + 8 * j);
      is_nan |= value != value;
      best[j] = max(value, best[j]);  // a NaN leaves what was best
    }
  }
  float most = max_of(max(max(best[0], best[1]), max(best[2], best[3])));
  bool any_nan = false;
  for (int j = 0; j < 8; ++j) any_nan |= is_nan[j] != 0;
  for (; i < job.columns; ++i) {
    const float value = to_float(x[i]);
    any_nan |= value != value;
    most = value > most ? value : most;
  }
  // The first place that holds it; a NaN outdoes every number.
  int64_t place = 0;
  const V8 wanted = set1(most);
  for (bool found = false; place + 8 <= job.columns; place += 8) {
    const V8 value = load(x + place);
    const I8 here = any_nan ? value != value : value == wanted;
    for (int j = 0; j < 8; ++j) found |= here[j] != 0;
    if (found) break;
  }
  for (; place < job.columns; ++place) {
    const float value = to_float(x[place]);
    if (any_nan ? value != value : value == most) break;
  }
  job.places[row] = place < job.columns ? place : 0;
  job.is_finite[row] = !any_nan && std::isfinite(most);
}

static void best(const BestJob& job, int64_t row, int64_t end) {
  for (; row < end; ++row) {
    switch (job.type) {
      case DType::f32: best_of_row<float>(job, row); break;
      case DType::bf16: best_of_row<Bf16>(job, row); break;
      case DType::f16: best_of_row<F16>(job, row); break;
    }
  }
}

}  // namespace graftlm::GRAFTLM_PATH
