// The kernels compiled for AVX2, FMA and F16C; nothing here may run on a processor without them.
#define GRAFTLM_PATH avx2
#define GRAFTLM_USE_AVX2 1

#include "attention_kernels.h"
#include "linear_kernels.h"
#include "peak_kernels.h"
#include "quantize_kernels.h"
#include "row_kernels.h"

namespace graftlm {

const Path& avx2_path() {
  static constexpr Path path{"avx2", avx2::quantize, avx2::linear, avx2::rms_norm, avx2::layer_norm,
      avx2::silu_and_mul, avx2::rotate, avx2::write_cache, avx2::attend, avx2::sum, avx2::relu, avx2::best, avx2::peak,
      avx2::read_through};
  return path;
}

}  // namespace graftlm
