// Packed weights: how their values lie in memory, in every build.
//
// A panel holds the weights of PANEL_OUTPUTS outputs (0 where there are no more), so that one
// vector load gives the same inputs' weights for LANES outputs, and a sum needs no step across
// lanes. Panels follow each other. Within one:
//
//   float32, float16   [input][output]
//   bfloat16           [pair of inputs][output][2]
//   int8               [four inputs][output][4], as bytes 128 above the value
//   int4               [eight inputs][output][4], the low halves of the bytes being the first
//                      four inputs, the high halves the others
//
// Inputs are padded with zeros to a whole last item. Scales and minimums are float16,
// [panel][group of inputs][output]: an int8 weight is scale * value, an int4 weight is
// scale * value + minimum with a value of 0 to 15.
#pragma once
#include <algorithm>

#include "ops.h"

constexpr int PANEL_OUTPUTS = 32;
constexpr int PANEL_VECTORS = PANEL_OUTPUTS / LANES;

void dense_linear(const PackedLinearArgs& args, Team& team);
void quantized_linear(const PackedLinearArgs& args, Team& team);

inline int64_t ceil_div(int64_t size, int64_t part) { return (size + part - 1) / part; }

// Some panels by some rows, multiplied by one thread.
struct Task {
  int64_t first_panel, end_panel, first_row;
  int num_rows;
};

constexpr int TASK_ROWS = 192;  // whose x stays in the second level cache
constexpr int FEW_ROWS = 48;    // that are done with a panel before the next one is here
constexpr int64_t TASK_BYTES = 1 << 18;  // of panels that stay in the second level cache

// Calls run(task) until every panel has met every row. A thread has panels that follow each
// other, so that it reads memory in order. Blocks of rows are equal but for multiples of
// rows_at_once, so that threads get equal work. Many rows take turns over some panels, which
// leaves a row's x in the first level cache; few rows take each panel as it comes from memory.
// Measured: Zen 4, 2 threads, 512 rows, bfloat16: 413 GFLOP/s, against 384 in turns of one panel.
template <class Run>
inline void share_panels(int64_t out_size, int64_t panel_bytes, int64_t num_rows, int rows_at_once,
                         Team& team, Run&& run) {
  int64_t num_panels = ceil_div(out_size, PANEL_OUTPUTS);
  int64_t num_blocks = ceil_div(num_rows, TASK_ROWS), num_turns = ceil_div(num_rows, rows_at_once);
  int64_t most_panels = num_rows <= FEW_ROWS ? 1 : std::max<int64_t>(1, TASK_BYTES / panel_bytes);
  team.share(num_panels * num_blocks, [&](int64_t first, int64_t last) {
    while (first < last) {
      int64_t block = first / num_panels, panel = first % num_panels;
      int64_t count = std::min({most_panels, last - first, num_panels - panel});
      int64_t first_row = num_turns * block / num_blocks * rows_at_once;
      int64_t end_row = num_turns * (block + 1) / num_blocks * rows_at_once;
      int rows = static_cast<int>(std::min(end_row, num_rows) - first_row);
      run(Task{panel, panel + count, first_row, rows});
      first += count;
    }
  });
}

// Some rows of a task that are multiplied at once.
struct Pass {
  int row, number, num_passes;
};

// Calls f.template operator()<N>(pass) for groups of N rows, N at most MOST.
template <int MOST, class F>
inline void for_passes(int num_rows, F&& f) {
  int num_passes = (num_rows + MOST - 1) / MOST;
  for_row_groups<MOST>(num_rows, [&]<int N>(int row) {
    f.template operator()<N>(Pass{row, row / MOST, num_passes});
  });
}

// Writes one row's sums of a panel, after adding the bias, if there is one.
template <class T>
inline void write_outputs(const f32v (&sums)[PANEL_VECTORS], const T* bias, T* out, int64_t count) {
  for (int v = 0; v < PANEL_VECTORS && v * LANES < count; v++) {
    int64_t first = v * LANES;
    f32v sum = sums[v];
    if (bias) sum += load(bias + first, count - first);
    store(out + first, sum, count - first);
  }
}

// Brings what follows some items nearer while they are multiplied, in as many equal parts as
// there are passes over them.
class Prefetch {
 public:
  Prefetch(const void* items, int64_t item_bytes, int64_t num_items, const Pass& pass)
      : step_(item_bytes / pass.num_passes),
        at_(static_cast<const char*>(items) + num_items * (item_bytes + pass.number * step_)) {}

  void next_item() {
    __builtin_prefetch(at_, 0, 2);
    if (step_ > 64) __builtin_prefetch(at_ + 64, 0, 2);
    at_ += step_;
  }

 private:
  int64_t step_;
  const char* at_;
};
