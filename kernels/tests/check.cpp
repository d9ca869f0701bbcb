// Runs every kernel on every path over memory of exactly the right size and compares with a plain loop.
//
// Built with AddressSanitizer and UBSan (or ThreadSanitizer) it finds what a comparison cannot. It needs neither
// Python nor torch. `check full` draws more shapes, and contexts of up to 8,192.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../native/all_reduce.h"
#include "../native/attention.h"
#include "../native/linear.h"
#include "../native/pool.h"
#include "../native/stalls.h"

using namespace graftlm;

static std::mt19937 generator(7);
static int checks = 0, failures = 0;

static float normal() { return std::normal_distribution<float>()(generator); }
static int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(generator); }

static std::vector<float> normals(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = normal();
  return values;
}

static void compare(const std::string& what, const std::vector<float>& found, const std::vector<double>& expected,
    double relative) {
  double scale = 1e-6, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    scale = std::max(scale, std::fabs(expected[i]));
    const double one = std::fabs(found[i] - expected[i]);
    error = std::isnan(one) ? INFINITY : std::max(error, one);
  }
  ++checks;
  if (error > relative * scale) {
    ++failures;
    std::printf("FAILED %s: error %g of %g\n", what.c_str(), error, scale);
  }
}

#include "check_linear.h"
#include "check_rows.h"
#include "check_attention.h"
#include "check_drawn.h"
#include "check_pool.h"
#include "check_ranks.h"

int main(int argc, char** argv) {
  const bool full = argc > 1 && std::string(argv[1]) == "full";
  check_stalls();
  check_pool();
  set_num_threads(3);
  for (const char* name : {"generic", "avx2", "avx512"}) {
    try {
      use_path(name);
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      continue;
    }
    for (const Format format : kFormats) {
      for (const bool wide : {true, false}) {
        for (const int rows : {0, 1, 3, 6, 33}) {
          check_linear({format, wide, 1, 32, rows});
          check_linear({format, wide, 7, 64, rows});
          check_linear({format, wide, 70, 96, rows});
          if (rows < 6) check_linear({format, wide, 800, 96, rows});  // each thread makes its own whole numbers
        }
        if (full) check_linear({format, wide, 256, 576, 512});
      }
    }
    for (const int columns : {1, 7, 8, 33, 576}) check_norms(DType::f32, 5, columns, 0);
    for (int columns : {1, 7, 32, 45, 1000}) check_best(3, columns);
    check_attention({{}, 2, 3, 16, 16});
    // More heads than fit a task.
    check_attention({{{1700, 1}, {3, 30}}, 1, 30, 20, 16});
    check_drawn(full);
  }
  for (int size : {2, 4}) check_collectives(size, full ? 200 : 20);
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
