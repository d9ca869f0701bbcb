// Chooses the instruction set once, when it is first asked for.
#include "path.h"

#include <atomic>
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

static const Path& named(const std::string& name) {
  if (name == "generic") return generic_path();
  if (name != "avx2" && !name.empty()) {
    throw std::runtime_error("kernels path '" + name + "' is not known; set avx2 or generic, or leave it unset");
  }
#if GRAFTLM_HAS_AVX2
  if (has_avx2()) return avx2_path();
#endif
  if (name == "avx2") {
    throw std::runtime_error("kernels path 'avx2': this processor lacks AVX2, FMA or F16C; leave it unset");
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
