// Shapes drawn at random, for whichever path is current; a part of check.cpp, whose counters and draws it uses.
#pragma once

static const Format kFormats[] = {Format::f32, Format::bf16, Format::f16, Format::q4_0, Format::q4_1, Format::q8_0};

template <class T>
static T any_of(std::initializer_list<T> choices) {
  return choices.begin()[below(static_cast<int>(choices.size()))];
}

static DType any_type() { return any_of({DType::f32, DType::bf16, DType::f16}); }

// As often below 8 as up to 64 as up to `most`.
static int any_count(int least, int most) { return least + below(any_of({std::min(8, most), std::min(64, most), most})); }

static void check_drawn_matrices(int draws) {
  for (int i = 0; i < draws; ++i) {
    for (const Format format : kFormats) {
      const int columns = is_float(format) ? any_count(1, 300) : kBlock * (1 + below(12));
      check_linear({format, below(2) == 0, any_count(1, 260), columns, any_count(0, 513), any_type(), any_type(),
          any_type(), below(3) > 0, any_of({0, 1, 13}), any_of({0, 1, 8, 13})});
    }
  }
}

// Every number of rows up to 512, since each is cut into the kernels' tiles in its own way.
static void check_every_number_of_rows(int step) {
  for (const Format format : kFormats)
    for (int rows = 0; rows <= 512; rows += 1 + below(step)) check_linear({format, rows % 2 == 0, 41, 64, rows});
}

static void check_drawn_rows(int draws) {
  for (int i = 0; i < draws; ++i) {
    const DType type = any_type();
    const int rows = below(6), columns = any_count(1, 1600), gap = any_of({0, 1, 24});
    check_norms(type, rows, columns, gap);
    check_activations(type, rows, columns, gap);
    const int dims = 2 * (1 + below(48)), head_size = dims + any_of({0, 0, 1, 20});
    check_rotation(type, any_of({DType::f32, type}), below(20), 1 + below(5), head_size, dims, below(2) == 0, gap);
  }
}

// One to eight query heads for each key-value head; requests that decode, that begin, and that go on, in one step.
static void check_drawn_attention(int draws, int longest) {
  for (int group = 1; group <= 8; ++group) {
    for (int i = 0; i < draws; ++i) {
      AttentionShape shape{{}, 1 + below(3), group, 1 + below(100), 8 << below(5), any_type(), any_type()};
      if (below(2)) shape.head_size = any_of({32, 64, 80, 128});
      if (below(2)) shape.rotated_dims = std::max(2, shape.head_size / any_of({1, 1, 2}) / 2 * 2);
      if (shape.head_size == 1) shape.rotated_dims = 0;
      shape.neox = below(2);
      shape.gap = any_of({0, 3, 64});
      for (int requests = below(6); requests > 0; --requests)
        shape.requests.push_back({any_of({0, below(300)}), any_of({1, 1, 2 + below(40)})});
      check_attention(shape);
    }
    check_attention({{{longest - 1 - below(64), 1}, {below(longest), 1}}, 1, group, 20, any_of({16, 128}), any_type(),
        any_type(), any_of({0, 20})});
  }
}

static void check_drawn(bool full) {
  check_drawn_matrices(full ? 60 : 8);
  check_every_number_of_rows(full ? 1 : 70);
  check_drawn_rows(full ? 150 : 25);
  check_drawn_attention(full ? 12 : 3, full ? 8192 : 1700);
}
