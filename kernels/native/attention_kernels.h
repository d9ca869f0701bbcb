// Paged attention: writing keys and values, and softmax over them a stretch of keys at a time.
//
// Rows are pairs of a query and a head of one group; all of them read the same keys. It does not know how a step is
// cut into tasks.
#pragma once

#include <cmath>

#include "elementwise_kernels.h"

namespace graftlm::GRAFTLM_PATH {

template <class X, class C>
static void write_token(const WriteJob& job, int64_t token) {
  const CacheGeometry& cache = job.cache;
  const int64_t size = cache.block_size, head_size = cache.head_size;
  const int64_t block = job.slots[token] / size, place = job.slots[token] % size;
  float head[kMaxHead];
  for (int64_t h = 0; h < cache.kv_heads; ++h) {
    const X* key = static_cast<const X*>(job.key) + token * job.key_stride + h * head_size;
    const X* value = static_cast<const X*>(job.value) + token * job.value_stride + h * head_size;
    C* keys = static_cast<C*>(cache.cache) + cache.key_tile(block, h) + place;
    C* values = static_cast<C*>(cache.cache) + cache.value_tile(block, h) + place * head_size;
    read_head(key, job.rotation, token, head_size, 1.0f, head);
    for (int64_t i = 0; i < head_size; ++i) from_float(head[i], keys + i * size);
    for (int64_t i = 0; i < head_size; ++i) from_float(to_float(value[i]), values + i);
  }
}

// scores[r][0..8 * kVectors) = query[r] . keys, for one stretch of neighbouring keys of a tile.
template <class C, int kRows, int kVectors>
GRAFTLM_INLINE void score_tile(
    const float* query, int64_t head_size, const C* keys, int64_t key_stride, float* scores) {
  V8 sums[kRows][kVectors] = {};
  for (int64_t i = 0; i < head_size; ++i) {
    V8 key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = load(keys + i * key_stride + 8 * v);
    for (int r = 0; r < kRows; ++r) {
      const V8 value = set1(query[r * head_size + i]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(value, key[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(scores + r * kAttentionKeys + 8 * v, sums[r][v]);
}

template <class C, int kVectors>
static void score_rows(
    int rows, const float* query, int64_t head_size, const C* keys, int64_t key_stride, float* scores) {
  int r = 0;
  for (; r + 6 <= rows; r += 6)
    score_tile<C, 6, kVectors>(query + r * head_size, head_size, keys, key_stride, scores + r * kAttentionKeys);
  query += r * head_size;
  scores += r * kAttentionKeys;
  switch (rows - r) {
    case 5: score_tile<C, 5, kVectors>(query, head_size, keys, key_stride, scores); break;
    case 4: score_tile<C, 4, kVectors>(query, head_size, keys, key_stride, scores); break;
    case 3: score_tile<C, 3, kVectors>(query, head_size, keys, key_stride, scores); break;
    case 2: score_tile<C, 2, kVectors>(query, head_size, keys, key_stride, scores); break;
    case 1: score_tile<C, 1, kVectors>(query, head_size, keys, key_stride, scores); break;
    default: break;
  }
}

// output[r][0..8 * kVectors) += weights[r][t] * values[t], over `keys` keys that lie in several tiles.
template <class C, int kRows, int kVectors>
GRAFTLM_INLINE void mix_tile(const float* weights, const C* const* tiles, int64_t block_size, int64_t keys,
    int64_t head_size, int64_t column, float* output) {
  V8 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(output + r * head_size + column + 8 * v);
  for (int64_t begin = 0; begin < keys; begin += block_size) {
    const C* values = tiles[begin / block_size] + column;
    const int64_t end = begin + block_size < keys ? begin + block_size : keys;
    for (int64_t t = begin; t < end; ++t, values += head_size) {
      V8 value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = load(values + 8 * v);
      for (int r = 0; r < kRows; ++r) {
        const V8 weight = set1(weights[r * kAttentionKeys + t]);
        for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(output + r * head_size + column + 8 * v, sums[r][v]);
}

template <class C, int kRows>
GRAFTLM_INLINE void mix_some(const float* weights, const C* const* tiles, int64_t block_size, int64_t keys,
    int64_t head_size, float* output) {
  int64_t column = 0;
  // Few rows leave registers for more columns at once, and so for more sums under way.
  if constexpr (kRows <= 3) {
    for (; column + 32 <= head_size; column += 32)
      mix_tile<C, kRows, 4>(weights, tiles, block_size, keys, head_size, column, output);
  }
  for (; column + 16 <= head_size; column += 16)
    mix_tile<C, kRows, 2>(weights, tiles, block_size, keys, head_size, column, output);
  for (; column + 8 <= head_size; column += 8)
    mix_tile<C, kRows, 1>(weights, tiles, block_size, keys, head_size, column, output);
  for (; column < head_size; ++column) {
    for (int r = 0; r < kRows; ++r) {
      float sum = output[r * head_size + column];
      for (int64_t t = 0; t < keys; ++t)
        sum += weights[r * kAttentionKeys + t] *
               to_float(tiles[t / block_size][t % block_size * head_size + column]);
      output[r * head_size + column] = sum;
    }
  }
}

template <class C>
static void mix_rows(int rows, const float* weights, const C* const* tiles, int64_t block_size, int64_t keys,
    int64_t head_size, float* output) {
  int r = 0;
  for (; r + 6 <= rows; r += 6)
    mix_some<C, 6>(weights + r * kAttentionKeys, tiles, block_size, keys, head_size, output + r * head_size);
  weights += r * kAttentionKeys;
  output += r * head_size;
  switch (rows - r) {
    case 5: mix_some<C, 5>(weights, tiles, block_size, keys, head_size, output); break;
    case 4: mix_some<C, 4>(weights, tiles, block_size, keys, head_size, output); break;
    case 3: mix_some<C, 3>(weights, tiles, block_size, keys, head_size, output); break;
    case 2: mix_some<C, 2>(weights, tiles, block_size, keys, head_size, output); break;
    case 1: mix_some<C, 1>(weights, tiles, block_size, keys, head_size, output); break;
    default: break;
  }
}

// Turns one row's scores into weights relative to a new running maximum; scores past `seen` become 0.
GRAFTLM_INLINE void weigh_row(
    float* scores, int64_t seen, int64_t width, float& maximum, float& total, float* output, int64_t head_size) {
  if (seen <= 0) {
    for (int64_t t = 0; t < width; ++t) scores[t] = 0.0f;
    return;
  }
  // The row's memory reaches to the next multiple of 8.
  for (int64_t t = seen; t % 8; ++t) scores[t] = -INFINITY;
  V8 best = set1(-INFINITY);
  for (int64_t t = 0; t < seen; t += 8) best = max(best, load(scores + t));
  const float now = max_of(best);
  const float next = now > maximum ? now : maximum;
  V8 sums = V8{};
  int64_t t = 0;
  for (; t < seen; t += 8) {
    const V8 weight = exp(load(scores + t) - set1(next));
    store(scores + t, weight);
    sums += weight;
  }
  for (; t < width; ++t) scores[t] = 0.0f;
  const float correction = maximum == -INFINITY ? 0.0f : exp(set1(maximum - next))[0];
  total = total * correction + sum_of(sums);
  if (correction != 1.0f)
    for (int64_t i = 0; i < head_size; ++i) output[i] *= correction;
  maximum = next;
}

template <class X, class C>
static void attend_task(const AttentionJob& job, const AttentionTask& task, float* memory) {
  const CacheGeometry& cache = job.cache;
  const int64_t size = cache.block_size, head_size = cache.head_size;
  const int rows = task.rows();
  float* query = memory;
  float* output = query + kAttentionRows * head_size;
  float* scores = output + kAttentionRows * head_size;
  float* maxima = scores + kAttentionRows * kAttentionKeys;
  float* totals = maxima + kAttentionRows;
  if (task.partial >= 0) {
    output = job.partials + task.partial * partial_floats(head_size);
    maxima = output + kAttentionRows * head_size;
    totals = maxima + kAttentionRows;
  }
  const int64_t first_head = task.kv_head * job.group + task.head_begin;
  for (int r = 0; r < rows; ++r) {
    const int64_t token = task.token + r / task.num_heads, head = first_head + r % task.num_heads;
    const X* from = static_cast<const X*>(job.query) + token * job.query_stride + head * head_size;
    read_head(from, job.rotation, token, head_size, job.scale, query + r * head_size);
    for (int64_t i = 0; i < head_size; ++i) output[r * head_size + i] = 0.0f;
    maxima[r] = -INFINITY;
    totals[r] = 0.0f;
  }
  const int32_t* table = job.block_table + task.request * job.table_stride;
  const C* base = static_cast<const C*>(cache.cache);
  const C* tiles[kAttentionKeys / 8];
  for (int64_t begin = task.key_begin; begin < task.key_end; begin += kAttentionKeys) {
    const int64_t keys = task.key_end - begin < kAttentionKeys ? task.key_end - begin : kAttentionKeys;
    for (int64_t t = 0; t < keys; t += size) {  // stretches begin at a block's begin
      const int64_t block = table[(begin + t) / size];
      const C* tile = base + cache.key_tile(block, task.kv_head);
      tiles[t / size] = base + cache.value_tile(block, task.kv_head);
      const int64_t here = keys - t < size ? keys - t : size;
      for (int64_t k = 0; k < here; k += 16) {
        if (size % 16 == 0) score_rows<C, 2>(rows, query, head_size, tile + k, size, scores + t + k);
        else score_rows<C, 1>(rows, query, head_size, tile + k, size, scores + t + k);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const int64_t seen = task.first_seen + r / task.num_heads - begin;
      weigh_row(scores + r * kAttentionKeys, seen < keys ? seen : keys, keys, maxima[r], totals[r],
          output + r * head_size, head_size);
    }
    mix_rows<C>(rows, scores, tiles, size, keys, head_size, output);
  }
  if (task.partial >= 0) return;
  for (int r = 0; r < rows; ++r) {
    const int64_t token = task.token + r / task.num_heads, head = first_head + r % task.num_heads;
    X* to = static_cast<X*>(job.output) + token * job.output_stride + head * head_size;
    const float inverse = 1.0f / totals[r];
    int64_t i = 0;
    for (; i + 8 <= head_size; i += 8) store(to + i, load(output + r * head_size + i) * set1(inverse));
    for (; i < head_size; ++i) from_float(output[r * head_size + i] * inverse, to + i);
  }
}

template <class X>
static void attend_in(const AttentionJob& job, const AttentionTask& task, float* memory) {
  switch (job.cache.type) {
    case DType::f32: attend_task<X, float>(job, task, memory); break;
    case DType::bf16: attend_task<X, Bf16>(job, task, memory); break;
    case DType::f16: attend_task<X, F16>(job, task, memory); break;
  }
}

static void attend(const AttentionJob& job, const AttentionTask& task, float* memory) {
  switch (job.type) {
    case DType::f32: attend_in<float>(job, task, memory); break;
    case DType::bf16: attend_in<Bf16>(job, task, memory); break;
    case DType::f16: attend_in<F16>(job, task, memory); break;
  }
}

template <class X>
static void write_in(const WriteJob& job, int64_t token) {
  switch (job.cache.type) {
    case DType::f32: write_token<X, float>(job, token); break;
    case DType::bf16: write_token<X, Bf16>(job, token); break;
    case DType::f16: write_token<X, F16>(job, token); break;
  }
}

static void write_cache(const WriteJob& job, int64_t token, int64_t end) {
  for (; token < end; ++token) {
    switch (job.type) {
      case DType::f32: write_in<float>(job, token); break;
      case DType::bf16: write_in<Bf16>(job, token); break;
      case DType::f16: write_in<F16>(job, token); break;
    }
  }
}

}  // namespace graftlm::GRAFTLM_PATH
