// Paged attention of a whole step: decodes and prefill chunks, cut into tasks for any thread.
//
//   a request with one token    a task for each partition of its keys, and for each KV head of
//                               it where there are few;
//   a chunk                     a task for each KV head and each tile of its tokens.
//
// Partitions begin at multiples of a fixed length, so that they depend on the request alone.
// Where a context has more than one, each leaves a maximum, a sum and unscaled values in
// `partials`, [num_requests, num_heads, max_partitions, 2 + head_dim], and these are merged: in
// order, as a chunk's tile merges its own, so that a token has the same result by either way.
#include <vector>

#include "attention_tile.h"

namespace {

// Which tasks the requests of a step have.
class Tasks {
 public:
  Tasks(const PagedAttentionArgs& args, int num_threads)
      : args_(args), tile_tokens_(TILE_ROWS / (args.num_heads / args.num_kv_heads)) {
    int64_t num_parts = 0;
    for (int64_t request = 0; request < args.num_requests; request++) {
      num_parts += num_parts_of(request);
    }
    if (num_parts >= 4 * num_threads) heads_together_ = std::min(args.num_kv_heads, tile_tokens_);
    ends_.reserve(args.num_requests);
    for (int64_t request = 0; request < args.num_requests; request++) {
      int64_t first = ends_.empty() ? 0 : ends_.back();
      ends_.push_back(first + num_parts_of(request) * num_head_groups(request));
    }
  }

  int64_t count() const { return ends_.back(); }

  int64_t context_len(int64_t request) const { return args_.context_lens[request]; }

  int64_t first_row(int64_t request) const {
    return args_.query_starts ? args_.query_starts[request] : request;
  }

  bool is_decode(int64_t request) const { return first_row(request + 1) - first_row(request) == 1; }

  int64_t first_partition(int64_t request) const {
    return first_visible(args_, context_len(request) - 1) / args_.partition_keys;
  }

  int64_t end_partition(int64_t request) const {
    return (context_len(request) + args_.partition_keys - 1) / args_.partition_keys;
  }

  bool is_split(int64_t request) const {
    return is_decode(request) && end_partition(request) - first_partition(request) > 1;
  }

  // The last task first: late tiles of a chunk see the most keys, and long work begins early.
  Tile at(int64_t index) const {
    int64_t task = count() - 1 - index;
    int64_t request = std::upper_bound(ends_.begin(), ends_.end(), task) - ends_.begin();
    if (request > 0) task -= ends_[request - 1];
    int64_t part = task / num_head_groups(request);
    Tile tile{};
    tile.request = request;
    int64_t together = is_decode(request) ? heads_together_ : 1;
    tile.first_head = task % num_head_groups(request) * together;
    tile.num_heads = std::min(together, args_.num_kv_heads - tile.first_head);
    tile.first_row = first_row(request);
    int64_t num_tokens = first_row(request + 1) - tile.first_row;
    tile.first_position = context_len(request) - num_tokens;
    tile.num_tokens = 1;
    if (num_tokens == 1) {
      tile.first_key = (first_partition(request) + part) * args_.partition_keys;
      tile.end_key = std::min(context_len(request), tile.first_key + args_.partition_keys);
      return tile;
    }
    int64_t first_token = part * tile_tokens_;
    tile.first_row += first_token;
    tile.first_position += first_token;
    tile.num_tokens = std::min<int64_t>(tile_tokens_, num_tokens - first_token);
    tile.end_key = tile.first_position + tile.num_tokens;
    return tile;
  }

 private:
  int64_t num_parts_of(int64_t request) const {
    if (is_decode(request)) return end_partition(request) - first_partition(request);
    int64_t num_tokens = first_row(request + 1) - first_row(request);
    return (num_tokens + tile_tokens_ - 1) / tile_tokens_;
  }

  int64_t num_head_groups(int64_t request) const {
    int64_t together = is_decode(request) ? heads_together_ : 1;
    return (args_.num_kv_heads + together - 1) / together;
  }

  const PagedAttentionArgs& args_;
  const int64_t tile_tokens_;
  int64_t heads_together_ = 1;  // of a decode, where that leaves each thread some tasks
  std::vector<int64_t> ends_;   // tasks up to each request's last
};

float* partial_at(const PagedAttentionArgs& args, int64_t request, int64_t head, int64_t index) {
  int64_t place = (request * args.num_heads + head) * args.max_partitions + index;
  return args.partials + place * (2 + args.head_dim);
}

template <class S, class T>
void store_new_keys(const PagedAttentionArgs& args, int64_t first, int64_t last) {
  const KvLayout layout(args);
  for (int64_t token = first; token < last; token++) {
    int64_t block = args.slot_mapping[token] / args.block_size * layout.block_bytes;
    int64_t slot = args.slot_mapping[token] % args.block_size;
    char* k_block = static_cast<char*>(args.k_pool) + block;
    char* v_block = static_cast<char*>(args.v_pool) + block;
    for (int64_t head = 0; head < args.num_kv_heads; head++) {
      int64_t place = slot * layout.token_bytes + head * layout.head_bytes;
      int64_t scale = layout.values_bytes + (head * args.block_size + slot) * sizeof(float);
      auto store_side = [&](const T* from, char* to) {
        store_head(from, reinterpret_cast<S*>(to + place), reinterpret_cast<float*>(to + scale),
                   args.head_dim);
      };
      int64_t offset = head * args.head_dim;
      store_side(static_cast<const T*>(args.k) + token * args.k_stride + offset, k_block);
      store_side(static_cast<const T*>(args.v) + token * args.v_stride + offset, v_block);
    }
  }
}

template <class T>
void merge(const PagedAttentionArgs& args, const Tasks& tasks, int64_t request, int64_t head) {
  int64_t num_partials = tasks.end_partition(request) - tasks.first_partition(request);
  float merged[2 + MAX_HEAD_DIM + LANES] = {-INFINITY};
  for (int64_t i = 0; i < num_partials; i++) {
    const float* partial = partial_at(args, request, head, i);
    merge_partition(partial[0], partial[1], partial + 2, args.head_dim, merged);
  }
  int64_t place = (tasks.first_row(request) * args.num_heads + head) * args.head_dim;
  for (int64_t d = 0; d < args.head_dim; d += LANES) {
    f32v values = load(merged + 2 + d) * (1.0f / merged[1]);
    store(static_cast<T*>(args.out) + place + d, values, args.head_dim - d);
  }
}

template <class C>
void attend_step(const PagedAttentionArgs& args, Team& team) {
  Tasks tasks(args, team.size());
  TileAttention<C> attention(args);
  auto attend = [&](const Portion& portion, const Portion& next) {
    Tile ahead;
    if (next.end) ahead = tasks.at(next.first);
    attention.attend(tasks.at(portion.first), next.end ? &ahead : nullptr);
  };
  auto write = [&](const Portion& portion) {
    Tile tile = tasks.at(portion.first);
    if (!tasks.is_split(tile.request)) return attention.write_out();
    int64_t group = args.num_heads / args.num_kv_heads;
    int64_t part = tile.first_key / args.partition_keys - tasks.first_partition(tile.request);
    for (int64_t head = 0; head < tile.num_heads * group; head++) {
      int64_t place = tile.first_head * group + head;
      attention.write_partial(head, partial_at(args, tile.request, place, part));
    }
  };
  team.divide(Division::dealt(tasks.count(), team.size()), attend, write);
  if (args.max_partitions <= 1) return;
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share(args.num_requests * args.num_heads, SHARE_ROWS, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        int64_t request = i / args.num_heads;
        if (tasks.is_split(request)) merge<T>(args, tasks, request, i % args.num_heads);
      }
    });
  });
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    with_kv_dtype(args.kv_dtype, [&]<class S>(S*) {
      if constexpr (std::is_same_v<S, T> || sizeof(S) == 1) {
        team.share(args.num_tokens, SHARE_ROWS, [&](int64_t first, int64_t last) {
          store_new_keys<S, T>(args, first, last);
        });
      }
    });
  });
#ifdef __AVX512BF16__
  if (args.dtype == BFLOAT16) return attend_step<bf16>(args, team);
#endif
  attend_step<float>(args, team);
}
