// The kernels in the compiler's vector extensions, for every processor.
#define GRAFTLM_PATH generic
#define GRAFTLM_USE_AVX2 0

#include "attention_kernels.h"
#include "linear_kernels.h"
#include "peak_kernels.h"
#include "quantize_kernels.h"
#include "row_kernels.h"

namespace graftlm {

const Path& generic_path() {
  static constexpr Path path{"generic", generic::quantize, generic::linear, generic::rms_norm, generic::layer_norm,
      generic::silu_and_mul, generic::rotate, generic::write_cache, generic::attend, generic::sum, generic::relu, generic::best,
      generic::peak, generic::read_through, sizeof(generic::Spread)};
  return path;
}

}  // namespace graftlm
