// The Python module: functions that take addresses, sizes and strides as whole numbers.
//
// It checks nothing that the Python side knows; tensors stay alive and in place during a call, which holds no GIL.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "all_reduce.h"
#include "attention.h"
#include "capture.h"
#include "linear.h"
#include "pool.h"

namespace nb = nanobind;
using namespace graftlm;
using Address = uintptr_t;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

template <class T>
static T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

static DType dtype(int code) { return static_cast<DType>(code); }

static void check_head(int64_t head_size) {
  if (head_size < 1 || head_size > 1024) throw std::invalid_argument("heads have 1 to 1024 numbers");
}

static void linear(const PackedMatrix& matrix, Address x, int x_type, int64_t x_stride, int64_t rows, Address bias,
    int bias_type, Address y, int y_type, int64_t y_stride) {
  run_kept([=, &matrix](const StepInputs&) {
    matrix.multiply({pointer<void>(x), dtype(x_type), x_stride, rows}, pointer<void>(bias), dtype(bias_type),
        {pointer<void>(y), dtype(y_type), y_stride});
  });
}

static void gather(const PackedMatrix& matrix, Address ids, int64_t count, Address to, int type) {
  run_kept([=, &matrix, ids = Place(ids)](const StepInputs& inputs) {
    matrix.gather(ids.in<int64_t>(inputs), count, pointer<void>(to), dtype(type));
  });
}

static void rms_norm(Address x, int64_t x_stride, Address residual, int64_t residual_stride, Address weight,
    Address y, int64_t rows, int64_t columns, float eps, int type) {
  const NormJob job{pointer<void>(x), x_stride, pointer<void>(residual), residual_stride, pointer<void>(weight),
      pointer<void>(y), columns, eps, dtype(type)};
  run_kept([=](const StepInputs&) {
    const Path& path = current_path();
    for_ranges(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)),
        [&](int64_t begin, int64_t end) { path.rms_norm(job, begin, end); });
  });
}

static void layer_norm(Address x, int64_t x_stride, Address residual, int64_t residual_stride, Address weight,
    Address bias, Address y, int64_t rows, int64_t columns, float eps, int type) {
  const NormJob job{pointer<void>(x), x_stride, pointer<void>(residual), residual_stride, pointer<void>(weight),
      pointer<void>(y), columns, eps, dtype(type), pointer<void>(bias)};
  run_kept([=](const StepInputs&) {
    const Path& path = current_path();
    for_ranges(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)),
        [&](int64_t begin, int64_t end) { path.layer_norm(job, begin, end); });
  });
}

static void silu_and_mul(Address x, int64_t x_stride, Address y, int64_t rows, int64_t columns, int type) {
  const ActivationJob job{pointer<void>(x), x_stride, pointer<void>(y), columns, dtype(type)};
  run_kept([=](const StepInputs&) {
    const Path& path = current_path();
    for_ranges(rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(columns, 1)), [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) path.silu_and_mul(job, begin, 0, columns);
    });
  });
}

static void rotate(Address x, int64_t x_stride, Address y, int64_t y_stride, int64_t tokens, int64_t heads,
    int64_t head_size, int type, Address table, int table_type, Address positions, int64_t dims, bool neox) {
  check_head(head_size);
  run_kept([=, positions = Place(positions)](const StepInputs& inputs) {
    const RotateJob job{{pointer<void>(table), dtype(table_type), positions.in<int64_t>(inputs), dims, neox},
        pointer<void>(x), x_stride, pointer<void>(y), y_stride, heads, head_size, dtype(type)};
    const Path& path = current_path();
    for_ranges(tokens, 16, [&](int64_t begin, int64_t end) { path.rotate(job, begin, end); });
  });
}

static void best(Address x, int64_t x_stride, int64_t rows, int64_t columns, int type, Address places,
    Address is_finite) {
  const BestJob job{pointer<void>(x), x_stride, columns, dtype(type), pointer<int64_t>(places),
      pointer<bool>(is_finite)};
  run_kept([=](const StepInputs&) {
    const Path& path = current_path();
    for_ranges(rows, 1, [&](int64_t begin, int64_t end) { path.best(job, begin, end); });
  });
}

static void relu(Address x, int64_t count, int type) {
  run_kept([=](const StepInputs&) {
    const Path& path = current_path();
    for_ranges(count, 16384, [&](int64_t begin, int64_t end) { path.relu(pointer<void>(x), dtype(type), begin, end); });
  });
}

static void all_reduce(SharedGroup& group, Address x, int64_t count, int type) {
  run_kept([=, &group](const StepInputs&) { group.all_reduce(pointer<void>(x), count, dtype(type)); });
}

static void gather_ranks(SharedGroup& group, Address x, int64_t rows, int64_t row_bytes, Address out, bool sends) {
  run_kept([=, &group](const StepInputs&) {
    group.gather(pointer<void>(x), rows, row_bytes, pointer<void>(out), sends);
  });
}

static void broadcast(SharedGroup& group, Address x, int64_t bytes, int source) {
  run_kept([=, &group](const StepInputs&) { group.broadcast(pointer<void>(x), bytes, source); });
}

// Each thread's share is one chunk, since a ceiling is what all of them reach together.
static int64_t peak(bool wide, int64_t rounds) {
  const Path& path = current_path();
  std::atomic<int64_t> products{0};
  for_chunks(num_threads(), [&](int64_t, int) { products += path.peak(wide, rounds); });
  forget_stalls();  // whoever begins late is waited for as long
  return products;
}

static int64_t read_through(Address from, int64_t bytes) {
  const Path& path = current_path();
  std::atomic<int64_t> sum{0};
  for_ranges(bytes / 4096, 64, [&](int64_t begin, int64_t end) {
    sum += path.read_through(pointer<char>(from) + begin * 4096, (end - begin) * 4096);
  });
  return sum;
}

// One layer's attention: what stays the same from step to step is given once.
class AttentionLayer {
 public:
  AttentionLayer(int64_t num_heads, int64_t num_kv_heads, int64_t head_size, float scale)
      : num_heads_(num_heads), num_kv_heads_(num_kv_heads), head_size_(head_size), scale_(scale) {
    check_head(head_size);
    if (num_kv_heads < 1 || num_heads % num_kv_heads) {
      throw std::invalid_argument("query heads are a multiple of the key-value heads");
    }
  }

  void bind_rotation(Address table, int table_type, int64_t dims, bool neox) {
    rotation_ = {pointer<void>(table), dtype(table_type), nullptr, dims, neox};
  }

  void write(Address cache, int cache_type, int64_t block_size, Address key, int64_t key_stride, Address value,
      int64_t value_stride, int type, int64_t tokens, Address slots, Address positions) const {
    run_kept([=, this, slots = Place(slots), positions = Place(positions)](const StepInputs& inputs) {
      const WriteJob job{geometry(cache, cache_type, block_size), rotation(positions.in<int64_t>(inputs)),
          pointer<void>(key), key_stride, pointer<void>(value), value_stride, dtype(type), slots.in<int64_t>(inputs)};
      write_cache(job, tokens);
    });
  }

  void attend(Address cache, int cache_type, int64_t block_size, Address query, int64_t query_stride, Address output,
      int64_t output_stride, int type, int64_t requests, Address query_start, Address seq_lens, Address block_table,
      int64_t table_stride, Address positions) const {
    run_kept([=, this, query_start = Place(query_start), seq_lens = Place(seq_lens), table = Place(block_table),
                 positions = Place(positions)](const StepInputs& inputs) {
      const int64_t stride = inputs.table_stride ? inputs.table_stride : table_stride;
      const AttentionJob job{geometry(cache, cache_type, block_size), rotation(positions.in<int64_t>(inputs)),
          pointer<void>(query), query_stride, pointer<void>(output), output_stride, dtype(type),
          num_heads_ / num_kv_heads_, scale_, table.in<int32_t>(inputs), stride, nullptr};
      graftlm::attend(job, {query_start.in<int32_t>(inputs), seq_lens.in<int32_t>(inputs),
                                   inputs.requests ? inputs.requests : requests});
    });
  }

 private:
  CacheGeometry geometry(Address cache, int type, int64_t block_size) const {
    return {pointer<void>(cache), dtype(type), num_kv_heads_, block_size, head_size_};
  }

  Rotation rotation(const int64_t* positions) const {
    if (!positions) return {};
    Rotation own = rotation_;
    own.positions = positions;
    return own;
  }

  int64_t num_heads_;
  int64_t num_kv_heads_;
  int64_t head_size_;
  float scale_;
  Rotation rotation_{};
};

NB_MODULE(_native, m) {
  // A server freezes its heap when it is ready (gc.freeze), so matrices live until the process ends; no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Kernels over raw addresses; graftlm_kernels wraps them for tensors.";
  m.def("path", [] { return current_path().name; }, "The instruction set that runs: avx512, avx2 or generic.");
  m.def("use_path", [](const char* name) { use_path(name); }, "Run another instruction set; an empty name: the best.");
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "Threads that compute, the caller included; started at the first use.");
  m.def("peak", &peak, NoGil(), "Multiply-adds of `rounds` on every thread, registers with registers: a ceiling to time.");
  m.def("read_through", &read_through, NoGil(), "Read memory by all threads: a ceiling to time.");
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def("__init__",
          [](PackedMatrix* self, int format, int64_t outputs, int64_t columns) {
            new (self) PackedMatrix(static_cast<Format>(format), outputs, columns);
          })
      .def("pack_rows",
          [](PackedMatrix& self, int64_t offset, int64_t rows, Address from, int64_t stride) {
            self.pack_rows(offset, rows, pointer<void>(from), stride);
          }, NoGil())
      .def("multiply", &linear, NoGil())
      .def("set_wide", &PackedMatrix::set_wide, "Activations of 4-bit weights in 16 bits, else in 8.")
      .def("gather", &gather, NoGil())
      .def_prop_ro("outputs", &PackedMatrix::outputs)
      .def_prop_ro("columns", &PackedMatrix::columns)
      .def_prop_ro("nbytes", &PackedMatrix::bytes);
  m.def("rms_norm", &rms_norm, NoGil());
  m.def("layer_norm", &layer_norm, NoGil());
  m.def("silu_and_mul", &silu_and_mul, NoGil());
  m.def("rotate", &rotate, NoGil());
  m.def("best", &best, NoGil());
  m.def("relu", &relu, NoGil());
  nb::class_<SharedGroup>(m, "SharedGroup", "The ranks of one host, over a file that each has opened.")
      .def(nb::init<int, int, int>())
      .def_static("bytes_for", &SharedGroup::bytes_for)
      .def("all_reduce", &all_reduce, NoGil())
      .def("gather", &gather_ranks, NoGil())
      .def("broadcast", &broadcast, NoGil());
  nb::class_<AttentionLayer>(m, "AttentionLayer")
      .def(nb::init<int64_t, int64_t, int64_t, float>())
      .def("bind_rotation", &AttentionLayer::bind_rotation)
      .def("write", &AttentionLayer::write, NoGil())
      .def("attend", &AttentionLayer::attend, NoGil());
  nb::class_<CapturedStep>(m, "CapturedStep")
      .def("__init__",
          [](CapturedStep* self, Address ids, Address positions, Address slots, Address query_start, Address seq_lens,
              Address table, int64_t table_stride, int64_t requests) {
            new (self) CapturedStep({{ids, positions, slots, query_start, seq_lens, table}, table_stride, requests});
          })
      .def("begin", &CapturedStep::begin, "Keep the calls that this thread makes until `end`.")
      .def("end", &CapturedStep::end)
      .def("__len__", &CapturedStep::size)
      .def("run",
          [](const CapturedStep& self, Address ids, Address positions, Address slots, Address query_start,
              Address seq_lens, Address table, int64_t table_stride, int64_t requests) {
            self.run({{ids, positions, slots, query_start, seq_lens, table}, table_stride, requests});
          }, NoGil());
}
