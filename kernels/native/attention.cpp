// How a step's attention becomes tasks of similar size.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"

namespace graftlm {
namespace {

// Shorter stretches would spend their time on joining.
constexpr int64_t kLeastSplit = 4 * kAttentionKeys;

// Rows of a task's first part, whose parts lie one behind the other among the partial results.
struct Join {
  AttentionTask task;
  int32_t parts;
};

struct Plan {
  std::vector<AttentionTask> tasks;
  std::vector<Join> joins;
  int32_t partials = 0;
};

template <class Visit>
void each_tile(const AttentionJob& job, const StepShape& step, Visit&& visit) {
  const auto group = static_cast<int32_t>(job.group);
  const int32_t heads = std::min<int32_t>(group, kAttentionRows);
  const int32_t queries = std::max<int32_t>(1, kAttentionRows / group);
  for (int64_t r = 0; r < step.requests; ++r) {
    const int32_t begin = step.query_start[r], end = step.query_start[r + 1];
    const int32_t past = step.seq_lens[r] - (end - begin);
    // The last queries see most keys: first, so that no thread ends with the longest task.
    for (int32_t tile = (end - begin + queries - 1) / queries - 1; tile >= 0; --tile) {
      const int32_t token = begin + tile * queries;
      const int32_t count = std::min(queries, end - token);
      const int32_t first_seen = past + tile * queries + 1;
      for (int32_t kv_head = 0; kv_head < job.cache.kv_heads; ++kv_head) {
        for (int32_t head = 0; head < group; head += heads) {
          const int32_t own = std::min(heads, group - head);
          visit(AttentionTask{static_cast<int32_t>(r), kv_head, head, own, token, count, first_seen, 0,
              first_seen + count - 1, -1});
        }
      }
    }
  }
}

void make_plan(const AttentionJob& job, const StepShape& step, Plan& plan) {
  int64_t keys = 0;
  each_tile(job, step, [&](const AttentionTask& task) { keys += task.key_end; });
  const int64_t even = keys / (4 * num_threads()) / kAttentionKeys * kAttentionKeys;
  const int64_t split = num_threads() == 1 ? INT64_MAX / 4 : std::max(kLeastSplit, even);
  each_tile(job, step, [&](AttentionTask task) {
    const int64_t all = task.key_end;
    const int64_t parts = all <= split + split / 2 ? 1 : (all + split - 1) / split;
    if (parts == 1) {
      plan.tasks.push_back(task);
      return;
    }
    const int64_t length = ((all + parts - 1) / parts + kAttentionKeys - 1) / kAttentionKeys * kAttentionKeys;
    task.partial = plan.partials;
    int32_t count = 0;
    for (int64_t begin = 0; begin < all; begin += length, ++count) {
      AttentionTask part = task;
      part.key_begin = static_cast<int32_t>(begin);
      part.key_end = static_cast<int32_t>(std::min(begin + length, all));
      part.partial = plan.partials + count;
      plan.tasks.push_back(part);
    }
    plan.joins.push_back({task, count});
    plan.partials += count;
  });
}

void join(const AttentionJob& job, const Join& join) {
  const AttentionTask& task = join.task;
  const int64_t head_size = job.cache.head_size, floats = partial_floats(head_size);
  for (int r = 0; r < task.rows(); ++r) {
    float maximum = -INFINITY, total = 0.0f;
    const float* first = job.partials + task.partial * floats;
    auto maximum_of = [&](int part) { return first[part * floats + kAttentionRows * head_size + r]; };
    auto total_of = [&](int part) { return first[part * floats + kAttentionRows * (head_size + 1) + r]; };
    for (int part = 0; part < join.parts; ++part) maximum = std::max(maximum, maximum_of(part));
    float* sums = job.partials + task.partial * floats + r * head_size;  // those of the first part, in their place
    for (int part = 0; part < join.parts; ++part) {
      const float share = std::exp(maximum_of(part) - maximum);
      const float* own = first + part * floats + r * head_size;
      total += share * total_of(part);
      for (int64_t i = 0; i < head_size; ++i) sums[i] = part == 0 ? share * own[i] : sums[i] + share * own[i];
    }
    const int64_t token = task.token + r / task.num_heads;
    const int64_t head = task.kv_head * job.group + task.head_begin + r % task.num_heads;
    for (int64_t i = 0; i < head_size; ++i)
      store_any(job.output, token * job.output_stride + head * head_size + i, job.type, sums[i] / total);
  }
}

}  // namespace

void write_cache(const WriteJob& job, int64_t tokens) {
  const Path& path = current_path();
  for_ranges(tokens, 16, [&](int64_t begin, int64_t end) { path.write_cache(job, begin, end); });
}

void attend(AttentionJob job, const StepShape& step) {
  static thread_local Plan plan;
  plan.tasks.clear();
  plan.joins.clear();
  plan.partials = 0;
  make_plan(job, step, plan);
  const Path& path = current_path();
  const int64_t head_size = job.cache.head_size;
  const int64_t own = (attention_scratch_floats(head_size) + 15) / 16 * 16;
  auto* memory = static_cast<float*>(scratch(2, own * num_threads() * 4));
  job.partials = static_cast<float*>(scratch(3, partial_floats(head_size) * (plan.partials + 1) * 4));
  const AttentionTask* tasks = plan.tasks.data();
  for_chunks(static_cast<int64_t>(plan.tasks.size()),
      [&](int64_t chunk, int thread) { path.attend(job, tasks[chunk], memory + thread * own); });
  for (const Join& one : plan.joins) join(job, one);
}

}  // namespace graftlm
