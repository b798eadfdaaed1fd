// What a layer does between its products: norms, activation, rotation. One pass over each row.
#include "ops.h"

namespace {

template <class T>
float inverse_rms(const T* x, int64_t size, double eps) {
  f32v squares = {};
  for (int64_t i = 0; i < size; i += LANES) {
    f32v v = load(x + i, size - i);
    squares += v * v;
  }
  return 1.0f / std::sqrt(sum_lanes(squares) / size + static_cast<float>(eps));
}

// The input's precision returns before the weight is applied, as in transformers.
template <class T>
void scale_row(const T* x, float factor, const T* weight, T* out, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    f32v normed = rounded_to<T>(load(x + i, size - i) * factor);
    store(out + i, normed * load(weight + i, size - i), size - i);
  }
}

template <class T>
void norm_row(const RmsNormArgs& args, int64_t row) {
  int64_t offset = row * args.size;
  const T* x = static_cast<const T*>(args.x) + offset;
  if (args.delta) {
    const T* delta = static_cast<const T*>(args.delta) + offset;
    T* sum = static_cast<T*>(args.sum) + offset;
    for (int64_t i = 0; i < args.size; i += LANES) {
      int64_t rest = args.size - i;
      store(sum + i, load(x + i, rest) + load(delta + i, rest), rest);
    }
    x = sum;
  }
  float factor = inverse_rms(x, args.size, args.eps);
  T* out = static_cast<T*>(args.out) + offset;
  scale_row(x, factor, static_cast<const T*>(args.weight), out, args.size);
}

template <class T>
void silu_mul_row(const SiluMulArgs& args, int64_t row) {
  const T* gate = static_cast<const T*>(args.gate_up) + row * 2 * args.size;
  const T* up = gate + args.size;
  T* out = static_cast<T*>(args.out) + row * args.size;
  for (int64_t i = 0; i < args.size; i += LANES) {
    int64_t rest = args.size - i;
    f32v x = load(gate + i, rest);
    f32v silu = rounded_to<T>(x / (1.0f + exp(-x)));
    store(out + i, silu * load(up + i, rest), rest);
  }
}

// The halves of a head turn against each other.
template <class T>
void rotate_head(T* head, const T* cos, const T* sin, int64_t head_dim) {
  int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    int64_t rest = half - i;
    f32v first = load(head + i, rest), second = load(head + half + i, rest);
    f32v first_cos = rounded_to<T>(first * load(cos + i, rest));
    f32v second_cos = rounded_to<T>(second * load(cos + half + i, rest));
    store(head + i, first_cos + second * load(sin + i, rest), rest);
    store(head + half + i, second_cos + first * load(sin + half + i, rest), rest);
  }
}

template <class T>
void prepare_row(const PrepareHeadsArgs& args, int64_t row) {
  const T* cos = static_cast<const T*>(args.cos) + row * args.table_stride;
  const T* sin = static_cast<const T*>(args.sin) + row * args.table_stride;
  T* head = static_cast<T*>(args.heads) + row * args.row_stride;
  for (int64_t i = 0; i < args.num_q + args.num_k; i++, head += args.head_dim) {
    const void* weight = i < args.num_q ? args.q_weight : args.k_weight;
    if (weight) {
      float factor = inverse_rms(head, args.head_dim, args.eps);
      scale_row(head, factor, static_cast<const T*>(weight), head, args.head_dim);
    }
    rotate_head(head, cos, sin, args.head_dim);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row++) norm_row<T>(args, row);
    });
  });
}

void silu_mul(const SiluMulArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row++) silu_mul_row<T>(args, row);
    });
  });
}

void prepare_heads(const PrepareHeadsArgs& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share(args.rows, SHARE_ROWS, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row++) prepare_row<T>(args, row);
    });
  });
}
