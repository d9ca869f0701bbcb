// Chooses the instruction set once, when it is first asked for.
#include "path.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace graftlm {

static bool has_avx2() {
#if GRAFTLM_HAS_AVX2
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

static const Path& choose() {
  const char* named = std::getenv("GRAFTLM_KERNELS_PATH");
  const std::string name = named ? named : "";
  if (name == "generic") return generic_path();
  if (!name.empty() && name != "avx2") {
    throw std::runtime_error("GRAFTLM_KERNELS_PATH=" + name + " is not known; set avx2 or generic, or unset it");
  }
#if GRAFTLM_HAS_AVX2
  if (has_avx2()) return avx2_path();
#endif
  if (name == "avx2") {
    throw std::runtime_error("GRAFTLM_KERNELS_PATH=avx2, and this processor lacks AVX2, FMA or F16C; unset it");
  }
  return generic_path();
}

const Path& current_path() {
  static const Path& path = choose();
  return path;
}

}  // namespace graftlm
