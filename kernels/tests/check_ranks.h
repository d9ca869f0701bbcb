// Collectives between ranks, and the best place of a row; a part of check.cpp, whose helpers it uses.
#pragma once

// Ranks that are threads: ThreadSanitizer sees whether each message is read after it was written, and before the next.
static void check_collectives(int size, int rounds) {
  std::vector<std::vector<float>> sums(size), joined(size), told(size);
  std::vector<double> expected, in_order, first;
  std::vector<int> counts;
  for (int round = 0; round < rounds; ++round) counts.push_back(round % 7 == 3 ? 300000 : below(3000));
  std::vector<std::vector<float>> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(normals(300000));
  for (int count : counts) {
    for (int i = 0; i < count; ++i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += parts[rank][i];
      expected.push_back(sum);
    }
    for (int row = 0; row < 3; ++row)
      for (int rank = 0; rank < size; ++rank)
        for (int i = 0; i < count / 3; ++i) in_order.push_back(parts[rank][row * (count / 3) + i]);
    for (int i = 0; i < count; ++i) first.push_back(parts[size - 1][i]);
  }
  const int64_t bytes = SharedGroup::bytes_for(size);
  void* memory = std::aligned_alloc(128, static_cast<size_t>(bytes));
  std::memset(memory, 0, static_cast<size_t>(bytes));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      SharedGroup group(memory, rank, size);
      for (int count : counts) {
        std::vector<float> x(parts[rank].begin(), parts[rank].begin() + count);
        group.all_reduce(x.data(), count, DType::f32);
        sums[rank].insert(sums[rank].end(), x.begin(), x.end());
        std::vector<float> out(static_cast<size_t>(3) * size * (count / 3));
        group.gather(parts[rank].data(), 3, count / 3 * 4, rank == 0 ? out.data() : nullptr, rank != 0);
        if (rank == 0) joined[0].insert(joined[0].end(), out.begin(), out.end());
        x.assign(parts[rank].begin(), parts[rank].begin() + count);
        group.broadcast(x.data(), count * int64_t{4}, size - 1);
        told[rank].insert(told[rank].end(), x.begin(), x.end());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::free(memory);
  for (int rank = 0; rank < size; ++rank) {
    compare("all_reduce of rank " + std::to_string(rank), sums[rank], expected, 1e-6);
    compare("broadcast to rank " + std::to_string(rank), told[rank], first, 0);
    ++checks;
    if (sums[rank] != sums[0]) {
      ++failures;
      std::printf("all_reduce: rank %d has other bits than rank 0\n", rank);
    }
  }
  compare("gather", joined[0], in_order, 0);
}

static void check_best(int rows, int columns) {
  auto x = normals(static_cast<size_t>(rows) * columns);
  if (columns > 1) x[columns - 1] = x[0] = 9.0f;  // the first of equals
  std::vector<int64_t> places(rows);
  std::unique_ptr<bool[]> finite(new bool[rows]);
  current_path().best({x.data(), columns, columns, DType::f32, places.data(), finite.get()}, 0, rows);
  for (int r = 0; r < rows; ++r) {
    const auto row = x.begin() + r * columns;
    ++checks;
    if (places[r] != std::max_element(row, row + columns) - row || !finite[r]) {
      ++failures;
      std::printf("best of %d columns: %d\n", columns, static_cast<int>(places[r]));
    }
  }
}
