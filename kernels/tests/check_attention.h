// Paged attention beside one query at a time in double precision; a part of check.cpp, whose counters and draws it uses.
#pragma once

struct AttentionShape {
  struct Request {
    int past, queries;
  };
  std::vector<Request> requests;
  int kv_heads, group, head_size, block_size;
  DType type = DType::f32, cache_type = DType::f32;
  int rotated_dims = 0;  // 0: no rotation
  bool neox = true;
  int gap = 0;  // numbers between rows of queries, keys, values and results
};

static std::string told(const AttentionShape& shape) {
  std::string text = "attention " + std::to_string(shape.kv_heads) + " heads for " + std::to_string(shape.group) +
      " each of " + std::to_string(shape.head_size) + ", blocks of " + std::to_string(shape.block_size) + ", " +
      name_of(shape.type) + " over " + name_of(shape.cache_type) + ", rotated " + std::to_string(shape.rotated_dims) +
      (shape.neox ? " in halves" : " in pairs") + ", gap " + std::to_string(shape.gap) + ", past+queries";
  for (const auto& request : shape.requests)
    text += " " + std::to_string(request.past) + "+" + std::to_string(request.queries);
  return text;
}

// One query's result [head_size], given its keys and values as the cache keeps them.
static void attend_plainly(const std::vector<double>& query, const std::vector<float>& key,
    const std::vector<float>& value, int64_t row, int64_t place, int seen, std::vector<double>& expected) {
  const auto head_size = static_cast<int64_t>(query.size());
  std::vector<double> weights(seen), sums(query.size());
  double most = -INFINITY, total = 0;
  for (int t = 0; t < seen; ++t) {
    double score = 0;
    for (int64_t d = 0; d < head_size; ++d) score += query[d] * key[t * row + place + d];
    weights[t] = score / std::sqrt(static_cast<double>(head_size));
    most = std::max(most, weights[t]);
  }
  for (double& weight : weights) total += weight = std::exp(weight - most);
  for (int t = 0; t < seen; ++t)
    for (int64_t d = 0; d < head_size; ++d) sums[d] += weights[t] / total * value[t * row + place + d];
  expected.insert(expected.end(), sums.begin(), sums.end());
}

static void check_attention(const AttentionShape& shape) {
  const int heads = shape.kv_heads * shape.group, head_size = shape.head_size, block_size = shape.block_size;
  const int64_t row = int64_t{shape.kv_heads} * head_size;
  std::vector<int32_t> query_start{0}, seq_lens;
  int blocks = 0, width = 0, known = 0;
  for (const auto& request : shape.requests) {
    const int length = request.past + request.queries, own = (length + block_size - 1) / block_size;
    query_start.push_back(query_start.back() + request.queries);
    seq_lens.push_back(length);
    width = std::max(width, own);
    blocks += own;
    known += length;
  }
  // Blocks in any order; what follows a table's last block is never looked at, nor what follows a request's last key.
  std::vector<int32_t> order(blocks), table(shape.requests.size() * width, INT32_MAX);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), generator);
  CacheGeometry cache{nullptr, shape.cache_type, shape.kv_heads, block_size, head_size};
  std::vector<uint8_t> memory(static_cast<size_t>(blocks * 2 * shape.kv_heads * cache.tile() * size_of(cache.type)), 0xff);
  cache.cache = memory.data();

  const int tokens = query_start.back();
  Numbers query = Numbers::drawn(shape.type, tokens, heads * head_size, shape.gap);
  Numbers keys = Numbers::drawn(shape.type, known, static_cast<int>(row), shape.gap);
  Numbers values = Numbers::drawn(shape.type, known, static_cast<int>(row), 2 * shape.gap);
  Numbers output(shape.type, tokens, heads * head_size, shape.gap);
  const int dims = std::max(shape.rotated_dims, 2);
  DrawnRotation of_keys(DType::f32, known, dims, shape.neox), of_queries(DType::f32, tokens, dims, shape.neox);
  const bool rotates = shape.rotated_dims > 0;
  std::vector<int64_t> slots;
  int next = 0;
  for (size_t r = 0; r < shape.requests.size(); ++r) {
    for (int b = 0; b * block_size < seq_lens[r]; ++b) table[r * width + b] = order[next++];
    for (int t = 0; t < seq_lens[r]; ++t)
      slots.push_back(int64_t{table[r * width + t / block_size]} * block_size + t % block_size);
  }
  write_cache({cache, rotates ? of_keys.job() : Rotation{}, keys.data(), keys.stride, values.data(), values.stride,
                  shape.type, slots.data()}, known);
  AttentionJob job{cache, rotates ? of_queries.job() : Rotation{}, query.data(), query.stride, output.data(),
      output.stride, shape.type, shape.group, 1 / std::sqrt(static_cast<float>(head_size)), table.data(), width, nullptr};
  attend(job, {query_start.data(), seq_lens.data(), static_cast<int64_t>(shape.requests.size())});

  std::vector<double> expected;
  int first = 0;
  for (size_t r = 0; r < shape.requests.size(); ++r) {
    std::vector<float> key, value;
    for (int t = first; t < first + seq_lens[r]; ++t) {
      for (int i = 0; i < row; ++i) {
        const int head = i / head_size * head_size;
        uint8_t kept[4];
        store_any(kept, 0, cache.type, rotates ? static_cast<float>(of_keys.of(keys, t, head, i - head)) : keys.at(t, i));
        key.push_back(load_any(kept, 0, cache.type));
        store_any(kept, 0, cache.type, values.at(t, i));
        value.push_back(load_any(kept, 0, cache.type));
      }
    }
    first += seq_lens[r];
    for (int i = 0; i < shape.requests[r].queries; ++i) {
      for (int h = 0; h < heads; ++h) {
        std::vector<double> one;
        for (int d = 0; d < head_size; ++d)
          one.push_back(rotates ? of_queries.of(query, query_start[r] + i, h * head_size, d)
                                : query.at(query_start[r] + i, h * head_size + d));
        attend_plainly(one, key, value, row, h / shape.group * int64_t{head_size}, shape.requests[r].past + i + 1, expected);
      }
    }
  }
  double most = 0;
  for (const double number : expected) most = std::max(most, std::fabs(number));
  // A key that lies between two numbers of the cache's type may be kept as either once it was rotated.
  const double flips = rotates && cache.type != DType::f32 ? rounding_of(cache.type) / 2 : 0;
  compare_each(told(shape), output, expected, 2e-6 + 1e-5 * most + flips);
}
