// Runs every kernel on every path over memory of exactly the right size and compares with a plain loop.
//
// Built with AddressSanitizer and UBSan (or ThreadSanitizer) it finds what a comparison cannot. It needs neither
// Python nor torch. `check full` runs the whole grid.
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

static void check_linear(Format format, bool wide, int outputs, int columns, int rows) {
  PackedMatrix matrix(format, outputs, columns);
  matrix.set_wide(wide);
  const int64_t unit = format == Format::q4_0 ? 18 : format == Format::q4_1 ? 20 : 34;
  const int64_t row_bytes =
      is_float(format) ? columns * (format == Format::f32 ? 4 : 2) : columns / kBlock * unit;
  std::vector<uint8_t> file(static_cast<size_t>(outputs * row_bytes));
  for (uint8_t& byte : file) byte = static_cast<uint8_t>(below(256));
  for (int o = 0; o < outputs; ++o) {
    uint8_t* row = file.data() + o * row_bytes;
    if (is_float(format)) {
      for (int k = 0; k < columns; ++k) store_any(row, k, static_cast<DType>(static_cast<int>(format)), normal());
    } else {
      for (int b = 0; b < columns / kBlock; ++b) {
        F16 scale, minimum;
        from_float(normal() * 0.02f, &scale);
        from_float(normal() * 0.1f, &minimum);
        std::memcpy(row + b * unit, &scale, 2);
        if (format == Format::q4_1) std::memcpy(row + b * unit + 2, &minimum, 2);
      }
    }
  }
  const int cut = below(outputs + 1);
  matrix.pack_rows(0, cut, file.data(), row_bytes);
  matrix.pack_rows(cut, outputs - cut, file.data() + cut * row_bytes, row_bytes);
  std::vector<int64_t> ids(static_cast<size_t>(outputs));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> numbers(static_cast<size_t>(outputs) * columns);
  matrix.gather(ids.data(), outputs, numbers.data(), DType::f32);

  const std::vector<float> x = normals(static_cast<size_t>(rows) * columns), bias = normals(outputs);
  std::vector<float> y(static_cast<size_t>(rows) * outputs);
  matrix.multiply({x.data(), DType::f32, columns, rows}, bias.data(), DType::f32, {y.data(), DType::f32, outputs});
  std::vector<double> expected(y.size());
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) {
      double sum = bias[o];
      for (int k = 0; k < columns; ++k) sum += double{x[r * columns + k]} * numbers[o * columns + k];
      expected[r * outputs + o] = sum;
    }
  }
  // Activations in whole numbers of 8 bits lose up to half a step of 127 each.
  compare("linear " + std::to_string(static_cast<int>(format)) + " " + std::to_string(outputs) + "x" +
              std::to_string(columns) + " rows " + std::to_string(rows),
      y, expected, wide ? 1e-4 : 2e-2);
}

static void check_rows(int rows, int columns) {
  const Path& path = current_path();
  const auto x = normals(static_cast<size_t>(rows) * columns), weight = normals(columns);
  auto residual = normals(x.size());
  std::vector<double> expected(x.size());
  for (int r = 0; r < rows; ++r) {
    double squares = 0;
    for (int i = 0; i < columns; ++i) squares += std::pow(x[r * columns + i] + residual[r * columns + i], 2);
    for (int i = 0; i < columns; ++i) {
      const double sum = x[r * columns + i] + residual[r * columns + i];
      expected[r * columns + i] = sum / std::sqrt(squares / columns + 1e-5) * weight[i];
    }
  }
  std::vector<float> y(x.size());
  path.rms_norm({x.data(), columns, residual.data(), columns, weight.data(), y.data(), columns, 1e-5f, DType::f32}, 0,
      rows);
  compare("rms_norm " + std::to_string(columns), y, expected, 3e-6);

  auto other = normals(x.size());
  const auto bias = normals(columns);
  for (int r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int i = 0; i < columns; ++i) mean += (double{x[r * columns + i]} + other[r * columns + i]) / columns;
    for (int i = 0; i < columns; ++i)
      variance += std::pow(x[r * columns + i] + other[r * columns + i] - mean, 2) / columns;
    for (int i = 0; i < columns; ++i) {
      const double sum = double{x[r * columns + i]} + other[r * columns + i];
      expected[r * columns + i] = (sum - mean) / std::sqrt(variance + 1e-5) * weight[i] + bias[i];
    }
  }
  path.layer_norm({x.data(), columns, other.data(), columns, weight.data(), y.data(), columns, 1e-5f, DType::f32,
      bias.data()}, 0, rows);
  compare("layer_norm " + std::to_string(columns), y, expected, 1e-5);

  const auto both = normals(2 * x.size());
  path.silu_and_mul({both.data(), 2 * columns, y.data(), columns, DType::f32}, 0, 0, columns);
  for (int r = 1; r < rows; ++r) path.silu_and_mul({both.data(), 2 * columns, y.data(), columns, DType::f32}, r, 0, columns);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < columns; ++i) {
      const double gate = both[r * 2 * columns + i], up = both[r * 2 * columns + columns + i];
      expected[r * columns + i] = gate / (1 + std::exp(-gate)) * up;
    }
  }
  compare("silu_and_mul " + std::to_string(columns), y, expected, 3e-6);
}

static void check_attention(int kv_heads, int group, int head_size, int block_size, DType cache_type, int longest) {
  struct Request {
    int past, queries;
  };
  std::vector<Request> requests{{0, 1}, {below(longest), 1}, {below(longest), 1 + below(40)}, {longest, 1}};
  std::vector<int32_t> query_start{0}, seq_lens;
  int blocks = 0, width = 0;
  for (const Request& r : requests) {
    query_start.push_back(query_start.back() + r.queries);
    seq_lens.push_back(r.past + r.queries);
    const int own = (r.past + r.queries + block_size - 1) / block_size;
    width = std::max(width, own);
    blocks += own;
  }
  std::vector<int32_t> order(blocks), table(requests.size() * width);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), generator);
  const int heads = kv_heads * group, tokens = query_start.back();
  const int64_t row = static_cast<int64_t>(kv_heads) * head_size;
  CacheGeometry cache{nullptr, cache_type, kv_heads, block_size, head_size};
  std::vector<uint8_t> memory(static_cast<size_t>(blocks * 2 * kv_heads * cache.tile() * size_of(cache_type)));
  cache.cache = memory.data();
  const auto query = normals(static_cast<size_t>(tokens) * heads * head_size);
  std::vector<float> output(query.size());
  std::vector<double> expected(query.size());
  int next = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const int keys = seq_lens[r];
    for (int b = 0; b * block_size < keys; ++b) table[r * width + b] = order[next++];
    auto key = normals(keys * row), value = normals(keys * row);
    std::vector<int64_t> slots;
    for (int t = 0; t < keys; ++t)
      slots.push_back(int64_t{table[r * width + t / block_size]} * block_size + t % block_size);
    write_cache({cache, {}, key.data(), row, value.data(), row, DType::f32, slots.data()}, keys);
    for (auto* numbers : {&key, &value})  // as the cache keeps them
      for (float& number : *numbers) {
        uint8_t kept[4];
        store_any(kept, 0, cache_type, number);
        number = load_any(kept, 0, cache_type);
      }
    for (int i = 0; i < requests[r].queries; ++i) {
      for (int h = 0; h < heads; ++h) {
        const int64_t place = ((query_start[r] + i) * int64_t{heads} + h) * head_size;
        const int seen = requests[r].past + i + 1;
        std::vector<double> weights(seen);
        double most = -INFINITY, total = 0;
        for (int t = 0; t < seen; ++t) {
          double score = 0;
          for (int d = 0; d < head_size; ++d)
            score += double{query[place + d]} * key[t * row + h / group * head_size + d];
          weights[t] = score * 0.25;
          most = std::max(most, weights[t]);
        }
        for (double& weight : weights) total += weight = std::exp(weight - most);
        for (int d = 0; d < head_size; ++d) {
          double sum = 0;
          for (int t = 0; t < seen; ++t) sum += weights[t] / total * value[t * row + h / group * head_size + d];
          expected[place + d] = sum;
        }
      }
    }
  }
  AttentionJob job{cache, {}, query.data(), int64_t{heads} * head_size, output.data(), int64_t{heads} * head_size,
      DType::f32, group, 0.25f, table.data(), width, nullptr};
  attend(job, {query_start.data(), seq_lens.data(), static_cast<int64_t>(requests.size())});
  compare("attention heads " + std::to_string(kv_heads) + "x" + std::to_string(group) + " size " +
              std::to_string(head_size) + " blocks " + std::to_string(block_size),
      output, expected, 2e-5);
}

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
    for (Format format : {Format::f32, Format::bf16, Format::f16, Format::q4_0, Format::q4_1, Format::q8_0}) {
      for (int rows : full ? std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 12, 33, 130, 512} : std::vector<int>{0, 1, 3, 6, 33}) {
        for (bool wide : {true, false}) {
          check_linear(format, wide, 1, 32, rows);
          check_linear(format, wide, 7, 64, rows);
          check_linear(format, wide, 70, 96, rows);
          if (is_float(format)) check_linear(format, wide, 35, 13, rows);
          if (full) check_linear(format, wide, 256, 576, rows);
        }
      }
    }
    for (int columns : {1, 7, 8, 33, 576}) check_rows(5, columns);
    for (int columns : {1, 7, 32, 45, 1000}) check_best(3, columns);
    for (DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (int group : {1, 3, 8, 30}) {
        check_attention(1 + below(3), group, 8 * (1 + below(10)), 8 << below(5), type, 50);
        check_attention(1, group, 20, 16, type, full ? 8000 : 1700);
      }
    }
  }
  for (int size : {2, 4}) check_collectives(size, full ? 200 : 20);
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
