// Rows of a packed weight by their numbers: the embedding of a model whose head is packed.
#include "panels.h"

namespace {

template <class T, class ValueOf>
void write_row(T* out, int64_t size, ValueOf&& value_of) {
  for (int64_t first = 0; first < size; first += LANES) {
    int count = std::min<int64_t>(LANES, size - first);
    f32v values = {};
    for (int lane = 0; lane < count; lane++) values[lane] = value_of(first + lane);
    store(out + first, values, count);
  }
}

// The place of an input's element among a panel's, where an item of an output has so many.
template <int PER_ITEM>
inline int64_t element(int64_t item, int64_t lane, int64_t index) {
  return (item * PANEL_OUTPUTS + lane) * PER_ITEM + index;
}

template <class T>
void dense_row(const EmbeddingArgs& args, int64_t panel, int64_t lane, T* out) {
  constexpr int INPUTS = std::is_same_v<T, bf16> ? 2 : 1;
  int64_t num_items = ceil_div(args.in_size, INPUTS);
  const T* values = static_cast<const T*>(args.data) + panel * num_items * PANEL_OUTPUTS * INPUTS;
  write_row(out, args.in_size, [&](int64_t i) {
    return as_float(values[element<INPUTS>(i / INPUTS, lane, i % INPUTS)]);
  });
}

template <class T>
void quantized_row(const EmbeddingArgs& args, int64_t panel, int64_t lane, T* out) {
  int inputs = args.format == INT8_WEIGHT ? 4 : 8;
  int64_t num_items = ceil_div(args.in_size, inputs);
  const uint8_t* bytes =
      static_cast<const uint8_t*>(args.data) + panel * num_items * PANEL_OUTPUTS * 4;
  int64_t first_scale = panel * (args.in_size / args.group_size) * PANEL_OUTPUTS + lane;
  write_row(out, args.in_size, [&](int64_t i) {
    int byte = bytes[element<4>(i / inputs, lane, i % 4)];
    int64_t place = first_scale + i / args.group_size * PANEL_OUTPUTS;
    float scale = as_float(args.scales[place]);
    if (args.format == INT8_WEIGHT) return scale * (byte - 128);
    int value = i % 8 < 4 ? byte & 15 : byte >> 4;
    return scale * value + as_float(args.minimums[place]);
  });
}

}  // namespace

void embedding(const EmbeddingArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row++) {
        int64_t panel = args.ids[row] / PANEL_OUTPUTS, lane = args.ids[row] % PANEL_OUTPUTS;
        T* out = static_cast<T*>(args.out) + row * args.in_size;
        if (args.format == DENSE_WEIGHT) {
          dense_row(args, panel, lane, out);
        } else {
          quantized_row(args, panel, lane, out);
        }
      }
    });
  });
}
