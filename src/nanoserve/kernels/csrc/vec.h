// Vectors of float32 in the machine's own width, out of compiler extensions alone.
//
// One source serves AVX-512, AVX2 and everything else: LANES follows the target, and what a
// target lacks the compiler makes of what it has. Intrinsics stand behind #ifdef, beside a
// portable twin, where the compiler does not find the instruction by itself.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int ROWS_AT_ONCE = 6;  // rows of accumulators that fit the registers beside operands
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int ROWS_AT_ONCE = 3;
#else
constexpr int LANES = 4;
constexpr int ROWS_AT_ONCE = 3;
#endif

typedef float f32v __attribute__((vector_size(LANES * 4)));
typedef int32_t i32v __attribute__((vector_size(LANES * 4)));
typedef uint32_t u32v __attribute__((vector_size(LANES * 4)));
typedef uint16_t u16v __attribute__((vector_size(LANES * 2)));

struct bf16 {
  uint16_t bits;
};
typedef _Float16 f16;

inline f32v splat(float value) { return value - f32v{}; }

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float as_float(float value) { return value; }
inline float as_float(f16 value) { return static_cast<float>(value); }
inline float as_float(bf16 value) {
  return bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline f32v load(const float* from) {
  f32v v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline f32v load(const bf16* from) {
#ifdef __AVX512F__  // GCC 12 widens half a vector at a time
  __m256i v;
  std::memcpy(&v, from, sizeof v);
  return (f32v)_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16);
#else
  u16v v;
  std::memcpy(&v, from, sizeof v);
  return bit_cast<f32v>(__builtin_convertvector(v, u32v) << 16);
#endif
}

inline f32v load(const f16* from) {
#if defined(__AVX512F__)
  __m256i v;
  std::memcpy(&v, from, sizeof v);
  return (f32v)_mm512_cvtph_ps(v);
#elif defined(__F16C__)
  __m128i v;
  std::memcpy(&v, from, sizeof v);
  return (f32v)_mm256_cvtph_ps(v);
#else
  f32v v;
  for (int lane = 0; lane < LANES; lane++) v[lane] = static_cast<float>(from[lane]);
  return v;
#endif
}

inline void store(float* to, f32v v) { std::memcpy(to, &v, sizeof v); }

// Rounds to the nearest, ties to even; a NaN stays one.
inline void store(bf16* to, f32v v) {
#ifdef __AVX512BF16__
  __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  u32v bits = bit_cast<u32v>(v);
  u32v rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = (v == v) ? rounded : ((bits >> 16) | 0x40);
  u16v narrow = __builtin_convertvector(rounded, u16v);
  std::memcpy(to, &narrow, sizeof narrow);
#endif
}

inline void store(f16* to, f32v v) {
#if defined(__AVX512F__)
  __m256i rounded = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &rounded, sizeof rounded);
#elif defined(__F16C__)
  __m128i rounded = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  for (int lane = 0; lane < LANES; lane++) to[lane] = static_cast<f16>(v[lane]);
#endif
}

// The first `count` lanes; the others are 0.
template <class T>
inline f32v load(const T* from, int count) {
  if (count >= LANES) return load(from);
  T some[LANES] = {};
  std::memcpy(some, from, count * sizeof(T));
  return load(some);
}

template <class T>
inline void store(T* to, f32v v, int count) {
  if (count >= LANES) return store(to, v);
  T some[LANES];
  store(some, v);
  std::memcpy(to, some, count * sizeof(T));
}

// What v would be after a way through memory as T.
template <class T>
inline f32v rounded_to(f32v v) {
  if constexpr (sizeof(T) == sizeof(float)) return v;
  T some[LANES];
  store(some, v);
  return load(some);
}

inline f32v max(f32v a, f32v b) { return a > b ? a : b; }

inline float sum_lanes(f32v v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += v[lane];
  return sum;
#endif
}

inline float max_lane(f32v v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
  return most;
#endif
}

inline i32v lane_numbers() {
  i32v v;
  for (int lane = 0; lane < LANES; lane++) v[lane] = lane;
  return v;
}

// e^x within 2 units in the last place; 0 below -87, where float32 ends; NaN stays NaN.
// Source: Cephes 2.2 `expf`: reduce by multiples of ln 2 in two parts, then a polynomial.
inline f32v exp(f32v x) {
  const float low = -87.0f, high = 88.0f;
  f32v clamped = x < low ? splat(low) : x;
  clamped = clamped > high ? splat(high) : clamped;
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  f32v shifted = clamped * 1.44269504088896341f + round;
  f32v n = shifted - round;
  f32v r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  f32v p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  i32v exponent = (__builtin_convertvector(n, i32v) + 127) << 23;
  f32v result = p * bit_cast<f32v>(exponent);
  return x < low ? splat(0.0f) : result;
}

// 2^x for x up to 0, within 3 units in the last place; 0 where float32 ends, at -126 or
// below; NaN stays NaN. Source of the polynomial: Cephes 2.2 `exp2f`.
inline f32v power_of_2(f32v x) {
#ifdef __AVX512F__
  f32v bounded = (f32v)_mm512_max_ps(_mm512_set1_ps(-200.0f), (__m512)x);
  f32v n = (f32v)_mm512_roundscale_ps((__m512)bounded, _MM_FROUND_TO_NEAREST_INT);
  f32v r = bounded - n;
#else
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  f32v bounded = x < -126.0f ? splat(-126.0f) : x;
  f32v n = (bounded + round) - round;
  f32v r = bounded - n;
#endif
  f32v p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
#ifdef __AVX512F__
  return (f32v)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  f32v result = p * bit_cast<f32v>((__builtin_convertvector(n, i32v) + 127) << 23);
  return x < -126.0f ? splat(0.0f) : result;
#endif
}

// Takes lanes of a and b in turn: the first halves of both to a, the second halves to b.
inline void zip(f32v& a, f32v& b) {
#if defined(__AVX512F__)
  f32v low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  f32v high =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX__)
  f32v low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  f32v high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  f32v low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  f32v high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
  a = low;
  b = high;
}

// Transposes LANES vectors: after each of log2(LANES) rounds of zipping row i with row
// i + LANES / 2, one more bit of the lane's number has become a bit of the row's.
inline void transpose(f32v (&rows)[LANES]) {
  for (int round = 1; round < LANES; round *= 2) {
    f32v zipped[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      f32v a = rows[i], b = rows[i + LANES / 2];
      zip(a, b);
      zipped[2 * i] = a;
      zipped[2 * i + 1] = b;
    }
    for (int i = 0; i < LANES; i++) rows[i] = zipped[i];
  }
}

template <int N, class F>
inline void call_with_rows(int num_rows, int row, F&& f) {
  if constexpr (N > 0) {
    if (num_rows == N) return f.template operator()<N>(row);
    call_with_rows<N - 1>(num_rows, row, f);
  }
}

// Calls f.template operator()<N>(first) for groups of N rows, N at most MOST, so that each
// group is compiled with its accumulators in registers.
template <int MOST, class F>
inline void for_row_groups(int num_rows, F&& f) {
  int row = 0;
  for (; row + MOST <= num_rows; row += MOST) f.template operator()<MOST>(row);
  call_with_rows<MOST - 1>(num_rows - row, row, f);
}
