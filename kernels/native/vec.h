// Eight floats at a time, in the instruction set of the file that includes it. It knows no kernel.
//
// Arithmetic is the compiler's vector extension in both paths; intrinsics stand only where it has no words.
#pragma once

#include "types.h"

#if GRAFTLM_USE_AVX2
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace graftlm::GRAFTLM_PATH {

using V8 = float __attribute__((vector_size(32)));
using I8 = int32_t __attribute__((vector_size(32)));

#define GRAFTLM_INLINE [[gnu::always_inline]] static inline

// Keeps the compiler from computing all products of a block in an order of its own, which would need more registers
// than there are. It knows nothing of the value from there on.
template <class Vector>
GRAFTLM_INLINE void in_order(Vector& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  static_cast<void>(value);
#endif
}

GRAFTLM_INLINE V8 set1(float value) { return V8{value, value, value, value, value, value, value, value}; }

GRAFTLM_INLINE V8 load(const float* from) {
  V8 value;
  std::memcpy(&value, from, 32);
  return value;
}

GRAFTLM_INLINE void store(float* to, V8 value) { std::memcpy(to, &value, 32); }

#if GRAFTLM_USE_AVX2

GRAFTLM_INLINE V8 fma(V8 a, V8 b, V8 c) { return _mm256_fmadd_ps(a, b, c); }
GRAFTLM_INLINE V8 max(V8 a, V8 b) { return _mm256_max_ps(a, b); }

GRAFTLM_INLINE V8 load(const Bf16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

GRAFTLM_INLINE V8 load(const F16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

GRAFTLM_INLINE void store(F16* to, V8 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

#else

using S8 = int16_t __attribute__((vector_size(16)));
using I4 = int32_t __attribute__((vector_size(16)));
using F4 = float __attribute__((vector_size(16)));

// The products of neighbouring 16-bit numbers, added in pairs.
GRAFTLM_INLINE I4 pair_products(S8 a, S8 b) {
#if defined(__SSE2__)
  return reinterpret_cast<I4>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const I4 x = reinterpret_cast<I4>(a), y = reinterpret_cast<I4>(b);
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

GRAFTLM_INLINE V8 fma(V8 a, V8 b, V8 c) { return a * b + c; }
GRAFTLM_INLINE V8 max(V8 a, V8 b) { return a > b ? a : b; }

GRAFTLM_INLINE V8 load(const Bf16* from) {
  V8 value;
  for (int i = 0; i < 8; ++i) value[i] = to_float(from[i]);
  return value;
}

// Four halves, each in the upper part of a word whose lower part is zero. As `to_float` of one, unless it is known
// that all are finite.
template <bool kFinite = false>
GRAFTLM_INLINE F4 from_halves(S8 words) {
  using U4 = uint32_t __attribute__((vector_size(16)));
  // The sign goes three places down with the rest, and is drawn out on its way.
  const I4 bits = (reinterpret_cast<I4>(words) >> 3) & static_cast<int32_t>(0x8fffffffu);
  const F4 value = reinterpret_cast<F4>(bits) * 0x1p112f;
  if (kFinite) return value;
  // All ones where half's largest exponent stands.
  const I4 endless = (bits & 0x7fffffff) > 0x0f7fffff;
  return reinterpret_cast<F4>(reinterpret_cast<U4>(value) | (reinterpret_cast<U4>(endless) & (0xffu << 23)));
}

GRAFTLM_INLINE V8 load(const F16* from) {
  S8 halves;
  std::memcpy(&halves, from, 16);
  const S8 zeros = {};
  const F4 parts[2]{from_halves(__builtin_shufflevector(zeros, halves, 0, 8, 1, 9, 2, 10, 3, 11)),
      from_halves(__builtin_shufflevector(zeros, halves, 4, 12, 5, 13, 6, 14, 7, 15))};
  V8 value;
  std::memcpy(&value, parts, 32);
  return value;
}

GRAFTLM_INLINE void store(F16* to, V8 value) {
  for (int i = 0; i < 8; ++i) from_float(value[i], to + i);
}

#endif

GRAFTLM_INLINE void store(Bf16* to, V8 value) {
  for (int i = 0; i < 8; ++i) from_float(value[i], to + i);
}

GRAFTLM_INLINE float sum_of(V8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

GRAFTLM_INLINE float max_of(V8 v) {
  float best = v[0];
  for (int i = 1; i < 8; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

// e^x, within 2 units in the last place; below -87 it is 0, above 88 it stays at e^88.
GRAFTLM_INLINE V8 exp(V8 x) {
  const V8 low = set1(-87.0f), high = set1(88.0f);
  const I8 vanishes = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const V8 shift = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const V8 n = fma(x, set1(1.44269504088896341f), shift) - shift;
  V8 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  V8 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.0f);
  const I8 scale = (__builtin_convertvector(n, I8) + 127) << 23;
  V8 power;
  std::memcpy(&power, &scale, 32);
  const V8 result = p * power;
  return vanishes ? V8{} : result;
}

}  // namespace graftlm::GRAFTLM_PATH
