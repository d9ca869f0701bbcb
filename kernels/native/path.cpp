// Chooses the instruction set once, when it is first asked for.
#include "path.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace graftlm {

[[maybe_unused]] static bool has_avx2() {
#if GRAFTLM_HAS_AVX2
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

[[maybe_unused]] static bool has_avx512() {
#if GRAFTLM_HAS_AVX512
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

static const Path& named(const std::string& name) {
  const bool any = name.empty();
  if (!any && name != "avx512" && name != "avx2" && name != "generic") {
    throw std::runtime_error(
        "kernels path '" + name + "' is not known; set avx512, avx2 or generic, or leave it unset");
  }
#if GRAFTLM_HAS_AVX512
  if ((any || name == "avx512") && has_avx512()) return avx512_path();
#endif
#if GRAFTLM_HAS_AVX2
  if ((any || name == "avx2") && has_avx2()) return avx2_path();
#endif
  if (!any && name != "generic") {
    const char* lacks = name == "avx2" ? "AVX2, FMA or F16C" : "AVX-512 F, BW, DQ, VL or VNNI";
    throw std::runtime_error("kernels path '" + name + "': this processor lacks " + lacks + "; leave it unset");
  }
  return generic_path();
}

static std::atomic<const Path*> chosen{nullptr};

const Path& current_path() {
  const Path* path = chosen.load(std::memory_order_relaxed);
  if (!path) {
    const char* wish = std::getenv("GRAFTLM_KERNELS_PATH");
    path = &named(wish ? wish : "");
    chosen.store(path);
  }
  return *path;
}

void use_path(const std::string& name) { chosen.store(&named(name)); }

}  // namespace graftlm
