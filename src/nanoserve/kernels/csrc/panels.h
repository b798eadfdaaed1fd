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
#include <cstring>

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
  void* out;  // of the first row and panel; rows follow out_stride elements apart
  int64_t out_stride;
};

constexpr int TASK_ROWS = 192;  // whose x stays in the second level cache
constexpr int FEW_ROWS = 48;    // that are done with a panel before the next one is here
constexpr int64_t TASK_BYTES = 1 << 18;  // of panels that stay in the second level cache
constexpr int64_t KEPT_VALUES = 1 << 14;  // results of a portion that may be computed twice

// The panels and rows of a product, divided among the team. A unit is a panel and a block of
// rows; a thread has panels that follow each other, so that it reads memory in order. Blocks of
// rows are equal but for multiples of rows_at_once, so that threads get equal work. Many rows
// take turns over some panels, which leaves a row's x in the first level cache; few rows take
// each panel as it comes from memory.
// Measured: Zen 4, 2 threads, 512 rows, bfloat16: 413 GFLOP/s, against 384 in turns of one panel.
class PanelDivision {
 public:
  PanelDivision(const PackedLinearArgs& args, int64_t panel_bytes, int rows_at_once)
      : args_(args),
        rows_at_once_(rows_at_once),
        num_panels_(ceil_div(args.out_size, PANEL_OUTPUTS)),
        num_blocks_(ceil_div(args.rows, TASK_ROWS)),
        most_panels_(std::max<int64_t>(1, TASK_BYTES / panel_bytes)) {}

  // Calls run(task) until every panel has met every row.
  template <class T, class Run>
  void run(Team& team, Run&& run) const {
    if (args_.rows > FEW_ROWS) {
      T* out = static_cast<T*>(args_.out);
      return team.share(units(team, most_panels_), [&](int64_t first, int64_t end) {
        Task task = task_of(first, end);
        task.out = out + task.first_row * args_.out_size + task.first_panel * PANEL_OUTPUTS;
        task.out_stride = args_.out_size;
        run(task);
      });
    }
    T kept[KEPT_VALUES];
    int64_t panel_values = PANEL_OUTPUTS * std::max<int64_t>(1, args_.rows);
    int64_t most = std::min(most_panels_, KEPT_VALUES / panel_values);
    auto compute = [&](const Portion& portion, const Portion&) {
      int64_t stride = (portion.end - portion.first) * PANEL_OUTPUTS;
      for (int64_t panel = portion.first; panel < portion.end; panel++) {
        T* out = kept + (panel - portion.first) * PANEL_OUTPUTS;
        run(Task{panel, panel + 1, 0, static_cast<int>(args_.rows), out, stride});
      }
    };
    team.divide(units(team, most), compute, [&](const Portion& portion) { write(portion, kept); });
  }

 private:
  Division units(const Team& team, int64_t most) const {
    return Division::in_ranges(num_panels_ * num_blocks_, team.size(), most, num_panels_);
  }

  Task task_of(int64_t first, int64_t end) const {
    int64_t block = first / num_panels_, panel = first % num_panels_;
    int64_t num_turns = ceil_div(args_.rows, rows_at_once_);
    int64_t first_row = num_turns * block / num_blocks_ * rows_at_once_;
    int64_t end_row = num_turns * (block + 1) / num_blocks_ * rows_at_once_;
    int rows = static_cast<int>(std::min(end_row, args_.rows) - first_row);
    return {panel, panel + end - first, first_row, rows, nullptr, 0};
  }

  template <class T>
  void write(const Portion& portion, const T* kept) const {
    int64_t stride = (portion.end - portion.first) * PANEL_OUTPUTS;
    int64_t first = portion.first * PANEL_OUTPUTS;
    int64_t count = std::min(stride, args_.out_size - first);
    for (int64_t row = 0; row < args_.rows; row++) {
      T* out = static_cast<T*>(args_.out) + row * args_.out_size + first;
      std::memcpy(out, kept + row * stride, count * sizeof(T));
    }
  }

  const PackedLinearArgs& args_;
  const int rows_at_once_;
  const int64_t num_panels_, num_blocks_, most_panels_;
};

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
