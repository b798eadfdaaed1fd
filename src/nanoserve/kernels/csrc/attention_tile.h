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
// The pool is larger than any cache, and its blocks lie in no order that a processor could
// foresee: while a panel is worked off, the next is sent for, piece by piece, so that memory
// is never idle and never asked for more than it can deliver.
//
// A panel in which a row sees nothing leaves the row bit for bit as it was. So a row's result
// does not depend on what else is in its tile.
#pragma once
#include <cmath>

#include "attention_kv.h"
#include "items.h"

constexpr int PANEL = 4 * LANES;
constexpr int TILE_ROWS = 64;
constexpr int MAX_HEAD_DIM = 256;
constexpr int CACHE_LINE_BYTES = 64;              // of every x86, and of most others
constexpr int KEY_VECTORS = LANES == 16 ? 4 : 2;  // of accumulators, beside ROWS_AT_ONCE

// Which rows a tile has, and which keys it may look at.
struct Tile {
  int64_t request;
  int first_head, num_heads;  // KV heads; more than one only if there is one token
  int64_t first_row;          // the first token's row in the step
  int64_t first_position;     // and its place in its request
  int num_tokens;
  int64_t first_key, end_key;  // the first is a multiple of PANEL
};

// The first key that the token at `position` sees.
inline int64_t first_visible(const PagedAttentionArgs& args, int64_t position) {
  return args.window ? std::max<int64_t>(0, position + 1 - args.window) : 0;
}

// C is what is multiplied, float or pairs of bf16; what the pool and the model hold is widened
// or narrowed to it.
template <class C>
class TileAttention {
 public:
  explicit TileAttention(const PagedAttentionArgs& args)
      : args_(args),
        layout_(args),
        head_dim_(args.head_dim),
        padded_dim_((args.head_dim + LANES - 1) / LANES * LANES),
        wide_dim_((args.head_dim + 63) / 64 * 64),
        group_(args.num_heads / args.num_kv_heads),
        scale_(LOG2_E / std::sqrt(static_cast<float>(args.head_dim))) {}

  // Attends; meanwhile the first keys of the next tile, if there is one, are sent for.
  void attend(const Tile& tile, const Tile* next) {
    tile_ = tile;
    num_rows_ = tile.num_tokens * group_;
    start_rows();
    Panel *panel = &panels_[0], *ahead = &panels_[1];
    int64_t key = first_panel(tile);
    find_keys(tile, key, panel);
    for (; key < tile.end_key; key += PANEL, std::swap(panel, ahead)) {
      ahead->num_keys = 0;
      if (key + PANEL < tile.end_key) {
        find_keys(tile, key + PANEL, ahead);
      } else if (next) {
        find_keys(*next, first_panel(*next), ahead);
      }
      ahead_ = ahead;
      for (head_ = 0; head_ < tile.num_heads; head_++) {
        bring(*panel);
        score(panel->num_keys);
        for (int row = 0; row < num_rows_; row++) soften(row, key, panel->num_keys);
        add_values(panel->num_keys);
      }
    }
  }

  // Writes what the rows attended to where the step's result lies.
  void write_out() {
    with_dtype(args_.dtype, [&]<class T>(T*) {
      for (int i = 0; i < tile_.num_heads * num_rows_; i++) {
        int64_t token = tile_.first_row + i % num_rows_ / group_;
        int64_t head = (tile_.first_head + i / num_rows_) * group_ + i % group_;
        T* to = static_cast<T*>(args_.out) + (token * args_.num_heads + head) * head_dim_;
        float inverse = 1.0f / sum_lanes(sums_[i]);
        const float* from = out_ + i * padded_dim_;
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

  // Where K and V of a panel's keys lie, of the tile's first head.
  struct Panel {
    int num_keys, num_runs, bytes_per_key;
    const char* k[PANEL];
    const char* v[PANEL];
    struct {
      int first_key, count;
      const float* k_scales;
      const float* v_scales;
    } runs[PANEL];  // keys of the same block
  };

  int64_t first_panel(const Tile& tile) const {
    int64_t first_seen = first_visible(args_, tile.first_position);
    return std::max(first_seen, tile.first_key) / PANEL * PANEL;
  }

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
        maxima_[i] = -INFINITY;
        sums_[i] = f32v{};
      }
    });
    std::memset(out_, 0, tile_.num_heads * num_rows_ * padded_dim_ * sizeof(float));
  }

  // Finds the panel that begins at a key.
  void find_keys(const Tile& tile, int64_t first_key, Panel* panel) const {
    panel->num_keys = std::min<int64_t>(PANEL, tile.end_key - first_key);
    panel->num_runs = 0;
    panel->bytes_per_key = tile.num_heads * layout_.head_bytes;
    const int32_t* block = args_.block_tables + tile.request * args_.table_stride;
    block += first_key / args_.block_size;
    int64_t slot = first_key % args_.block_size;
    for (int key = 0; key < panel->num_keys; slot = 0, block++) {
      int count = std::min<int64_t>(args_.block_size - slot, panel->num_keys - key);
      const char* k = static_cast<const char*>(args_.k_pool) + *block * layout_.block_bytes;
      const char* v = static_cast<const char*>(args_.v_pool) + *block * layout_.block_bytes;
      int64_t scale = layout_.values_bytes;
      scale += (tile.first_head * args_.block_size + slot) * sizeof(float);
      panel->runs[panel->num_runs++] = {key, count, reinterpret_cast<const float*>(k + scale),
                                        reinterpret_cast<const float*>(v + scale)};
      int64_t value = slot * layout_.token_bytes + tile.first_head * layout_.head_bytes;
      for (int i = 0; i < count; i++, key++, value += layout_.token_bytes) {
        panel->k[key] = k + value;
        panel->v[key] = v + value;
      }
    }
  }

  // Sends for K or V of some keys of the panel ahead, of all its heads at once, since they lie
  // side by side: each head of this panel sends for its share of the keys. Inlined, because GCC
  // takes a function that does no more than this for one without effect, and drops the call.
  __attribute__((always_inline)) void send_for(const char* const* tokens, int step, int num_steps) const {
    int total = tile_.num_heads * num_steps;
    step += head_ * num_steps;
    int end = std::min(PANEL * (step + 1) / total, ahead_->num_keys);
    for (int key = PANEL * step / total; key < end; key++) {
      for (int64_t i = 0; i < ahead_->bytes_per_key; i += CACHE_LINE_BYTES) {
        __builtin_prefetch(tokens[key] + i, 0, 2);
      }
    }
  }

  // Makes k_ and v_ point to the panel's keys as C, of one head; past the last they are zeros.
  void bring(const Panel& panel) {
    static const C zeros[MAX_HEAD_DIM] = {};
    with_kv_dtype(args_.kv_dtype, [&]<class S>(S*) {
      for (int key = 0; key < panel.num_keys; key++) {
        const S* k = reinterpret_cast<const S*>(panel.k[key] + head_ * layout_.head_bytes);
        const S* v = reinterpret_cast<const S*>(panel.v[key] + head_ * layout_.head_bytes);
        if constexpr (std::is_same_v<S, C>) {
          k_[key] = k;
          v_[key] = v;
        } else if constexpr (!HAS_PAIRS || sizeof(S) == 1) {
          widen_head(k, wide_k_ + key * wide_dim_, head_dim_);
          widen_head(v, wide_v_ + key * wide_dim_, head_dim_);
          k_[key] = wide_k_ + key * wide_dim_;
          v_[key] = wide_v_ + key * wide_dim_;
        }
      }
    });
    for (int key = panel.num_keys; key < PANEL; key++) k_[key] = v_[key] = zeros;
    if (!layout_.has_scales) return;
    for (int i = 0; i < panel.num_runs; i++) {
      const auto& run = panel.runs[i];
      int64_t offset = head_ * args_.block_size;
      std::memcpy(k_scales_ + run.first_key, run.k_scales + offset, run.count * sizeof(float));
      std::memcpy(v_scales_ + run.first_key, run.v_scales + offset, run.count * sizeof(float));
    }
  }

  const float* query(int row) const { return queries_ + (head_ * num_rows_ + row) * head_dim_; }

  // Transposed, keys are used at once by few rows, and kept for many.
  void score(int num_keys) {
    int num_items = Items<C>::count(head_dim_);
    for (int key = 0; key < num_keys; key += LANES) {
      send_for(ahead_->k, key / LANES, PANEL / LANES);
      if (num_rows_ <= ROWS_AT_ONCE) {
        call_with_rows<ROWS_AT_ONCE>(num_rows_, 0, [&]<int N>(int) {
          score_few<N>(key, num_items);
        });
        continue;
      }
      for (int first = 0; first < num_items; first += LANES) {
        f32v rows[LANES];
        int count = load_transposed(key, first, num_items, rows);
        for (int i = 0; i < count; i++) store(keys_ + (first + i) * PANEL + key, rows[i]);
      }
    }
    if (num_rows_ <= ROWS_AT_ONCE) return;
    for_row_groups<ROWS_AT_ONCE>(num_rows_, [&]<int N>(int row) {
      for (int key = 0; key < num_keys; key += KEY_VECTORS * LANES) {
        score_rows<N>(row, key, num_items);
      }
    });
  }

  int load_transposed(int key, int first, int num_items, f32v (&rows)[LANES]) const {
    int count = std::min(LANES, num_items - first);
    for (int i = 0; i < LANES; i++) rows[i] = Items<C>::load_items(k_[key + i], first, count);
    transpose(rows);
    return count;
  }

  template <int N>
  void score_few(int key, int num_items) {
    f32v sums[N] = {}, rows[LANES];
    const float* queries = query(0);
    for (int first = 0; first < num_items; first += LANES) {
      int count = load_transposed(key, first, num_items, rows);
      if (count == LANES) {
        for (int i = 0; i < LANES; i++) {
          for (int r = 0; r < N; r++) {
            float item = queries[r * head_dim_ + first + i];
            sums[r] = Items<C>::multiply_add(rows[i], item, sums[r]);
          }
        }
        continue;
      }
      for (int i = 0; i < count; i++) {
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
      for (int i = 0; i < KEY_VECTORS; i++) keys[i] = load(keys_ + item * PANEL + key + i * LANES);
      for (int r = 0; r < N; r++) {
        float item_of_row = queries[r * head_dim_ + item];
        for (int i = 0; i < KEY_VECTORS; i++) {
          sums[r][i] = Items<C>::multiply_add(keys[i], item_of_row, sums[r][i]);
        }
      }
    }
    for (int r = 0; r < N; r++) {
      for (int i = 0; i < KEY_VECTORS; i++) {
        store(scores_ + (row + r) * PANEL + key + i * LANES, sums[r][i]);
      }
    }
  }

  // Turns a row's scores of the panel into weights under the maximum so far.
  void soften(int row, int64_t first_key, int num_keys) {
    int64_t position = tile_.first_position + row / group_;
    int low = std::max<int64_t>(0, first_visible(args_, position) - first_key);
    int high = std::min<int64_t>(num_keys, position + 1 - first_key);
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
      if (layout_.has_scales) s *= load(k_scales_ + key);
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
      if (layout_.has_scales) scaled[part] *= load(v_scales_ + part * LANES);
    }
    sums_[i] = sum;
    C* weights = reinterpret_cast<C*>(scores);
    for (int part = 0; part < PANEL / LANES; part++) store(weights + part * LANES, scaled[part]);
  }

  // Few rows take V as it lies; for more it is made items of once.
  void add_values(int num_keys) {
    int num_items = (num_keys + ITEM_KEYS - 1) / ITEM_KEYS;
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
      send_for(ahead_->v, item, PANEL / ITEM_KEYS);
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

  // The items of V of ITEM_KEYS keys from component d on.
  f32v value_items(int item, int d) const {
    int rest = head_dim_ - d;
    if constexpr (!HAS_PAIRS) {
      return load(v_[item] + d, rest);
    } else {
      u32v even = bit_cast<u32v>(load(v_[2 * item] + d, rest));
      u32v odd = bit_cast<u32v>(load(v_[2 * item + 1] + d, rest));
      return bit_cast<f32v>(even >> 16 | odd);
    }
  }

  template <int NUM_VECTORS>
  void load_values(int item, int d, f32v (&values)[NUM_VECTORS]) const {
    if constexpr (!HAS_PAIRS) {
      for (int i = 0; i < NUM_VECTORS; i++) values[i] = load(v_[item] + d + i * LANES);
    } else {
      for (int i = 0; i < NUM_VECTORS; i += 2) {
        zip_pairs(v_[2 * item] + d + i * LANES, v_[2 * item + 1] + d + i * LANES, values[i],
                  values[i + 1]);
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
        if (d == 0) send_for(ahead_->v, item, PANEL / ITEM_KEYS);
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
  const KvLayout layout_;
  const int head_dim_, padded_dim_, wide_dim_, group_;
  const float scale_;  // of scores, as powers of 2
  Tile tile_;
  int num_rows_ = 0;  // of each KV head; arrays of rows hold one head after the other
  int head_ = 0;      // counted from the tile's first
  Panel panels_[2];
  const Panel* ahead_ = nullptr;
  const C* k_[PANEL];
  const C* v_[PANEL];
  alignas(64) float k_scales_[PANEL], v_scales_[PANEL];
  alignas(64) float queries_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) C wide_k_[PANEL * MAX_HEAD_DIM], wide_v_[PANEL * MAX_HEAD_DIM];
  alignas(64) float keys_[MAX_HEAD_DIM * PANEL];    // transposed: [item][key]
  alignas(64) float values_[PANEL * MAX_HEAD_DIM];  // [item][component]
  alignas(64) float scores_[TILE_ROWS * PANEL];     // then weights as C, [row][key]
  alignas(64) float out_[TILE_ROWS * MAX_HEAD_DIM];
  alignas(64) f32v sums_[TILE_ROWS];
  float maxima_[TILE_ROWS], corrections_[TILE_ROWS];
};
