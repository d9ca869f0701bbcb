// The kernels compiled for AVX-512 with VNNI; nothing here may run on a processor without them.
#define GRAFTLM_PATH avx512
#define GRAFTLM_USE_AVX2 1
#define GRAFTLM_USE_VNNI 1

#include "attention_kernels.h"
#include "linear_kernels.h"
#include "peak_kernels.h"
#include "quantize_kernels.h"
#include "row_kernels.h"

namespace graftlm {

const Path& avx512_path() {
  static constexpr Path path{"avx512", avx512::quantize, avx512::linear, avx512::rms_norm, avx512::layer_norm,
      avx512::silu_and_mul, avx512::rotate, avx512::write_cache, avx512::attend, avx512::sum, avx512::relu, avx512::best,
      avx512::peak, avx512::read_through};
  return path;
}

}  // namespace graftlm
