// Attention of one tile: the query rows of some tokens against the keys of some KV heads.
//
// A row is one query head of one token; all query heads of a KV head are worked at together,
// so that its K and V are loaded once for all of them. Keys come in panels of PANEL, each begun
// at a multiple of PANEL, and a panel is worked off one KV head after the other:
//
//   K of the panel is transposed, so that a vector holds one item of LANES keys, and the
//   scores of a row are multiply-adds without a sum across lanes;
//   scores become weights under a running maximum and sum (Milakov and Gimelshein 2018);
//   the weights multiply V as it lies or, as pairs of bfloat16, two keys at a time.
//
// A panel in which a row sees nothing leaves the row bit for bit as it was. So a row's result
// does not depend on what else is in its tile. Nor on whether its partitions of keys have tasks
// of their own: a tile that goes over several merges them as those tasks' results are merged.
#pragma once
#include <cmath>

#include "attention_keys.h"
#include "items.h"

constexpr int TILE_ROWS = 64;
constexpr int KEY_VECTORS = LANES == 16 ? 4 : 2;  // of accumulators, beside ROWS_AT_ONCE

// Takes the maximum, sum and unscaled values of a partition of keys into `merged`, which holds
// those of all before it as 2 + head_dim floats, at first -INFINITY and zeros. Not inlined: every
// caller runs the same instructions, so that none has multiply-adds where another has not.
inline __attribute__((noinline)) void merge_partition(float maximum, float sum,
                                                      const float* values, int head_dim,
                                                      float* merged) {
  if (sum == 0.0f) return;  // nothing of it is seen
  float larger = std::max(merged[0], maximum);
  float before = power_of_2(splat(merged[0] - larger))[0];
  float factor = power_of_2(splat(maximum - larger))[0];
  merged[0] = larger;
  merged[1] = merged[1] * before + sum * factor;
  for (int d = 0; d < head_dim; d++) merged[2 + d] = merged[2 + d] * before + values[d] * factor;
}

// C is what is multiplied, float or pairs of bf16; what the pool and the model hold is widened
// or narrowed to it.
template <class C>
class TileAttention {
 public:
  explicit TileAttention(const PagedAttentionArgs& args)
      : args_(args),
        head_dim_(args.head_dim),
        padded_dim_((args.head_dim + LANES - 1) / LANES * LANES),
        group_(args.num_heads / args.num_kv_heads),
        scale_(LOG2_E / std::sqrt(static_cast<float>(args.head_dim))),
        keys_(args) {}

  // Attends; meanwhile the first keys of the next tile, if there is one, are sent for.
  void attend(const Tile& tile, const Tile* next) {
    tile_ = tile;
    num_rows_ = tile.num_tokens * group_;
    is_merged_ = false;
    start_rows();
    int64_t first_key = keys_.begin(tile, next);
    for (int64_t key = first_key; key < tile.end_key; key += PANEL, keys_.advance()) {
      if (key > first_key && key % args_.partition_keys == 0) merge_rows();
      keys_.look_ahead(key);
      for (head_ = 0; head_ < tile.num_heads; head_++) {
        keys_.bring(head_);
        score();
        for (int row = 0; row < num_rows_; row++) soften(row, key);
        add_values();
      }
    }
    if (is_merged_) merge_rows();
  }

  // Writes what the rows attended to where the step's result lies.
  void write_out() {
    with_dtype(args_.dtype, [&]<class T>(T*) {
      for (int i = 0; i < tile_.num_heads * num_rows_; i++) {
        int64_t token = tile_.first_row + i % num_rows_ / group_;
        int64_t head = (tile_.first_head + i / num_rows_) * group_ + i % group_;
        T* to = static_cast<T*>(args_.out) + (token * args_.num_heads + head) * head_dim_;
        float inverse = 1.0f / (is_merged_ ? merged(i)[1] : sum_lanes(sums_[i]));
        const float* from = is_merged_ ? merged(i) + 2 : out_ + i * padded_dim_;
        for (int d = 0; d < head_dim_; d += LANES) {
          store(to + d, load(from + d) * inverse, head_dim_ - d);
        }
      }
    });
  }

  // Writes maximum, sum and unscaled values of a query head of the tile's only token, as
  // 2 + head_dim floats, to be merged.
  void write_partial(int head, float* to) const {
    to[0] = maxima_[head];
    to[1] = sum_lanes(sums_[head]);
    std::memcpy(to + 2, out_ + head * padded_dim_, head_dim_ * sizeof(float));
  }

 private:
  static constexpr float LOG2_E = 1.44269504088896341f;
  static constexpr bool HAS_PAIRS = sizeof(C) < sizeof(float);
  static constexpr int ITEM_KEYS = HAS_PAIRS ? 2 : 1;  // whose V one multiply-add takes

  void start_rows() {
    with_dtype(args_.dtype, [&]<class T>(T*) {
      using Query = std::conditional_t<HAS_PAIRS, Items<bf16>, FloatItems<T>>;
      for (int i = 0; i < tile_.num_heads * num_rows_; i++) {
        int64_t token = tile_.first_row + i % num_rows_ / group_;
        int64_t head = (tile_.first_head + i / num_rows_) * group_ + i % group_;
        const T* q = static_cast<const T*>(args_.q) + token * args_.q_stride + head * head_dim_;
        if constexpr (!HAS_PAIRS || std::is_same_v<T, C>) {
          for (int d = 0; d < Query::count(head_dim_); d++) {
            queries_[i * head_dim_ + d] = Query::item(q, d);
          }
        }
      }
    });
    start_partition();
  }

  void start_partition() {
    std::fill_n(maxima_, tile_.num_heads * num_rows_, -INFINITY);
    std::fill_n(sums_, tile_.num_heads * num_rows_, f32v{});
    std::memset(out_, 0, tile_.num_heads * num_rows_ * padded_dim_ * sizeof(float));
  }

  // Merges what the rows saw of a partition, and begins the next.
  void merge_rows() {
    for (int i = 0; i < tile_.num_heads * num_rows_; i++) {
      if (!is_merged_) {
        std::memset(merged(i), 0, (2 + head_dim_) * sizeof(float));
        merged(i)[0] = -INFINITY;
      }
      merge_partition(maxima_[i], sum_lanes(sums_[i]), out_ + i * padded_dim_, head_dim_,
                      merged(i));
    }
    is_merged_ = true;
    start_partition();
  }

  float* merged(int row) { return merged_ + row * (2 + head_dim_); }

  const float* query(int row) const { return queries_ + (head_ * num_rows_ + row) * head_dim_; }

  // Transposed, keys are used at once by few rows, and kept for many.
  void score() {
    int num_items = Items<C>::count(head_dim_);
    for (int key = 0; key < keys_.num_keys; key += LANES) {
      if (num_rows_ <= ROWS_AT_ONCE) {
        call_with_rows<ROWS_AT_ONCE>(num_rows_, 0, [&]<int N>(int) {
          score_few<N>(key, num_items);
        });
        continue;
      }
      for (int first = 0; first < num_items; first += LANES) {
        f32v rows[LANES];
        int count = load_transposed(key, first, num_items, rows);
        for (int i = 0; i < count; i++) store(transposed_ + (first + i) * PANEL + key, rows[i]);
      }
    }
    if (num_rows_ <= ROWS_AT_ONCE) return;
    for_row_groups<ROWS_AT_ONCE>(num_rows_, [&]<int N>(int row) {
      for (int key = 0; key < keys_.num_keys; key += KEY_VECTORS * LANES) {
        score_rows<N>(row, key, num_items);
      }
    });
  }

  int load_transposed(int key, int first, int num_items, f32v (&rows)[LANES]) const {
    int count = std::min(LANES, num_items - first);
    for (int i = 0; i < LANES; i++) {
      keys_.send_for_k(head_, key + i, first * sizeof(float));
      rows[i] = Items<C>::load_items(keys_.k[key + i], first, count);
    }
    transpose(rows);
    return count;
  }

  template <int N>
  void score_few(int key, int num_items) {
    f32v sums[N] = {}, rows[LANES];
    const float* queries = query(0);
    for (int first = 0; first < num_items; first += LANES) {
      int count = load_transposed(key, first, num_items, rows);
#pragma GCC unroll 16  // so that the rows stay in registers
      for (int i = 0; i < LANES; i++) {
        if (i == count) break;
        for (int r = 0; r < N; r++) {
          float item = queries[r * head_dim_ + first + i];
          sums[r] = Items<C>::multiply_add(rows[i], item, sums[r]);
        }
      }
    }
    for (int r = 0; r < N; r++) store(scores_ + r * PANEL + key, sums[r]);
  }

  template <int N>
  void score_rows(int row, int key, int num_items) {
    f32v sums[N][KEY_VECTORS] = {};
    const float* queries = query(row);
    for (int item = 0; item < num_items; item++) {
      f32v keys[KEY_VECTORS];
      const float* from = transposed_ + item * PANEL + key;
      for (int i = 0; i < KEY_VECTORS; i++) keys[i] = load(from + i * LANES);
      for (int r = 0; r < N; r++) {
        float item_of_row = queries[r * head_dim_ + item];
        for (int i = 0; i < KEY_VECTORS; i++) {
          sums[r][i] = Items<C>::multiply_add(keys[i], item_of_row, sums[r][i]);
        }
      }
    }
    for (int r = 0; r < N; r++) {
      float* to = scores_ + (row + r) * PANEL + key;
      for (int i = 0; i < KEY_VECTORS; i++) store(to + i * LANES, sums[r][i]);
    }
  }

  // Turns a row's scores of the panel into weights under the maximum so far.
  void soften(int row, int64_t first_key) {
    int64_t position = tile_.first_position + row / group_;
    int low = std::max<int64_t>(0, first_visible(args_, position) - first_key);
    int high = std::min<int64_t>(keys_.num_keys, position + 1 - first_key);
    float* scores = scores_ + row * PANEL;
    int i = head_ * num_rows_ + row;
    if (low >= high) {
      corrections_[row] = 1.0f;
      std::memset(scores, 0, PANEL * sizeof(float));
      return;
    }
    f32v scaled[PANEL / LANES], largest = splat(-INFINITY);
    for (int part = 0; part < PANEL / LANES; part++) {
      int key = part * LANES;
      f32v s = load(scores + key) * scale_;
      if (keys_.have_scales()) s *= load(keys_.k_scales + key);
      if (key < low || key + LANES > high) {
        i32v lane = lane_numbers() + key;
        s = (lane >= low) & (lane < high) ? s : splat(-INFINITY);
      }
      scaled[part] = s;
      largest = max(largest, s);
    }
    float maximum = std::max(maxima_[i], max_lane(largest));
    corrections_[row] = power_of_2(splat(maxima_[i] - maximum))[0];
    maxima_[i] = maximum;
    f32v sum = sums_[i] * corrections_[row];
    for (int part = 0; part < PANEL / LANES; part++) {
      scaled[part] = power_of_2(scaled[part] - maximum);
      sum += scaled[part];
      if (keys_.have_scales()) scaled[part] *= load(keys_.v_scales + part * LANES);
    }
    sums_[i] = sum;
    C* weights = reinterpret_cast<C*>(scores);
    for (int part = 0; part < PANEL / LANES; part++) store(weights + part * LANES, scaled[part]);
  }

  // Few rows take V as it lies; for more it is made items of once.
  void add_values() {
    int num_items = (keys_.num_keys + ITEM_KEYS - 1) / ITEM_KEYS;
    constexpr int SPAN = ITEM_KEYS * LANES;  // components that make whole vectors of items
    if (num_rows_ <= ROWS_AT_ONCE && head_dim_ % SPAN == 0) {
      call_with_rows<ROWS_AT_ONCE>(num_rows_, 0, [&]<int N>(int) {
        int d = 0;
        for (; d + 4 * LANES <= head_dim_; d += 4 * LANES) add_part<N, 4, true>(num_items, 0, d);
        for (; d < head_dim_; d += SPAN) add_part<N, ITEM_KEYS, true>(num_items, 0, d);
      });
      return;
    }
    for (int item = 0; item < num_items; item++) {
      send_for_values(item, 0, head_dim_);
      for (int d = 0; d < padded_dim_; d += LANES) {
        store(values_ + item * padded_dim_ + d, value_items(item, d));
      }
    }
    for_row_groups<ROWS_AT_ONCE>(num_rows_, [&]<int N>(int row) {
      int d = 0;
      for (; d + 4 * LANES <= padded_dim_; d += 4 * LANES) add_part<N, 4, false>(num_items, row, d);
      for (; d < padded_dim_; d += LANES) add_part<N, 1, false>(num_items, row, d);
    });
  }

  // Sends for as many components of the panel ahead as are loaded of this one; see send_for_k.
  __attribute__((always_inline)) void send_for_values(int item, int d, int count) const {
    for (int key = item * ITEM_KEYS; key < (item + 1) * ITEM_KEYS; key++) {
      for (int i = 0; i < count * int{sizeof(C)}; i += CACHE_LINE_BYTES) {
        keys_.send_for_v(head_, key, d * sizeof(C) + i);
      }
    }
  }

  // The items of V of ITEM_KEYS keys from component d on.
  f32v value_items(int item, int d) const {
    int rest = head_dim_ - d;
    if constexpr (!HAS_PAIRS) {
      return load(keys_.v[item] + d, rest);
    } else {
      u32v even = bit_cast<u32v>(load(keys_.v[2 * item] + d, rest));
      u32v odd = bit_cast<u32v>(load(keys_.v[2 * item + 1] + d, rest));
      return bit_cast<f32v>(even >> 16 | odd);
    }
  }

  template <int NUM_VECTORS>
  void load_values(int item, int d, f32v (&values)[NUM_VECTORS]) const {
    if constexpr (!HAS_PAIRS) {
      for (int i = 0; i < NUM_VECTORS; i++) values[i] = load(keys_.v[item] + d + i * LANES);
    } else {
      const C *even = keys_.v[2 * item] + d, *odd = keys_.v[2 * item + 1] + d;
      for (int i = 0; i < NUM_VECTORS; i += 2) {
        zip_pairs(even + i * LANES, odd + i * LANES, values[i], values[i + 1]);
      }
    }
  }

  template <int N, int NUM_VECTORS, bool IS_DIRECT>
  void add_part(int num_items, int row, int d) {
    f32v sums[N][NUM_VECTORS];
    float* out = out_ + (head_ * num_rows_ + row) * padded_dim_ + d;
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < NUM_VECTORS; i++) {
        sums[r][i] = load(out + r * padded_dim_ + i * LANES) * corrections_[row + r];
      }
    }
    for (int item = 0; item < num_items; item++) {
      f32v values[NUM_VECTORS];
      if constexpr (IS_DIRECT) {
        send_for_values(item, d, NUM_VECTORS * LANES);
        load_values(item, d, values);
      } else {
        const float* from = values_ + item * padded_dim_ + d;
        for (int i = 0; i < NUM_VECTORS; i++) values[i] = load(from + i * LANES);
      }
      for (int r = 0; r < N; r++) {
        float weight = scores_[(row + r) * PANEL + item];
        for (int i = 0; i < NUM_VECTORS; i++) {
          sums[r][i] = Items<C>::multiply_add(values[i], weight, sums[r][i]);
        }
      }
    }
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < NUM_VECTORS; i++) store(out + r * padded_dim_ + i * LANES, sums[r][i]);
    }
  }

  const PagedAttentionArgs& args_;
  const int head_dim_, padded_dim_, group_;
  const float scale_;  // of scores, as powers of 2
  TileKeys<C> keys_;
  Tile tile_;
  int num_rows_ = 0;  // of each KV head; arrays of rows hold one head after the other
  int head_ = 0;      // counted from the tile's first
  alignas(64) float queries_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) float transposed_[MAX_HEAD_DIM * PANEL];  // K, [item][key]
  alignas(64) float values_[PANEL * MAX_HEAD_DIM];  // [item][component]
  alignas(64) float scores_[TILE_ROWS * PANEL];     // then weights as C, [row][key]
  alignas(64) float out_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) f32v sums_[TILE_ROWS];
  float maxima_[TILE_ROWS], corrections_[TILE_ROWS];
  bool is_merged_ = false;  // where a tile goes over several partitions
  float merged_[TILE_ROWS * (2 + MAX_HEAD_DIM) + LANES];  // as merge_partition says, of each row
};
