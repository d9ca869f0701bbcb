// Plain types that every kernel shares: number formats, weight formats, conversions. It knows no kernel.
//
// Functions here are static: files of different instruction sets must not share one compiled copy.
#pragma once

#include <cstdint>
#include <cstring>

namespace graftlm {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };
enum class Format : int { f32 = 0, bf16 = 1, f16 = 2, q4_0 = 4, q4_1 = 5, q8_0 = 8 };

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Weights that share one scale.
constexpr int kBlock = 32;

static inline bool is_float(Format format) { return static_cast<int>(format) <= 2; }

static inline int size_of(DType type) { return type == DType::f32 ? 4 : 2; }

// Outputs that lie together in a packed matrix.
static inline int panel_outputs(Format format) { return is_float(format) ? 16 : 8; }

// Bytes of a packed panel for one column (float formats) or for one block of columns.
static inline int64_t panel_step_bytes(Format format) {
  switch (format) {
    case Format::f32: return 16 * 4;
    case Format::bf16:
    case Format::f16: return 16 * 2;
    case Format::q4_0: return 8 * 2 + 8 * 16;
    case Format::q4_1: return 8 * 4 + 8 * 16;
    case Format::q8_0: return 8 * 2 + 8 * 32;
  }
  return 0;
}

static inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float to_float(float value) { return value; }

static inline float to_float(Bf16 value) { return bits_to_float(static_cast<uint32_t>(value.bits) << 16); }

static inline float to_float(F16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  // A float whose exponent is too small by 112 also holds half's subnormal numbers rightly.
  uint32_t bits = float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00u) bits |= 0xffu << 23;
  return bits_to_float(bits | (static_cast<uint32_t>(value.bits & 0x8000u) << 16));
}

static inline void from_float(float value, float* out) { *out = value; }

static inline void from_float(float value, Bf16* out) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out->bits = static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays not-a-number
  } else {
    out->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

static inline void from_float(float value, F16* out) {
  uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  uint32_t half;
  if (bits >= 0x47800000u) {  // too large for half, infinite or not a number
    half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (bits < 0x38800000u) {  // subnormal: let a float addition round it
    half = float_to_bits(bits_to_float(bits) + 0.5f) - 0x3f000000u;
  } else {
    half = (bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(half | sign);
}

// Reads element `index` of an array of any of the three number formats.
static inline float load_any(const void* base, int64_t index, DType type) {
  switch (type) {
    case DType::f32: return static_cast<const float*>(base)[index];
    case DType::bf16: return to_float(static_cast<const Bf16*>(base)[index]);
    default: return to_float(static_cast<const F16*>(base)[index]);
  }
}

static inline void store_any(void* base, int64_t index, DType type, float value) {
  switch (type) {
    case DType::f32: static_cast<float*>(base)[index] = value; break;
    case DType::bf16: from_float(value, static_cast<Bf16*>(base) + index); break;
    default: from_float(value, static_cast<F16*>(base) + index); break;
  }
}

static inline const void* at(const void* base, int64_t index, DType type) {
  return static_cast<const char*>(base) + index * size_of(type);
}

static inline void* at(void* base, int64_t index, DType type) {
  return static_cast<char*>(base) + index * size_of(type);
}

}  // namespace graftlm
