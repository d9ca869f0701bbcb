// One pool of threads for all kernels: chunks are claimed from a counter, and idle threads sleep.
//
// It knows no kernel. A thread whose core is taken by another process delays only the chunk that it holds; one that
// has not woken up yet delays nothing.
#pragma once

#include <cstdint>
#include <type_traits>

namespace graftlm {

using ChunkFunction = void (*)(void* context, int64_t chunk, int thread);

// Threads that compute, the caller included.
int num_threads();
void set_num_threads(int count);

// Calls function(context, chunk, thread) for each chunk, thread below num_threads(); returns when all are done.
void run_chunks(int64_t chunks, ChunkFunction function, void* context);

template <class Body>
void for_chunks(int64_t chunks, Body&& body) {
  using Function = std::remove_reference_t<Body>;
  auto call = [](void* context, int64_t chunk, int thread) { (*static_cast<Function*>(context))(chunk, thread); };
  run_chunks(chunks, call, &body);
}

// Splits [0, size) into ranges of at least `grain`, enough of them to balance threads that lose their core.
template <class Body>
void for_ranges(int64_t size, int64_t grain, Body&& body) {
  if (size <= 0) return;
  const int64_t wanted = 8 * static_cast<int64_t>(num_threads());
  int64_t step = (size + wanted - 1) / wanted;
  if (step < grain) step = grain;
  const int64_t chunks = (size + step - 1) / step;
  auto range = [&](int64_t chunk, int) {
    const int64_t begin = chunk * step;
    body(begin, begin + step < size ? begin + step : size);
  };
  for_chunks(chunks, range);
}

// Call it after work that waits for something else than cores, such as memory that the system has yet to find. What is
// computed next would be computed alone for seconds, as beside another process.
void forget_stalls();

// Memory of the calling thread that kernels may use until the next call with the same `place`; aligned to 64.
void* scratch(int place, int64_t bytes);

}  // namespace graftlm
