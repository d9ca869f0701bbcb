// One attention layer's step: cut into tasks, shared by the threads, partial results joined.
#pragma once

#include "path.h"

namespace graftlm {

struct StepShape {
  const int32_t* query_start;  // [requests + 1]
  const int32_t* seq_lens;     // [requests]
  int64_t requests;
};

void write_cache(const WriteJob& job, int64_t tokens);
void attend(AttentionJob job, const StepShape& step);

}  // namespace graftlm
