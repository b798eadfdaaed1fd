// Products of activations with a weight that lies as in its checkpoint, [out_size, in_size].
//
// A task is a panel of outputs for some rows. The panel's weights are transposed on the way,
// so that a vector holds one input's weights for LANES outputs and a sum needs no step across
// lanes. That costs a pass through registers for each panel, hidden behind memory where there
// is one row and nothing against the products where there are many; in return no second copy
// of any weight exists, and a tied head is just a weight.
//
// A sum runs over the inputs in order, whatever the other rows are.
#include <algorithm>

#include "items.h"
#include "ops.h"

namespace {

constexpr int OUTPUTS = 2 * LANES;      // outputs of a panel
constexpr int ROWS = 2 * ROWS_AT_ONCE;  // rows of two accumulators each
constexpr int TASK_ROWS = 16 * ROWS;
constexpr int MAX_ITEMS = 1024;  // items of the inputs whose weights are transposed at once

template <class T>
class Product {
 public:
  explicit Product(const LinearArgs& args)
      : args_(args), num_items_(Items<T>::count(args.in_size)) {}

  // Computes OUTPUTS outputs, fewer at the end, of some rows.
  void run(int64_t first_output, int64_t first_row, int num_rows) {
    std::memset(sums_, 0, num_rows * OUTPUTS * sizeof(float));
    for (int first = 0; first < num_items_; first += MAX_ITEMS) {
      int count = std::min(MAX_ITEMS, num_items_ - first);
      transpose_weights(first_output, first, count);
      for_row_groups<ROWS>(num_rows, [&]<int N>(int row) {
        add_rows<N>(first_row + row, first, count, sums_ + row * OUTPUTS);
      });
    }
    for (int row = 0; row < num_rows; row++) write_row(first_row + row, first_output, row);
  }

 private:
  void transpose_weights(int64_t first_output, int first_item, int num_items) {
    const T* weight = static_cast<const T*>(args_.weight);
    for (int output = 0; output < OUTPUTS; output += LANES) {
      const T* rows = weight + (first_output + output) * args_.in_size;
      int64_t num_rows = args_.out_size - first_output - output;
      for (int first = 0; first < num_items; first += LANES) {
        int count = std::min(LANES, num_items - first);
        transpose_items(
            [&](int i) {
              if (i >= num_rows) return f32v{};
              const T* row = rows + i * args_.in_size;
              prefetch_next(row, first_item + first);
              return Items<T>::load_items(row, first_item + first, count);
            },
            count, weights_ + first * OUTPUTS + output, OUTPUTS);
      }
    }
  }

  // One row of x waits for its weights: those of the next panel come while this one's are used.
  void prefetch_next(const T* row, int item) const {
    int64_t ahead = OUTPUTS * args_.in_size + item * (args_.in_size / num_items_);
    __builtin_prefetch(row + ahead, 0, 2);
  }

  template <int N>
  void add_rows(int64_t first_row, int first_item, int num_items, float* to) const {
    const T* x = static_cast<const T*>(args_.x) + first_row * args_.in_size;
    f32v sums[N][2];
    for (int r = 0; r < N; r++) {
      sums[r][0] = load(to + r * OUTPUTS);
      sums[r][1] = load(to + r * OUTPUTS + LANES);
    }
    for (int i = 0; i < num_items; i++) {
      f32v weights = load(weights_ + i * OUTPUTS), more_weights = load(weights_ + i * OUTPUTS + LANES);
      for (int r = 0; r < N; r++) {
        float item = Items<T>::item(x + r * args_.in_size, first_item + i);
        sums[r][0] = Items<T>::multiply_add(weights, item, sums[r][0]);
        sums[r][1] = Items<T>::multiply_add(more_weights, item, sums[r][1]);
      }
    }
    for (int r = 0; r < N; r++) {
      store(to + r * OUTPUTS, sums[r][0]);
      store(to + r * OUTPUTS + LANES, sums[r][1]);
    }
  }

  void write_row(int64_t row, int64_t first_output, int sums_row) const {
    T* out = static_cast<T*>(args_.out) + row * args_.out_size;
    const T* bias = static_cast<const T*>(args_.bias);
    int64_t end = std::min<int64_t>(first_output + OUTPUTS, args_.out_size);
    for (int64_t i = first_output; i < end; i += LANES) {
      f32v sum = load(sums_ + sums_row * OUTPUTS + (i - first_output));
      if (bias) sum += load(bias + i, end - i);
      store(out + i, sum, end - i);
    }
  }

  const LinearArgs& args_;
  const int num_items_;
  alignas(64) float weights_[MAX_ITEMS * OUTPUTS];  // [item][output]
  alignas(64) float sums_[TASK_ROWS * OUTPUTS];
};

}  // namespace

void linear(const LinearArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    Product<T> product(args);
    int64_t num_panels = (args.out_size + OUTPUTS - 1) / OUTPUTS;
    int64_t num_row_blocks = (args.rows + TASK_ROWS - 1) / TASK_ROWS;
    team.share(num_panels * num_row_blocks, [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; task++) {
        int64_t first_row = task / num_panels * TASK_ROWS;
        int num_rows = std::min<int64_t>(TASK_ROWS, args.rows - first_row);
        product.run(task % num_panels * OUTPUTS, first_row, num_rows);
      }
    });
  });
}
