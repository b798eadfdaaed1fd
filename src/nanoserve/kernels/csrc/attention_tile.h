// Attention of one tile: the query rows of some tokens against the keys of one KV head.
//
// A row is one query head of one token; all query heads of the KV head are rows of the tile,
// so that K and V are loaded once for all of them. Keys come in panels of PANEL, each begun at
// a multiple of PANEL:
//
//   K of the panel is transposed, so that a vector holds one component of LANES keys, and the
//   scores of a row are multiply-adds without a sum across lanes;
//   scores become weights under a running maximum and sum (Milakov and Gimelshein 2018);
//   the weights multiply V as it lies.
//
// A panel in which a row sees nothing leaves the row bit for bit as it was. So a row's result
// does not depend on what else is in its tile.
#pragma once
#include <algorithm>
#include <cmath>

#include "items.h"
#include "ops.h"

constexpr int PANEL = 4 * LANES;
constexpr int TILE_ROWS = 64;
constexpr int MAX_HEAD_DIM = 256;
constexpr int CACHE_LINE_BYTES = 64;  // of every x86, and of most others

// Which rows a tile has, and which keys it may look at.
struct Tile {
  int64_t request, kv_head;
  int64_t first_row;       // the first token's row in the step
  int64_t first_position;  // and its place in its request
  int num_tokens;
  int64_t first_key, end_key;  // the first is a multiple of PANEL
  bool sends_ahead;            // the first of the tiles that see these keys
};

template <class T>
class TileAttention {
 public:
  explicit TileAttention(const PagedAttentionArgs& args)
      : args_(args),
        head_dim_(args.head_dim),
        padded_dim_((args.head_dim + LANES - 1) / LANES * LANES),
        group_(args.num_heads / args.num_kv_heads),
        scale_(1.0f / std::sqrt(static_cast<float>(args.head_dim))) {}

  // The first key that the token at `position` sees.
  static int64_t first_visible(const PagedAttentionArgs& args, int64_t position) {
    return args.window ? std::max<int64_t>(0, position + 1 - args.window) : 0;
  }

  void attend(const Tile& tile) {
    tile_ = tile;
    num_rows_ = tile.num_tokens * group_;
    start_rows();
    int64_t first_seen = std::max(first_visible(args_, tile.first_position), tile.first_key);
    int64_t key = first_seen / PANEL * PANEL;
    Panel panel = find_keys(key), next;
    for (; key < tile.end_key; key += PANEL, panel = next) {
      if (key + PANEL < tile.end_key) next = find_keys(key + PANEL);
      score(panel);
      for (int row = 0; row < num_rows_; row++) soften(row, key, panel.num_keys);
      add_values(panel);
    }
  }

  // Writes what the rows attended to where the step's result lies.
  void write_out() {
    for (int row = 0; row < num_rows_; row++) {
      int64_t token = tile_.first_row + row / group_;
      int64_t head = tile_.kv_head * group_ + row % group_;
      T* to = static_cast<T*>(args_.out) + (token * args_.num_heads + head) * head_dim_;
      float inverse = 1.0f / sum_lanes(sums_[row]);
      const float* from = out_ + row * padded_dim_;
      for (int i = 0; i < head_dim_; i += LANES) {
        store(to + i, load(from + i) * inverse, head_dim_ - i);
      }
    }
  }

  // Writes maximum, sum and unscaled values of a row, 2 + head_dim floats, to be merged.
  void write_partial(int row, float* to) const {
    to[0] = maxima_[row];
    to[1] = sum_lanes(sums_[row]);
    std::memcpy(to + 2, out_ + row * padded_dim_, head_dim_ * sizeof(float));
  }

 private:
  void start_rows() {
    for (int row = 0; row < num_rows_; row++) {
      int64_t token = tile_.first_row + row / group_;
      int64_t head = tile_.kv_head * group_ + row % group_;
      const T* q = static_cast<const T*>(args_.q) + token * args_.q_stride + head * head_dim_;
      for (int i = 0; i < Items<T>::count(head_dim_); i++) {
        queries_[row * head_dim_ + i] = Items<T>::item(q, i);
      }
      maxima_[row] = -INFINITY;
      sums_[row] = f32v{};
    }
    std::memset(out_, 0, num_rows_ * padded_dim_ * sizeof(float));
  }

  // Where K and V of a panel's keys lie; past the last, K is zeros, and the score not used.
  struct Panel {
    int num_keys;
    const T* k[PANEL];
    const T* v[PANEL];
  };

  // Sends for a key of all KV heads, which lie side by side: the pool is larger than any cache,
  // and its blocks lie in no order that a processor could foresee.
  void send_for(const Panel& panel, int key) const {
    const T* k = panel.k[key] - tile_.kv_head * head_dim_;
    const T* v = panel.v[key] - tile_.kv_head * head_dim_;
    int64_t size = args_.num_kv_heads * head_dim_;
    for (int64_t i = 0; i < size; i += CACHE_LINE_BYTES / sizeof(T)) {
      __builtin_prefetch(k + i, 0, 2);
      __builtin_prefetch(v + i, 0, 2);
    }
  }

  // Finds the panel that begins at a key.
  Panel find_keys(int64_t first_key) const {
    static const T zeros[MAX_HEAD_DIM] = {};
    Panel panel;
    panel.num_keys = std::min<int64_t>(PANEL, tile_.end_key - first_key);
    const int32_t* block = args_.block_tables + tile_.request * args_.table_stride;
    block += first_key / args_.block_size;
    int64_t slot = first_key % args_.block_size, stride = args_.num_kv_heads * head_dim_;
    for (int key = 0; key < panel.num_keys; key++) {
      int64_t offset = (*block * args_.block_size + slot) * stride + tile_.kv_head * head_dim_;
      panel.k[key] = static_cast<const T*>(args_.k_pool) + offset;
      panel.v[key] = static_cast<const T*>(args_.v_pool) + offset;
      if (tile_.sends_ahead) send_for(panel, key);
      if (++slot == args_.block_size) {
        slot = 0;
        block++;
      }
    }
    for (int key = panel.num_keys; key < PANEL; key++) panel.k[key] = zeros;
    return panel;
  }

  void score(const Panel& panel) {
    int num_items = Items<T>::count(head_dim_);
    for (int key = 0; key < panel.num_keys; key += LANES) {
      for (int first = 0; first < num_items; first += LANES) {
        int count = std::min(LANES, num_items - first);
        transpose_items(
            [&](int i) { return Items<T>::load_items(panel.k[key + i], first, count); }, count,
            keys_ + first * PANEL + key, PANEL);
      }
    }
    for_row_groups<ROWS_AT_ONCE>(num_rows_, [&]<int N>(int row) {
      for (int key = 0; key < panel.num_keys; key += 2 * LANES) score_rows<N>(row, key, num_items);
    });
  }

  template <int N>
  void score_rows(int row, int key, int num_items) {
    f32v sums[N][2] = {};
    const float* queries = queries_ + row * head_dim_;
    for (int item = 0; item < num_items; item++) {
      f32v keys = load(keys_ + item * PANEL + key);
      f32v more_keys = load(keys_ + item * PANEL + key + LANES);
      for (int r = 0; r < N; r++) {
        float query = queries[r * head_dim_ + item];
        sums[r][0] = Items<T>::multiply_add(keys, query, sums[r][0]);
        sums[r][1] = Items<T>::multiply_add(more_keys, query, sums[r][1]);
      }
    }
    for (int r = 0; r < N; r++) {
      store(scores_ + (row + r) * PANEL + key, sums[r][0]);
      store(scores_ + (row + r) * PANEL + key + LANES, sums[r][1]);
    }
  }

  // Turns a row's scores of the panel into weights under the maximum so far.
  void soften(int row, int64_t first_key, int num_keys) {
    int64_t position = tile_.first_position + row / group_;
    int low = std::max<int64_t>(0, first_visible(args_, position) - first_key);
    int high = std::min<int64_t>(num_keys, position + 1 - first_key);
    float* scores = scores_ + row * PANEL;
    if (low >= high) {
      corrections_[row] = 1.0f;
      std::memset(scores, 0, PANEL * sizeof(float));
      return;
    }
    f32v largest = splat(-INFINITY);
    for (int key = 0; key < num_keys; key += LANES) {
      f32v s = load(scores + key) * scale_;
      if (key < low || key + LANES > high) {
        i32v lane = lane_numbers() + key;
        s = (lane >= low) & (lane < high) ? s : splat(-INFINITY);
      }
      store(scores + key, s);
      largest = max(largest, s);
    }
    float maximum = std::max(maxima_[row], max_lane(largest));
    corrections_[row] = exp(splat(maxima_[row] - maximum))[0];
    maxima_[row] = maximum;
    sums_[row] *= corrections_[row];
    for (int key = 0; key < num_keys; key += LANES) {
      f32v weight = exp(load(scores + key) - maximum);
      store(scores + key, weight);
      sums_[row] += weight;
    }
  }

  // Few rows read V from the pool; more of them have it converted once.
  void add_values(const Panel& panel) {
    if (num_rows_ <= ROWS_AT_ONCE && head_dim_ == padded_dim_) {
      return add_rows_of(panel.v, panel.num_keys);
    }
    const float* values[PANEL];
    for (int key = 0; key < panel.num_keys; key++) {
      float* to = values_ + key * padded_dim_;
      values[key] = to;
      for (int i = 0; i < head_dim_; i += LANES) {
        store(to + i, load(panel.v[key] + i, head_dim_ - i));
      }
    }
    add_rows_of(values, panel.num_keys);
  }

  template <class V>
  void add_rows_of(const V* const* values, int num_keys) {
    for_row_groups<ROWS_AT_ONCE>(num_rows_, [&]<int N>(int row) {
      int i = 0;
      for (; i + 4 * LANES <= padded_dim_; i += 4 * LANES) add_part<N, 4>(values, num_keys, row, i);
      for (; i < padded_dim_; i += LANES) add_part<N, 1>(values, num_keys, row, i);
    });
  }

  template <int N, int NUM_VECTORS, class V>
  void add_part(const V* const* values, int num_keys, int row, int first) {
    f32v sums[N][NUM_VECTORS];
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < NUM_VECTORS; i++) {
        f32v so_far = load(out_ + (row + r) * padded_dim_ + first + i * LANES);
        sums[r][i] = so_far * corrections_[row + r];
      }
    }
    for (int key = 0; key < num_keys; key++) {
      f32v value[NUM_VECTORS];
      for (int i = 0; i < NUM_VECTORS; i++) value[i] = load(values[key] + first + i * LANES);
      for (int r = 0; r < N; r++) {
        float weight = scores_[(row + r) * PANEL + key];
        for (int i = 0; i < NUM_VECTORS; i++) sums[r][i] += value[i] * weight;
      }
    }
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < NUM_VECTORS; i++) {
        store(out_ + (row + r) * padded_dim_ + first + i * LANES, sums[r][i]);
      }
    }
  }

  const PagedAttentionArgs& args_;
  const int head_dim_, padded_dim_, group_;
  const float scale_;
  Tile tile_;
  int num_rows_ = 0;
  alignas(64) float queries_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) float keys_[MAX_HEAD_DIM * PANEL];    // transposed: [item][key]
  alignas(64) float values_[PANEL * MAX_HEAD_DIM];  // [key][component]
  alignas(64) float scores_[TILE_ROWS * PANEL];     // then weights, [row][key]
  alignas(64) float out_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) f32v sums_[TILE_ROWS];
  float maxima_[TILE_ROWS], corrections_[TILE_ROWS];
};
