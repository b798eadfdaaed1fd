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

// Calls run(panel, first_row, num_rows) for every panel and block of rows. A thread has panels
// that follow each other, so that it reads memory in order; blocks are equal, so that threads
// get equal work.
template <class Run>
inline void share_panels(int64_t num_panels, int64_t num_rows, int64_t most_rows, Team& team,
                         Run&& run) {
  int64_t num_blocks = ceil_div(num_rows, most_rows);
  team.share(num_panels * num_blocks, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; task++) {
      int64_t block = task / num_panels;
      int64_t first_row = num_rows * block / num_blocks;
      int64_t end_row = num_rows * (block + 1) / num_blocks;
      run(task % num_panels, first_row, static_cast<int>(end_row - first_row));
    }
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

// Brings a panel nearer while another is multiplied, in equal parts: one for each pass over
// the other panel's items.
class Prefetch {
 public:
  Prefetch(const void* from, int64_t item_bytes, int num_passes)
      : from_(static_cast<const char*>(from)), step_(item_bytes / num_passes) {}

  // For a pass over num_items items.
  void start_pass(int64_t num_items, int pass) { at_ = from_ + pass * num_items * step_; }

  void next_item() {
    __builtin_prefetch(at_, 0, 2);
    if (step_ > 64) __builtin_prefetch(at_ + 64, 0, 2);
    at_ += step_;
  }

 private:
  const char* from_;
  const char* at_ = nullptr;
  int64_t step_;
};
