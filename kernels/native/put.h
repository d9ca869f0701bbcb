// How a kernel hands over its results. It knows no weights.
#pragma once

#include "path.h"
#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

// Writes `count` outputs of one row, bias added, in the caller's number format.
GRAFTLM_INLINE void put(const LinearJob& job, int64_t row, int64_t output, V8 value, int64_t count) {
  if (count >= 8 && job.y_type == DType::f32 && (!job.bias || job.bias_type == DType::f32)) {
    if (job.bias) value += load(static_cast<const float*>(job.bias) + output);
    store(static_cast<float*>(job.y) + row * job.y_stride + output, value);
    return;
  }
  for (int64_t i = 0; i < 8 && i < count; ++i) {
    float one = value[i];
    if (job.bias) one += load_any(job.bias, output + i, job.bias_type);
    store_any(job.y, row * job.y_stride + output + i, job.y_type, one);
  }
}

}  // namespace graftlm::GRAFTLM_PATH
