// The pool, and when its caller computes alone; a part of check.cpp, whose counters it uses.
#pragma once

static void expect(const char* what, bool holds) {
  ++checks;
  if (!holds) {
    ++failures;
    std::printf("FAILED %s\n", what);
  }
}

// In made-up time: the same on every machine.
static void check_stalls() {
  using std::chrono::milliseconds;
  Stalls stalls;
  Stalls::Clock::time_point now{milliseconds(1000000)};
  auto wait = [&](int length) {
    const auto since = now;
    now += milliseconds(length);
    stalls.waited(since, now);
  };
  auto alone_for = [&] {
    const auto begin = now;
    while (stalls.alone(now)) now += milliseconds(1);
    return (now - begin) / milliseconds(1);
  };
  for (int i = 0; i < 50; ++i) wait(2);
  expect("short waits are no stalls", !stalls.alone(now));
  wait(4);
  now += milliseconds(60);
  wait(4);
  expect("one stall, and much later another one, mean nothing", !stalls.alone(now));
  wait(4);
  expect("two close together mean nothing yet", !stalls.alone(now));
  wait(4);
  expect("three close together: alone for a while", alone_for() == 100);
  wait(4);
  expect("and twice as long, if the next try stalls at once", alone_for() == 200);
  for (int i = 0; i < 20; ++i) {
    wait(4);
    alone_for();
  }
  wait(4);
  expect("up to a limit", alone_for() == 6400);
  now += milliseconds(500);
  wait(4);
  expect("after a good time one stall means nothing again", !stalls.alone(now));
  wait(4);
  wait(4);
  expect("and three mean a short time", alone_for() == 100);
  for (int i = 0; i < 3; ++i) wait(4);
  stalls.forget();
  expect("what is forgotten means nothing", !stalls.alone(now));
  wait(4);
  expect("nor does it make the next one count", !stalls.alone(now));
}

// Each chunk once, whatever the number of chunks, threads, and jobs at the same time.
static void check_pool() {
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    for (int64_t chunks : {0, 1, 2, 7, 1000}) {
      auto job = [chunks, threads] {
        for (int round = 0; round < 20; ++round) {
          std::vector<int> seen(static_cast<size_t>(chunks));
          std::atomic<bool> in_range{true};
          for_chunks(chunks, [&](int64_t chunk, int thread) {
            ++seen[static_cast<size_t>(chunk)];
            if (thread < 0 || thread >= threads) in_range = false;
          });
          if (!in_range || std::any_of(seen.begin(), seen.end(), [](int times) { return times != 1; })) return false;
        }
        return true;
      };
      bool other = false;
      std::thread beside([&] { other = job(); });
      const bool own = job();
      beside.join();
      expect("each chunk is computed once", own && other);
    }
  }
}
