// Products of activations with a packed weight of their own dtype.
//
// A tile is some rows by one panel, its sums in registers; its weights come from the second
// level cache, where the first rows' pass, or the prefetch, has brought them. A sum runs over
// the inputs in order, whatever the other rows are.
#include "panels.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 12;
#elif defined(__AVX__)
constexpr int ROWS = 3;
#else
constexpr int ROWS = 1;
#endif
constexpr int MAX_ITEMS = 1024;  // of the inputs that are multiplied before the next rows' turn
// Panels of a task whose sums wait for more items, of two bytes or more.
constexpr int MAX_PANELS = TASK_BYTES / (MAX_ITEMS * PANEL_OUTPUTS * 2);

// An item is what one lane of a panel's vectors takes from a row: here one input.
template <class T>
struct Items {
  using Item = T;
  static constexpr int INPUTS = 1;
  static float item(const T* x, int64_t index) { return as_float(x[index]); }
  static float last_item(const T*, int64_t) { return 0; }
  static f32v multiply_add(f32v weights, float item, f32v sum) { return sum + weights * item; }
};

// A pair of inputs, in the 32 bits of a float.
template <>
struct Items<bf16> {
  using Item = float;
  static constexpr int INPUTS = 2;
  static float item(const bf16* x, int64_t index) {
    float pair;
    std::memcpy(&pair, x + 2 * index, sizeof pair);
    return pair;
  }
  static float last_item(const bf16* x, int64_t index) {
    return bit_cast<float>(static_cast<uint32_t>(x[2 * index].bits));
  }
  static f32v multiply_add(f32v weights, float item, f32v sum) {
#ifdef __AVX512BF16__
    return (f32v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)splat(item));
#else
    u32v pairs = bit_cast<u32v>(weights);
    uint32_t pair = bit_cast<uint32_t>(item);
    sum += bit_cast<f32v>(pairs << 16) * bit_cast<float>(pair << 16);
    return sum + bit_cast<f32v>(pairs & 0xffff0000) * bit_cast<float>(pair & 0xffff0000);
#endif
  }
};

template <class T>
class Product {
 public:
  explicit Product(const PackedLinearArgs& args)
      : args_(args), num_items_(ceil_div(args.in_size, Items<T>::INPUTS)) {}

  void run(const Task& task) {
    for (int64_t first = 0; first < num_items_; first += MAX_ITEMS) {
      int64_t end = std::min(num_items_, first + MAX_ITEMS);
      for_passes<ROWS>(task.num_rows, [&]<int N>(const Pass& pass) {
        for (int64_t panel = task.first_panel; panel < task.end_panel; panel++) {
          add_rows<N>(task, panel, pass, first, end);
        }
      });
    }
  }

  int64_t panel_bytes() const {
    int64_t num_items = std::min<int64_t>(num_items_, MAX_ITEMS);
    return num_items * PANEL_OUTPUTS * sizeof(Item);
  }

 private:
  using Item = Items<T>::Item;

  template <int N>
  void add_rows(const Task& task, int64_t panel, const Pass& pass, int64_t first, int64_t end) {
    int64_t row = task.first_row + pass.row;
    const T* x = static_cast<const T*>(args_.x) + row * args_.in_size;
    const Item* weights = static_cast<const Item*>(args_.data) +
                          (panel * num_items_ + first) * PANEL_OUTPUTS;
    float* kept = sums_ + ((panel - task.first_panel) * TASK_ROWS + pass.row) * PANEL_OUTPUTS;
    Prefetch prefetch(weights, PANEL_OUTPUTS * sizeof(Item), end - first, pass);
    f32v sums[N][PANEL_VECTORS];
    for (int r = 0; r < N; r++) {
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sums[r][v] = first ? load(kept + r * PANEL_OUTPUTS + v * LANES) : f32v{};
      }
    }
    auto add_item = [&](auto&& item_of) {
      f32v panel_weights[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; v++) panel_weights[v] = load(weights + v * LANES);
      for (int r = 0; r < N; r++) {
        float item = item_of(x + r * args_.in_size);
        for (int v = 0; v < PANEL_VECTORS; v++) {
          sums[r][v] = Items<T>::multiply_add(panel_weights[v], item, sums[r][v]);
        }
      }
      weights += PANEL_OUTPUTS;
    };
    bool is_last = end == num_items_;
    int64_t whole_items = is_last ? args_.in_size / Items<T>::INPUTS : end;
    for (int64_t i = first; i < whole_items; i++) {
      prefetch.next_item();
      add_item([&](const T* row) { return Items<T>::item(row, i); });
    }
    if (whole_items < end) {
      add_item([&](const T* row) { return Items<T>::last_item(row, whole_items); });
    }
    for (int r = 0; r < N; r++) {
      if (is_last) {
        write_row(sums[r], task, row + r, panel);
      } else {
        for (int v = 0; v < PANEL_VECTORS; v++) {
          store(kept + r * PANEL_OUTPUTS + v * LANES, sums[r][v]);
        }
      }
    }
  }

  void write_row(const f32v (&sums)[PANEL_VECTORS], const Task& task, int64_t row,
                 int64_t panel) const {
    int64_t first = panel * PANEL_OUTPUTS;
    const T* bias = static_cast<const T*>(args_.bias);
    T* out = static_cast<T*>(task.out) + (row - task.first_row) * task.out_stride;
    out += (panel - task.first_panel) * PANEL_OUTPUTS;
    write_outputs(sums, bias ? bias + first : nullptr, out, args_.out_size - first);
  }

  const PackedLinearArgs& args_;
  const int64_t num_items_;
  alignas(64) float sums_[MAX_PANELS * TASK_ROWS * PANEL_OUTPUTS];
};

}  // namespace

void dense_linear(const PackedLinearArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    Product<T> product(args);
    PanelDivision(args, product.panel_bytes(), ROWS).run<T>(team, [&](const Task& task) {
      product.run(task);
    });
  });
}

void packed_linear(const PackedLinearArgs& args, Team& team) {
  if (args.format == DENSE_WEIGHT) {
    dense_linear(args, team);
  } else {
    quantized_linear(args, team);
  }
}
