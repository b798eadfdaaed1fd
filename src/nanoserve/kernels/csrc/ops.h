// The operators: one struct of arguments each, mirrored by `kernels/op_args.py`.
//
// Strides count elements. Pointers are to floats of `dtype` where no type is
// given. Sums are made in float32, and every result is rounded where torch would round it.
// What a row of the result is depends on no other row and on no number of threads.
#pragma once
#include <cstdint>

#include "team.h"
#include "vec.h"

constexpr int64_t SHARE_ROWS = 16;  // that a thread takes at once where a row takes little

// The last two are for K and V in the pool alone.
enum DType : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, FP8_E4M3 = 4 };

// sum = x + delta (if there is a delta), out = sum / rms(sum) * weight; rows [rows, size].
struct RmsNormArgs {
  const void* x;
  const void* delta;
  const void* weight;
  void* sum;
  void* out;
  int64_t rows, size;
  double eps;
  int64_t dtype;
};

// out = silu(gate) * up; gate_up is [rows, 2 * size], gate first; out is [rows, size].
struct SiluMulArgs {
  const void* gate_up;
  void* out;
  int64_t rows, size, dtype;
};

// Norms (if there are weights) and rotates the heads of each row, in place: num_q query heads,
// then num_k key heads. cos and sin are [rows, head_dim], sin negated in its first half.
struct PrepareHeadsArgs {
  void* heads;
  const void* cos;
  const void* sin;
  const void* q_weight;
  const void* k_weight;
  int64_t rows, row_stride, num_q, num_k, head_dim, table_stride;
  double eps;
  int64_t dtype;
};

// Stores K and V of T tokens into the pool, then attends over it, request by request. How they
// lie there is said in attention_kv.h.
struct PagedAttentionArgs {
  const void* q;  // [T, num_heads, head_dim], rows token_stride apart, as k and v
  const void* k;
  const void* v;
  void* out;  // [T, num_heads, head_dim], contiguous
  void* k_pool;
  void* v_pool;
  const int64_t* slot_mapping;
  const int32_t* block_tables;
  const int32_t* context_lens;
  const int32_t* query_starts;  // null: every request has one token
  float* partials;              // see attention.cpp
  int64_t q_stride, k_stride, v_stride, table_stride;
  int64_t num_tokens, num_requests, max_partitions;
  int64_t partition_keys;  // a multiple of PANEL
  int64_t num_heads, num_kv_heads, head_dim, block_size, window;  // window 0: none
  int64_t dtype, kv_dtype;
};

// out[i] = table[index[i]]; rows of row_bytes bytes each.
struct GatherRowsArgs {
  const void* table;
  const int64_t* index;
  void* out;
  int64_t rows, row_bytes;
};

// out = x + delta, element by element.
struct AddArgs {
  const void* x;
  const void* delta;
  void* out;
  int64_t count, dtype;
};

// out = x in float32, element by element.
struct WidenArgs {
  const void* x;
  float* out;
  int64_t count, dtype;
};

// The largest value of each row of x, [rows, size], and the first place it has; a row with a NaN
// has NaN.
struct RowMaxArgs {
  const float* x;
  float* maxima;
  int64_t* places;
  int64_t rows, size;
};

enum WeightFormat : int64_t { DENSE_WEIGHT = 0, INT8_WEIGHT = 1, INT4_WEIGHT = 2 };

// out = x @ weight^T (+ bias); x is [rows, in_size], the weight [out_size, in_size], packed as
// panels.h says; bias may be null. Activations are quantized where the weight is: to 8 bits,
// with a scale for each activation_group inputs of a row.
struct PackedLinearArgs {
  const void* x;
  const void* data;
  const f16* scales;    // null: dense
  const f16* minimums;  // null: not int4
  const void* bias;
  void* out;
  void* scratch;  // of linear_quantized.cpp; null: dense
  int64_t rows, in_size, out_size;
  int64_t group_size;        // inputs that share a scale; divides in_size
  int64_t activation_group;  // divides group_size
  int64_t format;
  int64_t dtype;  // of x, bias and out, and of a dense weight
};

// out = weight[ids], [rows, in_size]; the weight as in PackedLinearArgs.
struct EmbeddingArgs {
  const int64_t* ids;
  const void* data;
  const f16* scales;
  const f16* minimums;
  void* out;
  int64_t rows, in_size, group_size, format, dtype;
};

constexpr int FIT_GROUP = 32;  // inputs that share a scale where weights are fitted

// Values of 0 to 15, a scale and a minimum that stand for weights x, [rows, in_size], with the
// least loss: squared errors, each times its input's share. in_size is a multiple of FIT_GROUP.
struct FitInt4Args {
  const void* x;
  const float* shares;  // [in_size]; those of a group sum to 1
  uint8_t* values;      // [rows, in_size]
  f16* scales;          // [rows, in_size / FIT_GROUP]
  f16* minimums;
  int64_t rows, in_size, dtype;
};

void rms_norm(const RmsNormArgs& args, Team& team);
void silu_mul(const SiluMulArgs& args, Team& team);
void prepare_heads(const PrepareHeadsArgs& args, Team& team);
void paged_attention(const PagedAttentionArgs& args, Team& team);
void gather_rows(const GatherRowsArgs& args, Team& team);
void add(const AddArgs& args, Team& team);
void widen(const WidenArgs& args, Team& team);
void row_max(const RowMaxArgs& args, Team& team);
void packed_linear(const PackedLinearArgs& args, Team& team);
void embedding(const EmbeddingArgs& args, Team& team);
void fit_int4(const FitInt4Args& args, Team& team);

// Calls f with a null pointer of the type that dtype names.
template <class F>
inline void with_dtype(int64_t dtype, F&& f) {
  if (dtype == BFLOAT16) {
    f(static_cast<bf16*>(nullptr));
  } else if (dtype == FLOAT16) {
    f(static_cast<f16*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}
