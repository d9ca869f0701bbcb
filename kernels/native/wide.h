// As many floats at a time as a register holds: sixteen with AVX-512, eight else. It knows no kernel.
//
// Kernels that are written over `W` take what a register gives them; those of vec.h keep eight on every path.
#pragma once

#include "vec.h"

namespace graftlm::GRAFTLM_PATH {

#if GRAFTLM_USE_VNNI

using V16 = float __attribute__((vector_size(64)));
using W = V16;

GRAFTLM_INLINE V16 fma(V16 a, V16 b, V16 c) { return _mm512_fmadd_ps(a, b, c); }
GRAFTLM_INLINE V16 max(V16 a, V16 b) { return _mm512_max_ps(a, b); }
GRAFTLM_INLINE float sum_of(V16 v) { return _mm512_reduce_add_ps(v); }
GRAFTLM_INLINE float max_of(V16 v) { return _mm512_reduce_max_ps(v); }
GRAFTLM_INLINE void store(float* to, V16 value) { _mm512_storeu_ps(to, value); }
GRAFTLM_INLINE W set_wide(float value) { return _mm512_set1_ps(value); }
GRAFTLM_INLINE W load_wide(const float* from) { return _mm512_loadu_ps(from); }
GRAFTLM_INLINE W load_wide(const F16* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
GRAFTLM_INLINE W load_wide(const Bf16* from) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// e^x of x that is at most 88, as vec.h's.
GRAFTLM_INLINE V16 exp(V16 x) {
  const __mmask16 stays = _mm512_cmp_ps_mask(x, set_wide(-87.0f), _CMP_NLT_UQ);
  const V16 n = _mm512_roundscale_ps(x * set_wide(1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
  V16 r = fma(n, set_wide(-0.693359375f), x);
  r = fma(n, set_wide(2.12194440e-4f), r);
  V16 p = set_wide(1.9875691500e-4f);
  p = fma(p, r, set_wide(1.3981999507e-3f));
  p = fma(p, r, set_wide(8.3334519073e-3f));
  p = fma(p, r, set_wide(4.1665795894e-2f));
  p = fma(p, r, set_wide(1.6666665459e-1f));
  p = fma(p, r, set_wide(5.0000001201e-1f));
  p = fma(p, r * r, r) + set_wide(1.0f);
  return _mm512_maskz_scalef_ps(stays, p, n);
}

#else

using W = V8;

GRAFTLM_INLINE W set_wide(float value) { return set1(value); }
template <class C>
GRAFTLM_INLINE W load_wide(const C* from) {
  return load(from);
}

#endif

constexpr int kLanes = static_cast<int>(sizeof(W) / sizeof(float));

}  // namespace graftlm::GRAFTLM_PATH
