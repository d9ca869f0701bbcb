// Paged attention: writing keys and values, and softmax over them a stretch of keys at a time.
//
// Rows are pairs of a query and a head of one group; all of them read the same keys. It does not know how a step is
// cut into tasks.
#pragma once

#include <cmath>

#include "attention_tiles.h"
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

// Turns one row's scores into weights relative to a new running maximum; scores past `seen` become 0.
GRAFTLM_INLINE void weigh_row(
    float* scores, int64_t seen, int64_t width, float& maximum, float& total, float* output, int64_t head_size) {
  if (seen <= 0) {
    for (int64_t t = 0; t < width; ++t) scores[t] = 0.0f;
    return;
  }
  // The row's memory reaches to the next multiple of a vector.
  for (int64_t t = seen; t % kLanes; ++t) scores[t] = -INFINITY;
  W best = set_wide(-INFINITY);
  for (int64_t t = 0; t < seen; t += kLanes) best = max(best, load_wide(scores + t));
  const float now = max_of(best);
  const float next = now > maximum ? now : maximum;
  W sums = W{};
  int64_t t = 0;
  for (; t < seen; t += kLanes) {
    const W weight = exp(load_wide(scores + t) - set_wide(next));
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

// The blocks of one stretch of keys.
template <class C>
struct Stretch {
  static constexpr int kParts = kAttentionKeys / kPart;
  Part<C> keys[kParts];
  Part<C> values[kParts];
};

// Finds where keys [begin, end) lie; what is behind them stands for the last of them again.
template <class C>
static Stretch<C> find_stretch(const AttentionJob& job, const AttentionTask& task, int64_t begin, int64_t end) {
  const CacheGeometry& cache = job.cache;
  const int64_t size = cache.block_size, head_size = cache.head_size;
  const int32_t* table = job.block_table + task.request * job.table_stride;
  const C* base = static_cast<const C*>(cache.cache);
  const C *key = nullptr, *value = nullptr;
  Stretch<C> found;
  for (int part = 0; part < Stretch<C>::kParts; ++part) {
    Part<C>&keys = found.keys[part], &values = found.values[part];
    keys.stride = size;
    values.stride = kGroup;
    for (int half = 0; half < 2 * kGroups; ++half) {
      const int64_t at = begin + part * kPart + half * (kGroup / 2);
      if (at < end) {
        const int64_t block = table[at / size];
        key = base + cache.key_tile(block, task.kv_head) + at % size;
        value = base + cache.value_tile(block, task.kv_head) + at % size * head_size;
      }
      if (half % 2) keys.halves[half / 2] = key, values.halves[half / 2] = value;
      else keys.groups[half / 2] = key, values.groups[half / 2] = value;
    }
  }
  return found;
}

// The rows of a task, and what has been found for them so far.
struct Rows {
  int count;
  int64_t head_size;
  const float* query;
  float* scores;
  float* output;
  float* copy;  // of a part's keys or values, where blocks are smaller than a group; or null
};

// Rows meet the keys or the values in sets of similar size, of which the first fetches what comes next.
template <class Visit>
GRAFTLM_INLINE void each_set(int rows, Visit&& visit) {
  const int sets = (rows + kRowsAtOnce - 1) / kRowsAtOnce, size = (rows + sets - 1) / sets;
  for (int r = 0; r < rows; r += size) visit(r, rows - r < size ? rows - r : size);
}

template <class C>
static void score(const Rows& rows, const Part<C>& keys, const Part<C>& ahead, float* scores) {
  const int64_t head_size = rows.head_size;
  if (rows.copy) {
    const Part<float> copy = copy_keys(keys, head_size, ahead, rows.copy);
    each_set(rows.count, [&](int r, int count) {
      const float* query = rows.query + r * head_size;
      score_part<float, false>(count, query, head_size, copy, copy, scores + r * kAttentionKeys);
    });
    return;
  }
  each_set(rows.count, [&](int r, int count) {
    const auto part = r == 0 ? score_part<C, true> : score_part<C, false>;
    part(count, rows.query + r * head_size, head_size, keys, ahead, scores + r * kAttentionKeys);
  });
}

template <class C>
static void mix(const Rows& rows, const Part<C>& values, int keys, const Part<C>& ahead, const float* weights) {
  const int64_t head_size = rows.head_size;
  if (rows.copy) {
    const Part<float> copy = copy_values(values, head_size, ahead, rows.copy);
    each_set(rows.count, [&](int r, int count) {
      float* output = rows.output + r * head_size;
      mix_part<float, false>(count, weights + r * kAttentionKeys, copy, keys, head_size, copy, output);
    });
    return;
  }
  each_set(rows.count, [&](int r, int count) {
    const auto part = r == 0 ? mix_part<C, true> : mix_part<C, false>;
    part(count, weights + r * kAttentionKeys, values, keys, head_size, ahead, rows.output + r * head_size);
  });
}

template <class X, class C>
static void attend_task(const AttentionJob& job, const AttentionTask& task, float* memory) {
  const int64_t head_size = job.cache.head_size;
  const int rows = task.rows();
  float* query = memory;
  float* output = query + kAttentionRows * head_size;
  float* scores = output + kAttentionRows * head_size;
  float* maxima = scores + kAttentionRows * kAttentionKeys;
  float* totals = maxima + kAttentionRows;
  float* own_copy = memory + attention_scratch_floats(head_size) - kPart * head_size;
  float* copy = job.cache.block_size % kGroup ? own_copy : nullptr;
  if (task.partial >= 0) {
    output = job.partials + task.partial * partial_floats(head_size);
    maxima = output + kAttentionRows * head_size;
    totals = maxima + kAttentionRows;
  }
  const auto find = [&](int64_t begin) {
    const int64_t end = begin + kAttentionKeys;
    return find_stretch<C>(job, task, begin, end < task.key_end ? end : task.key_end);
  };
  Stretch<C> now = find(task.key_begin);
  for (int64_t line = 0; line < head_size; ++line)
    for (int g = 0; g < kGroups; ++g) fetch(now.keys[0], g, line);
  const int64_t first_head = task.kv_head * job.group + task.head_begin;
  for (int r = 0; r < rows; ++r) {
    const int64_t token = task.token + r / task.num_heads, head = first_head + r % task.num_heads;
    const X* from = static_cast<const X*>(job.query) + token * job.query_stride + head * head_size;
    read_head(from, job.rotation, token, head_size, job.scale, query + r * head_size);
    for (int64_t i = 0; i < head_size; ++i) output[r * head_size + i] = 0.0f;
    maxima[r] = -INFINITY;
    totals[r] = 0.0f;
  }
  const Rows own{rows, head_size, query, scores, output, copy};
  for (int64_t begin = task.key_begin; begin < task.key_end; begin += kAttentionKeys) {
    const int64_t left = task.key_end - begin;
    const int keys = left < kAttentionKeys ? static_cast<int>(left) : kAttentionKeys;
    const int last = (keys - 1) / kPart;
    const Stretch<C> next = begin + kAttentionKeys < task.key_end ? find(begin + kAttentionKeys) : now;
    for (int part = 0; part <= last; ++part)
      score(own, now.keys[part], part < last ? now.keys[part + 1] : now.values[0], scores + part * kPart);
    for (int r = 0; r < rows; ++r) {
      const int64_t seen = task.first_seen + r / task.num_heads - begin;
      weigh_row(scores + r * kAttentionKeys, seen < keys ? seen : keys, keys, maxima[r], totals[r],
          output + r * head_size, head_size);
    }
    for (int part = 0; part <= last; ++part) {
      const Part<C>& ahead = part < last ? now.values[part + 1] : next.keys[0];
      const int here = part < last ? kPart : keys - part * kPart;
      mix(own, now.values[part], here, ahead, scores + part * kPart);
    }
    now = next;
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
