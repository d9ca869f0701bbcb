// The kernels of one instruction set as a table of functions, and the jobs they are given.
//
// A kernel computes a range of one job on the calling thread; who splits a job is not its business.
#pragma once

#include <string>

#include "types.h"

namespace graftlm {

// Activations as whole numbers lie in blocks: 32 of them in 16 bits or in 8, their scale, and scale * their sum *
// `sum_factor`. One address then serves for all of it, and kernels need few registers for many rows.
static inline int64_t activation_bytes(bool wide) { return (wide ? 2 : 1) * kBlock + 8; }

struct QuantizeJob {
  const void* x;
  DType x_type;
  int64_t x_stride;
  int64_t columns;
  uint8_t* blocks;  // [rows, columns / 32]
  bool wide;
  float sum_factor;
  bool even_first;  // wide, for 4-bit weights: of each four columns the even ones stand first
  int64_t rows;
};

struct LinearJob {
  const uint8_t* weights;  // packed
  Format format;
  int64_t outputs;
  int64_t columns;
  const float* x;  // float weights: [rows, columns]
  int64_t x_stride;
  const uint8_t* blocks;  // integer weights: see QuantizeJob
  bool wide;              // always for 8-bit weights
  bool finite;            // no scale or minimum of the weights is infinite or not a number
  int64_t rows;           // of them
  const void* bias;  // or null
  DType bias_type;
  void* y;
  DType y_type;
  int64_t y_stride;
};

struct NormJob {
  const void* x;
  int64_t x_stride;
  void* residual;  // or null; becomes residual + x
  int64_t residual_stride;
  const void* weight;  // or, for layer_norm, null
  void* y;
  int64_t columns;
  float eps;
  DType type;
  const void* bias = nullptr;  // layer_norm's, or null
};

struct ActivationJob {
  const void* x;  // [rows, 2 * columns]
  int64_t x_stride;
  void* y;  // [rows, columns]
  int64_t columns;
  DType type;
};

// y = the sum of several arrays, which may be one of them.
struct SumJob {
  const void* const* parts;
  int num_parts;
  void* y;
  DType type;
};

// The largest number's first place in each row of x.
struct BestJob {
  const void* x;  // [rows, columns]
  int64_t x_stride;
  int64_t columns;
  DType type;
  int64_t* places;  // [rows]
  bool* is_finite;  // [rows]: whether the number is finite and the row has no NaN
};

// A table [positions, 2, dims]: cosines, and sines with the sign of their place.
struct Rotation {
  const void* table;  // null: no rotation
  DType table_type;
  const int64_t* positions;  // [tokens]
  int64_t dims;
  bool neox;
};

struct RotateJob {
  Rotation rotation;
  const void* x;  // [tokens, heads, head_size]
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int64_t heads;
  int64_t head_size;
  DType type;
};

// One layer's cache [blocks, 2, kv_heads, tile]; a key tile is [head_size, block_size], so that neighbouring keys
// lie side by side; a value tile is [block_size, head_size].
struct CacheGeometry {
  void* cache;
  DType type;
  int64_t kv_heads;
  int64_t block_size;
  int64_t head_size;

  int64_t tile() const { return block_size * head_size; }
  int64_t key_tile(int64_t block, int64_t head) const { return (block * 2 * kv_heads + head) * tile(); }
  int64_t value_tile(int64_t block, int64_t head) const { return (block * 2 * kv_heads + kv_heads + head) * tile(); }
};

struct WriteJob {
  CacheGeometry cache;
  Rotation rotation;
  const void* key;  // [tokens, kv_heads, head_size]
  int64_t key_stride;
  const void* value;
  int64_t value_stride;
  DType type;
  const int64_t* slots;  // [tokens]
};

struct AttentionJob {
  CacheGeometry cache;
  Rotation rotation;
  const void* query;  // [tokens, heads, head_size]
  int64_t query_stride;
  void* output;
  int64_t output_stride;
  DType type;
  int64_t group;  // query heads of one key-value head
  float scale;
  const int32_t* block_table;  // [requests, table_stride]
  int64_t table_stride;
  float* partials;  // see AttentionTask::partial
};

constexpr int kAttentionRows = 24;
constexpr int kAttentionKeys = 128;
constexpr int kAttentionPart = 64;  // keys that lie in the fastest cache while all rows meet them

// Some queries of one request and some heads of one group, over some of the request's keys.
struct AttentionTask {
  int32_t request;
  int32_t kv_head;
  int32_t head_begin;  // within the group
  int32_t num_heads;
  int32_t token;  // the first query's row
  int32_t num_queries;
  int32_t first_seen;  // keys that the first query sees; each next one sees one more
  int32_t key_begin;
  int32_t key_end;
  int32_t partial;  // -1: the result is final; else its place among the partial results

  int rows() const { return num_queries * num_heads; }
};

static inline int64_t partial_floats(int64_t head_size) { return kAttentionRows * (head_size + 2); }

// Floats of scratch memory that `attend` needs on each thread.
static inline int64_t attention_scratch_floats(int64_t head_size) {
  return kAttentionRows * (2 * head_size + kAttentionKeys + 2) + 64 + kAttentionPart * head_size;
}

struct Path {
  const char* name;
  void (*quantize)(const QuantizeJob&, int64_t row_begin, int64_t row_end);
  void (*linear)(const LinearJob&, int64_t panel_begin, int64_t panel_end, int64_t row_begin, int64_t row_end);
  void (*rms_norm)(const NormJob&, int64_t row_begin, int64_t row_end);
  void (*layer_norm)(const NormJob&, int64_t row_begin, int64_t row_end);
  void (*silu_and_mul)(const ActivationJob&, int64_t row, int64_t column_begin, int64_t column_end);
  void (*rotate)(const RotateJob&, int64_t token_begin, int64_t token_end);
  void (*write_cache)(const WriteJob&, int64_t token_begin, int64_t token_end);
  void (*attend)(const AttentionJob&, const AttentionTask&, float* scratch);
  void (*sum)(const SumJob&, int64_t begin, int64_t end);
  void (*relu)(void* x, DType type, int64_t begin, int64_t end);  // in place
  void (*best)(const BestJob&, int64_t row_begin, int64_t row_end);
  // What nothing can pass, for benchmarks: multiply-adds done by so many rounds of registers with registers, of
  // activations in 16 bits or 8; and memory read in order.
  int64_t (*peak)(bool wide, int64_t rounds);
  int64_t (*read_through)(const void* from, int64_t bytes);
  // Of a block of activations, where the path keeps them in an order of its own instead of as 8-bit or 16-bit numbers.
  int64_t spread_bytes = 0;
};

const Path& generic_path();
#if GRAFTLM_HAS_AVX2
const Path& avx2_path();
#endif
#if GRAFTLM_HAS_AVX512
const Path& avx512_path();
#endif

// The best path of this machine, or the one that GRAFTLM_KERNELS_PATH names; throws where it cannot run.
const Path& current_path();

// Another choice for this process; an empty name is the best one. Packed matrices serve every path.
void use_path(const std::string& name);

}  // namespace graftlm
