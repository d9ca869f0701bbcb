// Matrices in number formats and strides as they come; a part of check.cpp, whose counters and draws it uses.
#pragma once

// Rows of numbers of one type in memory of exactly the right size; what lies between the rows must stay as it is.
struct Numbers {
  DType type;
  int rows, columns, stride;
  std::vector<uint8_t> memory;

  Numbers(DType type, int rows, int columns, int gap = 0)
      : type(type), rows(rows), columns(columns), stride(columns + gap),
        memory(rows ? (static_cast<size_t>(rows - 1) * stride + columns) * size_of(type) : 0, 0xff) {}

  static Numbers drawn(DType type, int rows, int columns, int gap = 0) {
    Numbers numbers(type, rows, columns, gap);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) store_any(numbers.data(), r * int64_t{numbers.stride} + c, type, normal());
    return numbers;
  }

  uint8_t* data() { return memory.data(); }
  float at(int row, int column) const { return load_any(memory.data(), row * int64_t{stride} + column, type); }

  bool gaps_are_untouched() const {
    for (int r = 0; r + 1 < rows; ++r) {
      const int64_t end = (r * int64_t{stride} + columns) * size_of(type);
      for (int64_t i = end; i < (r + 1) * int64_t{stride} * size_of(type); ++i)
        if (memory[i] != 0xff) return false;
    }
    return true;
  }
};

static const char* name_of(DType type) {
  return type == DType::f32 ? "float32" : type == DType::bf16 ? "bfloat16" : "float16";
}

// Twice what rounding to a type loses, relative to the number.
static double rounding_of(DType type) { return type == DType::f32 ? 0x1p-23 : type == DType::bf16 ? 0x1p-8 : 0x1p-10; }

// Each number may be off by `absolute`, and by what its type's rounding loses.
static void compare_each(
    const std::string& what, const Numbers& found, const std::vector<double>& expected, double absolute) {
  ++checks;
  for (int r = 0; r < found.rows; ++r) {
    for (int c = 0; c < found.columns; ++c) {
      const double wanted = expected[r * static_cast<size_t>(found.columns) + c], one = found.at(r, c);
      if (!(std::fabs(one - wanted) <= absolute + rounding_of(found.type) * std::fabs(wanted) + 1e-7)) {
        ++failures;
        std::printf("FAILED %s on %s: %g instead of %g in row %d, column %d\n", what.c_str(), current_path().name, one,
            wanted, r, c);
        return;
      }
    }
  }
  if (!found.gaps_are_untouched()) {
    ++failures;
    std::printf("FAILED %s on %s: it writes between the rows\n", what.c_str(), current_path().name);
  }
}

// Rows of a file: floats, or blocks of any bytes with tame scales.
static std::vector<uint8_t> drawn_rows(Format format, int outputs, int columns, int64_t row_bytes) {
  std::vector<uint8_t> file(static_cast<size_t>(outputs * row_bytes));
  for (uint8_t& byte : file) byte = static_cast<uint8_t>(below(256));
  const int64_t unit = format == Format::q4_0 ? 18 : format == Format::q4_1 ? 20 : 34;
  for (int o = 0; o < outputs; ++o) {
    uint8_t* row = file.data() + o * row_bytes;
    if (is_float(format)) {
      for (int k = 0; k < columns; ++k) store_any(row, k, static_cast<DType>(static_cast<int>(format)), normal());
      continue;
    }
    for (int b = 0; b < columns / kBlock; ++b) {
      store_any(row + b * unit, 0, DType::f16, normal() * 0.02f);
      if (format == Format::q4_1) store_any(row + b * unit, 1, DType::f16, normal() * 0.1f);
    }
  }
  return file;
}

// As integer kernels see a row: whole numbers of so many steps, one scale for each 32.
static std::vector<double> in_whole_numbers(const Numbers& x, int row, float steps) {
  std::vector<double> whole(x.columns);
  for (int begin = 0; begin < x.columns; begin += kBlock) {
    float most = 0;
    for (int k = begin; k < begin + kBlock; ++k) most = std::max(most, std::fabs(x.at(row, k)));
    const float inverse = most > 0 ? steps / most : 0, scale = most / steps;
    for (int k = begin; k < begin + kBlock; ++k) whole[k] = double{std::nearbyint(x.at(row, k) * inverse)} * scale;
  }
  return whole;
}

struct LinearShape {
  Format format;
  bool wide;
  int outputs, columns, rows;
  DType x_type = DType::f32, y_type = DType::f32, bias_type = DType::f32;
  bool has_bias = true;
  int x_gap = 0, y_gap = 0;
};

static void check_linear(const LinearShape& shape) {
  const auto [format, wide, outputs, columns, rows, x_type, y_type, bias_type, has_bias, x_gap, y_gap] = shape;
  const int64_t unit = format == Format::q4_0 ? 18 : format == Format::q4_1 ? 20 : 34;
  const int64_t row_bytes = is_float(format) ? columns * (format == Format::f32 ? 4 : 2) : columns / kBlock * unit;
  const std::vector<uint8_t> file = drawn_rows(format, outputs, columns, row_bytes);
  PackedMatrix matrix(format, outputs, columns);
  matrix.set_wide(wide);
  const int cut = below(outputs + 1);
  matrix.pack_rows(0, cut, file.data(), row_bytes);
  matrix.pack_rows(cut, outputs - cut, file.data() + cut * row_bytes, row_bytes);
  std::vector<int64_t> ids(static_cast<size_t>(outputs));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> numbers(static_cast<size_t>(outputs) * columns);
  matrix.gather(ids.data(), outputs, numbers.data(), DType::f32);

  Numbers x = Numbers::drawn(x_type, rows, columns, x_gap), bias = Numbers::drawn(bias_type, 1, outputs);
  Numbers y(y_type, rows, outputs, y_gap);
  matrix.multiply({x.data(), x_type, x.stride, rows}, has_bias ? bias.data() : nullptr, bias_type,
      {y.data(), y_type, y.stride});
  std::vector<double> expected(static_cast<size_t>(rows) * outputs);
  double most = 0;
  for (int r = 0; r < rows; ++r) {
    std::vector<double> seen(columns);
    for (int k = 0; k < columns; ++k) seen[k] = x.at(r, k);
    if (!is_float(format)) seen = in_whole_numbers(x, r, wide || format == Format::q8_0 ? 32767.0f : 127.0f);
    for (int o = 0; o < outputs; ++o) {
      double sum = has_bias ? bias.at(0, o) : 0, size = std::fabs(sum);
      for (int k = 0; k < columns; ++k) {
        const double product = seen[k] * numbers[o * static_cast<size_t>(columns) + k];
        sum += product;
        size += std::fabs(product);
      }
      // Blocks with a minimum or an offset are summed apart from it, and both may be large.
      if (!is_float(format)) size *= 4;
      most = std::max(most, size);
      expected[r * static_cast<size_t>(outputs) + o] = sum;
    }
  }
  compare_each("linear format " + std::to_string(static_cast<int>(format)) + (wide ? " " : " narrow ") +
                   std::to_string(outputs) + "x" + std::to_string(columns) + " rows " + std::to_string(rows) + " " +
                   name_of(x_type) + " to " + name_of(y_type) + " gaps " + std::to_string(x_gap) + "," +
                   std::to_string(y_gap),
      y, expected, 1e-6 * most);
}
