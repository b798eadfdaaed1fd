// Products of activations with a packed weight of 8 or 4 bits, made of 8-bit integers.
//
// A row of x is quantized first, in blocks of activation_group inputs: to signed bytes, a scale,
// and the sum of the bytes, which stands in for what every weight of the block has in common:
// the 128 an int8 weight is stored above its value, or the minimum of an int4 weight's group.
// Within a block everything is an integer and exact; the blocks are added as floats in order,
// whatever the other rows are.
#include "panels.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 6;
#elif defined(__AVX__)
constexpr int ROWS = 2;
#else
constexpr int ROWS = 1;
#endif
constexpr float MAX_VALUE = 127;
constexpr float LEAST = 1e-30f;  // a block with nothing larger is zeros

typedef int8_t i8v __attribute__((vector_size(LANES)));

struct Int8 {
  static constexpr int INPUTS = 4;  // of an item: what 32 bits hold for one output
  static constexpr bool HAS_MINIMUMS = false;
};

struct Int4 {
  static constexpr int INPUTS = 8;
  static constexpr bool HAS_MINIMUMS = true;
};

// What a block of a row of x is besides its bytes.
struct Block {
  float scale;
  float sum;     // of what the bytes stand for: times the minimum, a part of each output
  int32_t less;  // what 128 too much in each weight makes of the bytes, negative
};

// Where the quantized rows lie in the scratch: their bytes, each row padded with zeros, then
// their blocks.
struct QuantizedRows {
  explicit QuantizedRows(const PackedLinearArgs& args)
      : num_blocks(args.in_size / args.activation_group),
        row_bytes(ceil_div(args.in_size, 64) * 64),
        bytes_(static_cast<int8_t*>(args.scratch)),
        blocks_(reinterpret_cast<Block*>(bytes_ + args.rows * row_bytes)) {}

  int8_t* bytes(int64_t row) const { return bytes_ + row * row_bytes; }
  Block* blocks(int64_t row) const { return blocks_ + row * num_blocks; }

  const int64_t num_blocks, row_bytes;

 private:
  int8_t* const bytes_;
  Block* const blocks_;
};

inline i32v round_to_int(f32v v) {
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  return bit_cast<i32v>(v + round) - bit_cast<i32v>(splat(round));
}

inline int32_t sum_ints(i32v v) {
  int32_t sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += v[lane];
  return sum;
}

// Infinities and what is not a number make the scale, and so the whole row, not a number.
template <class T>
Block quantize_block(const T* x, int64_t size, int8_t* bytes) {
  f32v most = {}, zero = {};
  for (int64_t i = 0; i < size; i += LANES) {
    f32v v = load(x + i, size - i);
    most = max(most, max(v, -v));
    zero += v * 0.0f;
  }
  float largest = max_lane(most);
  float factor = largest > LEAST ? MAX_VALUE / largest : 0;
  i32v sum = {};
  for (int64_t i = 0; i < size; i += LANES) {
    i32v values = round_to_int(load(x + i, size - i) * factor);
    sum += values;
    i8v narrow = __builtin_convertvector(values, i8v);
    std::memcpy(bytes + i, &narrow, sizeof narrow);
  }
  float scale = largest / MAX_VALUE + sum_lanes(zero);
  return {scale, scale * sum_ints(sum), -128 * sum_ints(sum)};
}

template <class T>
void quantize_row(const PackedLinearArgs& args, const QuantizedRows& rows, int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.in_size;
  int8_t* bytes = rows.bytes(row);
  std::memset(bytes + rows.row_bytes - 64, 0, 64);
  for (int64_t block = 0; block < rows.num_blocks; block++) {
    int64_t first = block * args.activation_group;
    rows.blocks(row)[block] = quantize_block(x + first, args.activation_group, bytes + first);
  }
}

// Adds up pairs of 16-bit products.
inline i32v multiply_pairs(i32v a, i32v b) {
#if defined(__AVX512BW__)
  return (i32v)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (i32v)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
  return (i32v)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Adds to each lane the products of its four unsigned bytes with four signed ones.
inline i32v multiply_add(i32v weights, int32_t four, i32v sum) {
  i32v x = four - i32v{};
#ifdef __AVX512VNNI__
  return (i32v)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x);
#else
  typedef int16_t i16v __attribute__((vector_size(LANES * 4)));
  i32v even = (i32v)((i16v)(x << 8) >> 8), odd = (i32v)((i16v)x >> 8);
  sum += multiply_pairs(weights & 0xff00ff, even);
  return sum + multiply_pairs((i32v)((u32v)weights >> 8) & 0xff00ff, odd);
#endif
}

inline i32v load_words(const int32_t* from) {
  i32v v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Format, class T>
class Product {
 public:
  explicit Product(const PackedLinearArgs& args)
      : args_(args),
        rows_(args),
        num_items_(ceil_div(args.in_size, Format::INPUTS)),
        block_items_(ceil_div(args.activation_group, Format::INPUTS)),
        num_groups_(args.in_size / args.group_size) {}

  void run(const Task& task) const {
    for_passes<ROWS>(task.num_rows, [&]<int N>(const Pass& pass) {
      for (int64_t panel = task.first_panel; panel < task.end_panel; panel++) {
        add_rows<N>(task, panel, pass);
      }
    });
  }

  int64_t panel_bytes() const { return num_items_ * PANEL_OUTPUTS * sizeof(int32_t); }

 private:
  template <int N>
  void add_rows(const Task& task, int64_t panel, const Pass& pass) const {
    int64_t row = task.first_row + pass.row;
    const int32_t* weights =
        static_cast<const int32_t*>(args_.data) + panel * num_items_ * PANEL_OUTPUTS;
    Prefetch prefetch(weights, PANEL_OUTPUTS * sizeof(int32_t), num_items_, pass);
    f32v sums[N][PANEL_VECTORS] = {};
    const int8_t* x = rows_.bytes(row);
    for (int64_t block = 0; block < rows_.num_blocks; block++) {
      i32v products[N][PANEL_VECTORS];
      for (int r = 0; r < N; r++) {
        i32v start = {};
        if (!Format::HAS_MINIMUMS) start += rows_.blocks(row + r)[block].less;
        for (int v = 0; v < PANEL_VECTORS; v++) products[r][v] = start;
      }
      for (int64_t i = 0; i < block_items_; i++) {
        prefetch.next_item();
        add_item(weights, x, products);
        weights += PANEL_OUTPUTS;
        x += Format::INPUTS;
      }
      add_block(panel, row, block, products, sums);
    }
    for (int r = 0; r < N; r++) write_row(sums[r], task, row + r, panel);
  }

  template <int N>
  void add_item(const int32_t* weights, const int8_t* x, i32v (&products)[N][PANEL_VECTORS]) const {
    i32v words[PANEL_VECTORS];
    for (int v = 0; v < PANEL_VECTORS; v++) words[v] = load_words(weights + v * LANES);
    for (int first = 0; first < Format::INPUTS; first += 4) {
      i32v values[PANEL_VECTORS];
      for (int v = 0; v < PANEL_VECTORS; v++) {
        values[v] = words[v];
        if (Format::INPUTS == 8) values[v] = (first ? words[v] >> 4 : words[v]) & 0x0f0f0f0f;
      }
      for (int r = 0; r < N; r++) {
        int32_t four;
        std::memcpy(&four, x + r * rows_.row_bytes + first, sizeof four);
        for (int v = 0; v < PANEL_VECTORS; v++) {
          products[r][v] = multiply_add(values[v], four, products[r][v]);
        }
      }
    }
  }

  template <int N>
  void add_block(int64_t panel, int64_t row, int64_t block,
                 const i32v (&products)[N][PANEL_VECTORS], f32v (&sums)[N][PANEL_VECTORS]) const {
    int64_t group = block * args_.activation_group / args_.group_size;
    int64_t place = (panel * num_groups_ + group) * PANEL_OUTPUTS;
    int64_t ahead = num_groups_ * PANEL_OUTPUTS;
    __builtin_prefetch(args_.scales + place + ahead, 0, 2);
    if (Format::HAS_MINIMUMS) __builtin_prefetch(args_.minimums + place + ahead, 0, 2);
    f32v scales[PANEL_VECTORS], minimums[PANEL_VECTORS];
    for (int v = 0; v < PANEL_VECTORS; v++) {
      scales[v] = load(args_.scales + place + v * LANES);
      if (Format::HAS_MINIMUMS) minimums[v] = load(args_.minimums + place + v * LANES);
    }
    for (int r = 0; r < N; r++) {
      const Block& x = rows_.blocks(row + r)[block];
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sums[r][v] += __builtin_convertvector(products[r][v], f32v) * (scales[v] * x.scale);
        if (Format::HAS_MINIMUMS) sums[r][v] += minimums[v] * x.sum;
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
  const QuantizedRows rows_;
  const int64_t num_items_, block_items_, num_groups_;
};

template <class Format, class T>
void multiply(const PackedLinearArgs& args, Team& team) {
  QuantizedRows rows(args);
  team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) quantize_row<T>(args, rows, row);
  });
  const Product<Format, T> product(args);
  PanelDivision(args, product.panel_bytes(), ROWS).run<T>(team, [&](const Task& task) {
    product.run(task);
  });
}

}  // namespace

void quantized_linear(const PackedLinearArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    if (args.format == INT8_WEIGHT) {
      multiply<Int8, T>(args, team);
    } else {
      multiply<Int4, T>(args, team);
    }
  });
}
