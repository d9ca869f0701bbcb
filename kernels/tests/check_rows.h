// What is computed row by row or number by number, in every number format, with rows that lie apart; a part of
// check.cpp, whose counters and draws it uses.
#pragma once

static void check_norms(DType type, int rows, int columns, int gap) {
  const Path& path = current_path();
  const std::string shape = std::to_string(rows) + "x" + std::to_string(columns) + " " + name_of(type);
  Numbers x = Numbers::drawn(type, rows, columns, gap), weight = Numbers::drawn(type, 1, columns);
  Numbers bias = Numbers::drawn(type, 1, columns), before = Numbers::drawn(type, rows, columns, gap);
  for (const bool with_residual : {false, true}) {
    for (const bool is_rms : {true, false}) {
      for (const bool with_parts : {true, false}) {
        if (is_rms && !with_parts) continue;
        Numbers residual = before, y(type, rows, columns), kept(type, rows, columns, gap);
        NormJob job{x.data(), x.stride, with_residual ? residual.data() : nullptr, residual.stride,
            with_parts ? weight.data() : nullptr, y.data(), columns, 1e-5f, type,
            !is_rms && with_parts ? bias.data() : nullptr};
        (is_rms ? path.rms_norm : path.layer_norm)(job, 0, rows);
        std::vector<double> expected, summed;
        for (int r = 0; r < rows; ++r) {
          std::vector<double> row;
          for (int c = 0; c < columns; ++c) {
            if (with_residual) store_any(kept.data(), 0, type, x.at(r, c) + before.at(r, c));  // as the residual keeps it
            row.push_back(with_residual ? kept.at(0, 0) : x.at(r, c));
          }
          summed.insert(summed.end(), row.begin(), row.end());
          const double mean = is_rms ? 0 : std::accumulate(row.begin(), row.end(), 0.0) / columns;
          double squares = 0;
          for (const double value : row) squares += (value - mean) * (value - mean);
          for (int c = 0; c < columns; ++c)
            expected.push_back((row[c] - mean) / std::sqrt(squares / columns + 1e-5) *
                                   (with_parts ? weight.at(0, c) : 1) +
                               (job.bias ? bias.at(0, c) : 0));
        }
        // Where the few numbers of a row are close, their mean takes most of their digits.
        compare_each((is_rms ? "rms_norm " : "layer_norm ") + shape, y, expected,
            is_rms ? 4e-6 : columns < 8 ? 2e-4 : 1e-5);
        if (with_residual) compare_each("the residual of a norm " + shape, residual, summed, 0);
      }
    }
  }
}

static void check_activations(DType type, int rows, int columns, int gap) {
  const Path& path = current_path();
  const std::string shape = std::to_string(rows) + "x" + std::to_string(columns) + " " + name_of(type);
  Numbers both = Numbers::drawn(type, rows, 2 * columns, gap), y(type, rows, columns);
  std::vector<double> expected;
  for (int r = 0; r < rows; ++r) {
    const int cut = below(columns + 1);
    path.silu_and_mul({both.data(), both.stride, y.data(), columns, type}, r, 0, cut);
    path.silu_and_mul({both.data(), both.stride, y.data(), columns, type}, r, cut, columns);
    for (int c = 0; c < columns; ++c) {
      const double gate = both.at(r, c), up = both.at(r, columns + c);
      expected.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  compare_each("silu_and_mul " + shape, y, expected, 2e-6);

  Numbers x = Numbers::drawn(type, rows, columns);
  expected.clear();
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) expected.push_back(std::max(0.0f, x.at(r, c)));
  const int64_t count = int64_t{rows} * columns, middle = below(static_cast<int>(count) + 1);
  path.relu(x.data(), type, 0, middle);
  path.relu(x.data(), type, middle, count);
  compare_each("relu " + shape, x, expected, 0);

  std::vector<Numbers> parts;
  for (int i = 0; i < 1 + below(4); ++i) parts.push_back(Numbers::drawn(type, 1, columns));
  std::vector<const void*> places;
  for (Numbers& part : parts) places.push_back(part.data());
  expected.assign(columns, 0);
  for (const Numbers& part : parts)
    for (int c = 0; c < columns; ++c) expected[c] += part.at(0, c);
  // The sum may take the place of a part.
  path.sum({places.data(), static_cast<int>(parts.size()), parts[0].data(), type}, 0, columns);
  compare_each("sum of " + std::to_string(parts.size()) + " " + shape, parts[0], expected, 1e-6);
}

// A table of cosines and signed sines, and the positions that look things up in it.
struct DrawnRotation {
  Numbers table;
  std::vector<int64_t> positions;
  int dims;
  bool neox;

  static constexpr int kPositions = 50;

  DrawnRotation(DType type, int tokens, int dims, bool neox)
      : table(type, kPositions, 2 * dims), positions(tokens), dims(dims), neox(neox) {
    for (int p = 0; p < kPositions; ++p) {
      for (int d = 0; d < dims; ++d) {
        const double angle = p * std::pow(100.0, -2.0 * (neox ? d % (dims / 2) : d / 2) / dims);
        const bool is_first = neox ? d < dims / 2 : d % 2 == 0;
        store_any(table.data(), p * int64_t{2 * dims} + d, type, static_cast<float>(std::cos(angle)));
        store_any(table.data(), p * int64_t{2 * dims} + dims + d, type,
            static_cast<float>(is_first ? -std::sin(angle) : std::sin(angle)));
      }
    }
    for (int64_t& position : positions) position = below(kPositions);
  }

  Rotation job() { return {table.data(), table.type, positions.data(), dims, neox}; }

  // One number of a head that begins at `column` of a row, rotated as its token's position says.
  double of(const Numbers& x, int token, int column, int d) const {
    if (d >= dims) return x.at(token, column + d);
    const int half = dims / 2, partner = neox ? (d < half ? d + half : d - half) : d ^ 1;
    const int row = static_cast<int>(positions[token]);
    return double{x.at(token, column + d)} * table.at(row, d) +
           double{x.at(token, column + partner)} * table.at(row, dims + d);
  }
};

static void check_rotation(DType type, DType table_type, int tokens, int heads, int head_size, int dims, bool neox,
    int gap) {
  DrawnRotation rotation(table_type, tokens, dims, neox);
  Numbers x = Numbers::drawn(type, tokens, heads * head_size, gap), y(type, tokens, heads * head_size, gap / 2);
  std::vector<double> expected;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < heads; ++h)
      for (int d = 0; d < head_size; ++d) expected.push_back(rotation.of(x, t, h * head_size, d));
  current_path().rotate({rotation.job(), x.data(), x.stride, y.data(), y.stride, heads, head_size, type}, 0, tokens);
  compare_each("rotate " + std::to_string(tokens) + "x" + std::to_string(heads) + "x" + std::to_string(head_size) +
                   " of which " + std::to_string(dims) + (neox ? " in halves " : " in pairs ") + name_of(type) +
                   " by " + name_of(table_type),
      y, expected, 2e-6);
}
