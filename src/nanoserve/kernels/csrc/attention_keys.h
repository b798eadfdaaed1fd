// The keys of a tile, panel by panel: where they lie, sent for ahead of use, made what is
// multiplied.
//
// The pool is larger than any cache, and its blocks lie in no order that a processor could
// foresee: while a panel is worked off, the next is sent for, piece by piece, so that memory
// is never idle and never asked for more than it can deliver.
#pragma once
#include "attention_kv.h"

constexpr int PANEL = 4 * LANES;
constexpr int MAX_HEAD_DIM = 256;
constexpr int CACHE_LINE_BYTES = 64;  // of every x86, and of most others

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

// C is what is multiplied, float or pairs of bf16.
template <class C>
class TileKeys {
 public:
  explicit TileKeys(const PagedAttentionArgs& args)
      : args_(args), layout_(args), wide_dim_((args.head_dim + 63) / 64 * 64) {}

  bool have_scales() const { return layout_.has_scales; }

  // Begins a tile, and returns its first key; that of the next tile is sent for at the end.
  int64_t begin(const Tile& tile, const Tile* next) {
    tile_ = tile;
    next_ = next;
    int64_t key = first_panel(tile);
    find_keys(tile, key, panel_);
    return key;
  }

  // Looks for the panel behind the one at `key`, which is then worked off.
  void look_ahead(int64_t key) {
    ahead_->num_keys = 0;
    if (key + PANEL < tile_.end_key) {
      find_keys(tile_, key + PANEL, ahead_);
    } else if (next_) {
      find_keys(*next_, first_panel(*next_), ahead_);
    }
  }

  // Goes on to the panel that was looked for.
  void advance() { std::swap(panel_, ahead_); }

  // Makes k, v and their scales those of one head of the tile; past the last key, k and v are
  // zeros.
  void bring(int head) {
    const Panel& panel = *panel_;
    num_keys = panel.num_keys;
    static const C zeros[MAX_HEAD_DIM] = {};
    with_kv_dtype(args_.kv_dtype, [&]<class S>(S*) {
      for (int key = 0; key < panel.num_keys; key++) {
        const S* k_head = reinterpret_cast<const S*>(panel.k[key] + head * layout_.head_bytes);
        const S* v_head = reinterpret_cast<const S*>(panel.v[key] + head * layout_.head_bytes);
        if constexpr (std::is_same_v<S, C>) {
          k[key] = k_head;
          v[key] = v_head;
        } else if constexpr (sizeof(C) == sizeof(float) || sizeof(S) == 1) {
          widen_head(k_head, wide_k_ + key * wide_dim_, args_.head_dim);
          widen_head(v_head, wide_v_ + key * wide_dim_, args_.head_dim);
          k[key] = wide_k_ + key * wide_dim_;
          v[key] = wide_v_ + key * wide_dim_;
        }
      }
    });
    for (int key = panel.num_keys; key < PANEL; key++) k[key] = v[key] = zeros;
    if (!layout_.has_scales) return;
    for (int i = 0; i < panel.num_runs; i++) {
      const auto& run = panel.runs[i];
      int64_t offset = head * args_.block_size;
      std::memcpy(k_scales + run.first_key, run.k_scales + offset, run.count * sizeof(float));
      std::memcpy(v_scales + run.first_key, run.v_scales + offset, run.count * sizeof(float));
    }
  }

  // Sends for the cache line of a head of a key of the panel ahead that begins at byte `offset`, as
  // if it were of C. Called where the same of this panel is loaded, so that memory is asked at the
  // rate at which it is used: a processor drops what it is asked for beyond what it can wait for.
  // Measured: Zen 4, 2 threads, SmolLM2, 8 decodes of 1,200 keys: 9.2 ms, against 11.7 with the
  // same lines sent for in a few bursts. Keys that the panel has not are those of an earlier one.
  // Inlined, because GCC takes a function that does no more than this for one without effect,
  // and drops the call.
  __attribute__((always_inline)) void send_for_k(int head, int key, int64_t offset) const {
    send_for(ahead_->k, head, key, offset);
  }

  __attribute__((always_inline)) void send_for_v(int head, int key, int64_t offset) const {
    send_for(ahead_->v, head, key, offset);
  }

  int num_keys = 0;
  const C* k[PANEL];
  const C* v[PANEL];
  alignas(64) float k_scales[PANEL], v_scales[PANEL];

 private:
  // Where K and V of a panel's keys lie, of the tile's first head.
  struct Panel {
    int num_keys, num_runs;
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

  // Finds the panel that begins at a key.
  void find_keys(const Tile& tile, int64_t first_key, Panel* panel) const {
    panel->num_keys = std::min<int64_t>(PANEL, tile.end_key - first_key);
    panel->num_runs = 0;
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

  __attribute__((always_inline)) void send_for(const char* const* tokens, int head, int key,
                                               int64_t offset) const {
    if (offset >= layout_.head_bytes) return;  // stored in fewer bytes than as C
    __builtin_prefetch(tokens[key] + head * layout_.head_bytes + offset, 0, 2);
  }

  const PagedAttentionArgs& args_;
  const KvLayout layout_;
  const int wide_dim_;
  Tile tile_;
  const Tile* next_ = nullptr;
  Panel panels_[2] = {};
  Panel* panel_ = &panels_[0];
  Panel* ahead_ = &panels_[1];
  alignas(64) C wide_k_[PANEL * MAX_HEAD_DIM], wide_v_[PANEL * MAX_HEAD_DIM];
};
