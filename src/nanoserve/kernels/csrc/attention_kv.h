// How K and V lie in the pool: where each head is, and the ways there and back.
//
// A side of a layer, K or V, is [num_blocks] of blocks; a block is [block_size, num_kv_heads,
// head_dim] numbers. As int8 they are followed by [num_kv_heads, block_size] floats, the scale
// of each head of each token: its largest magnitude is 127 scales, so a NaN or an infinity
// makes the scale NaN, and with it the head. As fp8 (e4m3, no infinity) there is no scale:
// what is beyond 448 is stored as 448, and NaN as NaN.
#pragma once
#include <algorithm>

#include "ops.h"

struct int8 {
  int8_t value;
};
struct fp8 {
  uint8_t bits;
};

constexpr float INT8_MAGNITUDE = 127.0f;
constexpr float LEAST_INT8_MAGNITUDE = 1e-30f;  // of a head; under it, all of it is 0

typedef int8_t i8v __attribute__((vector_size(LANES)));
typedef uint8_t u8v __attribute__((vector_size(LANES)));

// Calls f with a null pointer of the type that K and V are stored in.
template <class F>
inline void with_kv_dtype(int64_t dtype, F&& f) {
  if (dtype == INT8) return f(static_cast<int8*>(nullptr));
  if (dtype == FP8_E4M3) return f(static_cast<fp8*>(nullptr));
  with_dtype(dtype, f);
}

struct KvLayout {
  int64_t head_bytes = 0, token_bytes, values_bytes, block_bytes;  // of one side
  bool has_scales;

  explicit KvLayout(const PagedAttentionArgs& args) : has_scales(args.kv_dtype == INT8) {
    with_kv_dtype(args.kv_dtype, [&]<class S>(S*) { head_bytes = args.head_dim * sizeof(S); });
    token_bytes = args.num_kv_heads * head_bytes;
    values_bytes = args.block_size * token_bytes;
    int64_t num_scales = has_scales ? args.block_size * args.num_kv_heads : 0;
    block_bytes = values_bytes + num_scales * sizeof(float);
  }
};

inline f32v load(const int8* from) {
  i8v v;
  std::memcpy(&v, from, sizeof v);
  return __builtin_convertvector(__builtin_convertvector(v, i32v), f32v);
}

// The exponent counts from -7 and is moved to float32's, which has subnormal numbers as well.
inline f32v load(const fp8* from) {
  u8v v;
  std::memcpy(&v, from, sizeof v);
  u32v bits = __builtin_convertvector(v, u32v), magnitude = bits & 0x7f;
  f32v value = bit_cast<f32v>(magnitude << 20) * 0x1p120f;
  u32v result = bit_cast<u32v>(value) | (bits & 0x80) << 24;
  return bit_cast<f32v>(magnitude == 0x7f ? u32v{} + 0x7fc00000 : result);
}

// Rounds to the nearest, ties to even.
inline void store(fp8* to, f32v v) {
  u32v bits = bit_cast<u32v>(v), magnitude = bits & 0x7fffffff;
  u32v normal = (magnitude - (120u << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
  const uint32_t shift = 141u << 23;  // its last place is that of a subnormal e4m3
  u32v small = bit_cast<u32v>(bit_cast<f32v>(magnitude) + bit_cast<float>(shift)) - shift;
  u32v result = magnitude < (121u << 23) ? small : normal;
  result = magnitude > (1086u << 20) ? u32v{} + 0x7e : result;  // 448
  result = magnitude > 0x7f800000 ? u32v{} + 0x7f : result;
  u8v narrow = __builtin_convertvector(result | (bits >> 24 & 0x80), u8v);
  std::memcpy(to, &narrow, sizeof narrow);
}

// Stores a head's K or V as S. The scale is written where there is one.
template <class S, class T>
inline void store_head(const T* from, S* to, float* scale, int head_dim) {
  if constexpr (std::is_same_v<S, T>) {
    std::memcpy(to, from, head_dim * sizeof(T));
  } else if constexpr (std::is_same_v<S, int8>) {
    f32v largest = {}, poison = {};
    for (int i = 0; i < head_dim; i += LANES) {
      f32v v = load(from + i, head_dim - i);
      largest = max(largest, v < 0.0f ? -v : v);
      poison += v * 0.0f;
    }
    float magnitude = max_lane(largest);
    bool is_zero = magnitude < LEAST_INT8_MAGNITUDE;
    float factor = is_zero ? 0.0f : INT8_MAGNITUDE / magnitude;
    *scale = (is_zero ? 0.0f : magnitude / INT8_MAGNITUDE) + sum_lanes(poison);
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    for (int i = 0; i < head_dim; i += LANES) {
      f32v shifted = load(from + i, head_dim - i) * factor + round;
      i32v integer = bit_cast<i32v>(shifted) - bit_cast<int32_t>(round);
      i8v narrow = __builtin_convertvector(integer, i8v);
      std::memcpy(to + i, &narrow, std::min<int>(LANES, head_dim - i));
    }
  } else {
    for (int i = 0; i < head_dim; i += LANES) {
      store(to + i, load(from + i, head_dim - i), head_dim - i);
    }
  }
}

// Widens the numbers of a head to C, without their scale; what follows them is zeros up to a
// multiple of 64 numbers.
template <class S, class C>
inline void widen_head(const S* from, C* to, int head_dim) {
  for (int i = 0; i < head_dim; i += LANES) store(to + i, load(from + i, head_dim - i));
}

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
// The 8 high and the 8 low bits of the bfloat16 that each magnitude of 7 bits is.
template <class S>
struct WideningTable {
  alignas(64) uint8_t high[128], low[128];
  WideningTable() {
    for (int first = 0; first < 128; first += LANES) {
      S codes[LANES];
      for (int i = 0; i < LANES; i++) codes[i] = bit_cast<S>(static_cast<uint8_t>(first + i));
      bf16 wide[LANES];
      store(wide, load(codes));
      for (int i = 0; i < LANES; i++) {
        high[first + i] = wide[i].bits >> 8;
        low[first + i] = wide[i].bits & 0xff;
      }
    }
  }
};

template <class S>
inline const WideningTable<S> WIDENING_TABLE;

// All magnitudes of 7 bits are exact in bfloat16: two look-ups make 64 numbers at once.
template <class S>
inline void widen_by_table(const S* from, bf16* to, int head_dim) {
  const WideningTable<S>& table = WIDENING_TABLE<S>;
  const __m512i high_0 = _mm512_load_si512(table.high), high_1 = _mm512_load_si512(table.high + 64);
  const __m512i low_0 = _mm512_load_si512(table.low), low_1 = _mm512_load_si512(table.low + 64);
  const __m512i quarters = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // which unpacking restores
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int i = 0; i < head_dim; i += 64) {
    __mmask64 mask = head_dim - i < 64 ? (1ull << (head_dim - i)) - 1 : ~0ull;
    __m512i codes = _mm512_permutexvar_epi64(quarters, _mm512_maskz_loadu_epi8(mask, from + i));
    __m512i magnitudes = std::is_same_v<S, int8> ? _mm512_abs_epi8(codes) : codes;
    __m512i low = _mm512_permutex2var_epi8(low_0, magnitudes, low_1);
    __m512i high = _mm512_permutex2var_epi8(high_0, magnitudes, high_1);
    high = _mm512_ternarylogic_epi32(high, codes, sign, 0xf8);  // high | (codes & sign)
    _mm512_storeu_si512(to + i, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + i + 32, _mm512_unpackhi_epi8(low, high));
  }
}

inline void widen_head(const int8* from, bf16* to, int head_dim) {
  widen_by_table(from, to, head_dim);
}

inline void widen_head(const fp8* from, bf16* to, int head_dim) {
  widen_by_table(from, to, head_dim);
}
#endif
