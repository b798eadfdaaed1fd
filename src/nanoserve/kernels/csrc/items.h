// How sums of products are made of vectors of T: item by item, in float32.
#pragma once
#include <cstring>
#include <type_traits>

#include "vec.h"

// An item is what one lane of one multiply-add takes from a vector of T.
template <class T>
struct FloatItems {
  static int count(int size) { return size; }
  static f32v load_items(const T* from, int first, int count) { return load(from + first, count); }
  static float item(const T* from, int index) { return as_float(from[index]); }
  static f32v multiply_add(f32v items, float item, f32v sum) { return sum + items * item; }
};

#ifdef __AVX512BF16__
// An item is a pair of bfloat16 components, carried in the 32 bits of a float.
struct PairItems {
  static int count(int size) { return size / 2; }
  static f32v load_items(const bf16* from, int first, int count) {
    if (count < LANES) {
      float items[LANES] = {};
      std::memcpy(items, from + 2 * first, count * sizeof(float));
      return load(items);
    }
    f32v items;
    std::memcpy(&items, from + 2 * first, sizeof items);
    return items;
  }
  static float item(const bf16* from, int index) {
    float pair;
    std::memcpy(&pair, from + 2 * index, sizeof pair);
    return pair;
  }
  static f32v multiply_add(f32v items, float item, f32v sum) {
    return (f32v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)items, (__m512bh)splat(item));
  }
};

// Pairs each of 2 * LANES components of a with that of b.
inline void zip_pairs(const bf16* a, const bf16* b, f32v& low, f32v& high) {
  const i32v first = lane_numbers() * 0x10001 + (32 << 16);  // component i of a, of b
  const i32v second = first + 16 * 0x10001;
  __m512i a_vector = _mm512_loadu_si512(a), b_vector = _mm512_loadu_si512(b);
  low = (f32v)_mm512_permutex2var_epi16(a_vector, (__m512i)first, b_vector);
  high = (f32v)_mm512_permutex2var_epi16(a_vector, (__m512i)second, b_vector);
}

template <class T>
using Items = std::conditional_t<std::is_same_v<T, bf16>, PairItems, FloatItems<T>>;
#else
template <class T>
using Items = FloatItems<T>;
#endif

// Transposes `count` items, at most LANES, of LANES vectors that load_row(i) begins at `first`:
// item by item, their LANES values lie `stride` floats apart from `to` on.
template <class LoadRow>
inline void transpose_items(LoadRow&& load_row, int count, float* to, int stride) {
  f32v rows[LANES];
  for (int i = 0; i < LANES; i++) rows[i] = load_row(i);
  transpose(rows);
  for (int i = 0; i < count; i++) store(to + i * stride, rows[i]);
}
