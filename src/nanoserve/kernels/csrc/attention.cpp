// Paged attention of a whole step: decodes and prefill chunks, cut into tasks for any thread.
//
//   a request with one token    a task for each KV head and each partition of its keys;
//   a chunk                     a task for each KV head and each tile of its tokens.
//
// Partitions begin at multiples of a fixed length, so that they depend on the request alone.
// Where a context has more than one, each leaves a maximum, a sum and unscaled values in
// `partials`, [num_requests, num_heads, max_partitions, 2 + head_dim], and these are merged.
#include <vector>

#include "attention_tile.h"

namespace {

// Which tasks the requests of a step have.
class Tasks {
 public:
  explicit Tasks(const PagedAttentionArgs& args)
      : args_(args), tile_tokens_(TILE_ROWS / (args.num_heads / args.num_kv_heads)) {
    ends_.reserve(args.num_requests);
    for (int64_t request = 0; request < args.num_requests; request++) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + num_parts(request));
    }
  }

  int64_t count() const { return ends_.back() * args_.num_kv_heads; }

  // Tasks in a row for one thread: the KV heads of the same keys, if there are enough of them,
  // since they lie side by side and come from memory together.
  int64_t grain(int num_threads) const {
    return ends_.back() >= 4 * num_threads ? args_.num_kv_heads : 1;
  }

  int64_t context_len(int64_t request) const { return args_.context_lens[request]; }

  int64_t first_row(int64_t request) const {
    return args_.query_starts ? args_.query_starts[request] : request;
  }

  bool is_decode(int64_t request) const { return first_row(request + 1) - first_row(request) == 1; }

  int64_t first_partition(int64_t request) const {
    int64_t position = context_len(request) - 1;
    return TileAttention<float>::first_visible(args_, position) / args_.partition_keys;
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
    int64_t part = task / args_.num_kv_heads;
    int64_t request = std::upper_bound(ends_.begin(), ends_.end(), part) - ends_.begin();
    if (request > 0) part -= ends_[request - 1];
    Tile tile{};
    tile.request = request;
    tile.kv_head = task % args_.num_kv_heads;
    tile.sends_ahead = index % args_.num_kv_heads == 0;
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
  int64_t num_parts(int64_t request) const {
    if (is_decode(request)) return end_partition(request) - first_partition(request);
    int64_t num_tokens = first_row(request + 1) - first_row(request);
    return (num_tokens + tile_tokens_ - 1) / tile_tokens_;
  }

  const PagedAttentionArgs& args_;
  const int tile_tokens_;
  std::vector<int64_t> ends_;  // tasks of a KV head up to each request's last
};

float* partial_at(const PagedAttentionArgs& args, int64_t request, int64_t head, int64_t index) {
  int64_t place = (request * args.num_heads + head) * args.max_partitions + index;
  return args.partials + place * (2 + args.head_dim);
}

template <class T>
void store_new_keys(const PagedAttentionArgs& args, int64_t first, int64_t last) {
  int64_t size = args.num_kv_heads * args.head_dim;
  for (int64_t token = first; token < last; token++) {
    int64_t place = args.slot_mapping[token] * size;
    const T* k = static_cast<const T*>(args.k) + token * args.k_stride;
    const T* v = static_cast<const T*>(args.v) + token * args.v_stride;
    std::memcpy(static_cast<T*>(args.k_pool) + place, k, size * sizeof(T));
    std::memcpy(static_cast<T*>(args.v_pool) + place, v, size * sizeof(T));
  }
}

template <class T>
void merge(const PagedAttentionArgs& args, const Tasks& tasks, int64_t request, int64_t head) {
  int64_t num_partials = tasks.end_partition(request) - tasks.first_partition(request);
  float maximum = -INFINITY;
  for (int64_t i = 0; i < num_partials; i++) {
    maximum = std::max(maximum, partial_at(args, request, head, i)[0]);
  }
  float sum = 0, out[MAX_HEAD_DIM + LANES] = {};
  for (int64_t i = 0; i < num_partials; i++) {
    const float* partial = partial_at(args, request, head, i);
    float factor = exp(splat(partial[0] - maximum))[0];
    sum += partial[1] * factor;
    for (int64_t d = 0; d < args.head_dim; d++) out[d] += partial[2 + d] * factor;
  }
  int64_t place = (tasks.first_row(request) * args.num_heads + head) * args.head_dim;
  for (int64_t d = 0; d < args.head_dim; d += LANES) {
    store(static_cast<T*>(args.out) + place + d, load(out + d) * (1.0f / sum), args.head_dim - d);
  }
}

template <class T>
void attend_step(const PagedAttentionArgs& args, Team& team) {
  team.share(args.num_tokens, [&](int64_t first, int64_t last) {
    store_new_keys<T>(args, first, last);
  });
  Tasks tasks(args);
  TileAttention<T> attention(args);
  team.each(tasks.count(), tasks.grain(team.size()), [&](int64_t index) {
    Tile tile = tasks.at(index);
    attention.attend(tile);
    if (!tasks.is_split(tile.request)) return attention.write_out();
    int64_t group = args.num_heads / args.num_kv_heads;
    int64_t part = tile.first_key / args.partition_keys - tasks.first_partition(tile.request);
    for (int64_t row = 0; row < group; row++) {
      int64_t head = tile.kv_head * group + row;
      attention.write_partial(row, partial_at(args, tile.request, head, part));
    }
  });
  if (args.max_partitions <= 1) return;
  team.share(args.num_requests * args.num_heads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      int64_t request = i / args.num_heads;
      if (tasks.is_split(request)) merge<T>(args, tasks, request, i % args.num_heads);
    }
  });
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) { attend_step<T>(args, team); });
}
