// What a step does before its first layer and behind its last: rows looked up, added, widened
// and ranked.
#include <algorithm>

#include "ops.h"

namespace {

constexpr int64_t PIECE = 4096;       // elements, not divided further
constexpr int64_t PIECES_AT_ONCE = 8;  // that one thread takes

// Calls f(first, count) for parts of `count` elements, shared among the team.
template <class F>
void each_part(int64_t count, Team& team, F&& f) {
  team.share((count + PIECE - 1) / PIECE, PIECES_AT_ONCE, [&](int64_t first, int64_t last) {
    f(first * PIECE, std::min(count, last * PIECE) - first * PIECE);
  });
}

// Keeps, lane by lane, the largest value and the first place it was seen at.
void row_max_of(const RowMaxArgs& args, int64_t row) {
  const float* x = args.x + row * args.size;
  f32v best = splat(-INFINITY);
  i32v places = {}, here = lane_numbers(), is_nan = {};
  int64_t i = 0;
  for (; i + LANES <= args.size; i += LANES, here += LANES) {
    f32v v = load(x + i);
    i32v is_larger = v > best;
    best = is_larger ? v : best;
    places = is_larger ? here : places;
    is_nan |= v != v;
  }
  float maximum = -INFINITY;
  int64_t place = 0;
  bool has_nan = false;
  for (int lane = 0; lane < LANES; lane++) {
    has_nan |= is_nan[lane] != 0;
    bool is_first = best[lane] == maximum && places[lane] < place;
    if (best[lane] > maximum || is_first) {
      maximum = best[lane];
      place = places[lane];
    }
  }
  for (; i < args.size; i++) {
    has_nan |= x[i] != x[i];
    if (x[i] > maximum) {
      maximum = x[i];
      place = i;
    }
  }
  args.maxima[row] = has_nan ? NAN : maximum;
  args.places[row] = place;
}

}  // namespace

void gather_rows(const GatherRowsArgs& args, Team& team) {
  team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const char* from = static_cast<const char*>(args.table) + args.index[row] * args.row_bytes;
      std::memcpy(static_cast<char*>(args.out) + row * args.row_bytes, from, args.row_bytes);
    }
  });
}

void add(const AddArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    each_part(args.count, team, [&](int64_t first, int64_t count) {
      const T* x = static_cast<const T*>(args.x) + first;
      const T* delta = static_cast<const T*>(args.delta) + first;
      T* out = static_cast<T*>(args.out) + first;
      for (int64_t i = 0; i < count; i += LANES) {
        store(out + i, load(x + i, count - i) + load(delta + i, count - i), count - i);
      }
    });
  });
}

void widen(const WidenArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    each_part(args.count, team, [&](int64_t first, int64_t count) {
      const T* x = static_cast<const T*>(args.x) + first;
      for (int64_t i = 0; i < count; i += LANES) {
        store(args.out + first + i, load(x + i, count - i), count - i);
      }
    });
  });
}

void row_max(const RowMaxArgs& args, Team& team) {
  team.share(args.rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) row_max_of(args, row);
  });
}
