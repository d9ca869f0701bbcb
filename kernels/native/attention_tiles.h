// The two products of attention over a few blocks of the cache: queries with keys, and weights with values.
//
// Keys are met in groups of sixteen, four groups at a time; while one part is read, the next is fetched, since the
// blocks of a request lie anywhere and the processor foresees none of them. It knows no softmax.
#pragma once

#include "path.h"
#include "wide.h"

namespace graftlm::GRAFTLM_PATH {

constexpr int kGroup = 16;
constexpr int kGroups = 4;  // of a part
constexpr int kPart = kGroup * kGroups;
static_assert(kPart == kAttentionPart);

// Rows whose sums fit the registers, or nearly so.
constexpr int kRowsAtOnce = 6;

// Groups, and columns in registers, that so many rows meet at once.
constexpr int groups_at_once(int rows) {
  if (kLanes == 16) return kGroups;
  if (GRAFTLM_USE_AVX2) return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
  return rows == 1 ? 2 : 1;
}

constexpr int columns_at_once(int rows) {
  if (kLanes == 16) return 4;
  return rows <= 3 ? 4 : 2;
}

// Four groups of keys or of values: each is as many lines as a head has numbers, `stride` numbers apart.
template <class C>
struct Part {
  const C* groups[kGroups];
  const C* halves[kGroups];  // the second eight of each
  int64_t stride;  // of keys the block size; values lie one behind the other
};

// Asks for a line that will be read soon; where there is none it is one that was read already. Into the second cache:
// the first one keeps too few reads under way, which made this half as fast. Reading alone was slower still.
template <class C>
GRAFTLM_INLINE void fetch(const Part<C>& part, int group, int64_t line) {
  __builtin_prefetch(part.groups[group] + line * part.stride, 0, 2);
}

// Brings a part's keys, or its values, to one place as floats; `to` has kPart * head_size of them.
template <class C>
static Part<float> copy_keys(const Part<C>& keys, int64_t head_size, const Part<C>& ahead, float* to) {
  Part<float> copy{{}, {}, kGroup};
  for (int g = 0; g < kGroups; ++g) {
    copy.groups[g] = to;
    for (int64_t i = 0; i < head_size; ++i, to += kGroup) {
      fetch(ahead, g, i);
      store(to, load(keys.groups[g] + i * keys.stride));
      store(to + kGroup / 2, load(keys.halves[g] + i * keys.stride));
    }
  }
  return copy;
}

template <class C>
static Part<float> copy_values(const Part<C>& values, int64_t head_size, const Part<C>& ahead, float* to) {
  Part<float> copy{{}, {}, kGroup};
  for (int g = 0; g < kGroups; ++g) {
    copy.groups[g] = to;
    for (int64_t i = 0; i < head_size; ++i, to += kGroup / 2) {
      fetch(ahead, g, i);
      store(to, load(values.groups[g] + i * (kGroup / 2)));
    }
    for (int64_t i = 0; i < head_size; ++i, to += kGroup / 2) store(to, load(values.halves[g] + i * (kGroup / 2)));
  }
  return copy;
}

// scores[r][0..kPart) = query[r] . keys.
template <class C, int kRows, bool kFetches>
GRAFTLM_INLINE void score_tile(
    const float* query, int64_t head_size, const Part<C>& keys, const Part<C>& ahead, float* scores) {
  constexpr int kOwn = groups_at_once(kRows), kVectors = kGroup / kLanes;
  for (int begin = 0; begin < kGroups; begin += kOwn) {
    W sums[kRows][kOwn][kVectors] = {};
    for (int64_t i = 0; i < head_size; ++i) {
      W key[kOwn][kVectors];
      for (int g = 0; g < kOwn; ++g) {
        if constexpr (kFetches) fetch(ahead, begin + g, i);
        for (int v = 0; v < kVectors; ++v) key[g][v] = load_wide(keys.groups[begin + g] + i * keys.stride + kLanes * v);
      }
      for (int r = 0; r < kRows; ++r) {
        const W value = set_wide(query[r * head_size + i]);
        for (int g = 0; g < kOwn; ++g)
          for (int v = 0; v < kVectors; ++v) sums[r][g][v] = fma(value, key[g][v], sums[r][g][v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int g = 0; g < kOwn; ++g)
        for (int v = 0; v < kVectors; ++v)
          store(scores + r * kAttentionKeys + (begin + g) * kGroup + v * kLanes, sums[r][g][v]);
  }
}

// output[r][0..lanes of a vector * kVectors) += weights[r] * values, of `keys` keys.
template <class C, int kRows, int kVectors, bool kFetches>
GRAFTLM_INLINE void mix_tile(const float* weights, const Part<C>& values, int keys, int64_t head_size, int64_t column,
    const Part<C>& ahead, float* output) {
  W sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load_wide(output + r * head_size + column + kLanes * v);
  const int64_t lines = (head_size + kGroup - 1) / kGroup;
  for (int g = 0; g * kGroup < keys; ++g) {
    const C* from = values.groups[g] + column;
    const int end = keys - g * kGroup < kGroup ? keys - g * kGroup : kGroup;
    for (int t = 0; t < end; ++t, from += head_size) {
      if constexpr (kFetches)
        for (int64_t line = 0; line < lines; ++line) fetch(ahead, g, t * lines + line);
      W value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = load_wide(from + kLanes * v);
      for (int r = 0; r < kRows; ++r) {
        const W weight = set_wide(weights[r * kAttentionKeys + g * kGroup + t]);
        for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(output + r * head_size + column + kLanes * v, sums[r][v]);
}

template <class C, int kRows, bool kFetches>
GRAFTLM_INLINE void mix_some(const float* weights, const Part<C>& values, int keys, int64_t head_size,
    const Part<C>& ahead, float* output) {
  constexpr int kVectors = columns_at_once(kRows), kWidth = kVectors * kLanes;
  int64_t column = 0;
  if (head_size >= kWidth) {
    mix_tile<C, kRows, kVectors, kFetches>(weights, values, keys, head_size, 0, ahead, output);
    column = kWidth;
  }
  for (; column + kWidth <= head_size; column += kWidth)
    mix_tile<C, kRows, kVectors, false>(weights, values, keys, head_size, column, ahead, output);
  for (; column + kLanes <= head_size; column += kLanes)
    mix_tile<C, kRows, 1, false>(weights, values, keys, head_size, column, ahead, output);
  for (; column < head_size; ++column) {
    for (int r = 0; r < kRows; ++r) {
      float sum = output[r * head_size + column];
      for (int t = 0; t < keys; ++t)
        sum += weights[r * kAttentionKeys + t] *
               to_float(values.groups[t / kGroup][t % kGroup * head_size + column]);
      output[r * head_size + column] = sum;
    }
  }
}

// A kernel for each number of rows up to those that fit the registers.
#define GRAFTLM_EACH_ROWS(rows, call) \
  switch (rows) {                     \
    case 1: call(1); break;           \
    case 2: call(2); break;           \
    case 3: call(3); break;           \
    case 4: call(4); break;           \
    case 5: call(5); break;           \
    case 6: call(6); break;           \
    default: break;                   \
  }

template <class C, bool kFetches>
[[gnu::noinline]] static void score_part(
    int rows, const float* query, int64_t head_size, const Part<C>& keys, const Part<C>& ahead, float* scores) {
  const auto call = [&]<int kRows>() {
    score_tile<C, kRows, kFetches>(query, head_size, keys, ahead, scores);
  };
#define GRAFTLM_CALL(n) call.template operator()<n>()
  GRAFTLM_EACH_ROWS(rows, GRAFTLM_CALL)
}

template <class C, bool kFetches>
[[gnu::noinline]] static void mix_part(int rows, const float* weights, const Part<C>& values, int keys,
    int64_t head_size, const Part<C>& ahead, float* output) {
  const auto call = [&]<int kRows>() {
    mix_some<C, kRows, kFetches>(weights, values, keys, head_size, ahead, output);
  };
  GRAFTLM_EACH_ROWS(rows, GRAFTLM_CALL)
#undef GRAFTLM_CALL
}

#undef GRAFTLM_EACH_ROWS

}  // namespace graftlm::GRAFTLM_PATH
