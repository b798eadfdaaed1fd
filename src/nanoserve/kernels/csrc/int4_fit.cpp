// Rows of weights fitted to 4 bits, a group of FIT_GROUP inputs at a time; how is said in
// `kernels/row_quantizer.py`, which does the same with torch.
//
// A lane has a row, so that the sums over a group add up vectors.
#include <algorithm>

#include "ops.h"

namespace {

constexpr int CUTS = 3;       // shares of the range left out, at either end: 0, 0.05 and 0.1
constexpr float CUT = 0.05f;
constexpr int FITS = 2;       // after the first choice
constexpr float MOST = 15.0f;
constexpr float MIN_VARIANCE = 1e-6f;

f32v at_least(f32v v, float least) { return v > least ? v : splat(least); }  // NaN too is least

// The weights of a group less their centres, and each input's share in the loss.
struct Group {
  f32v weights[FIT_GROUP];
  const float* shares;
  f32v centre, low, span;
};

// A scale and a minimum as float16 holds them, the minimum less the centre, and their loss.
struct Fit {
  f32v scale, minimum, loss;
};

f32v inverse(f32v scale) { return 1.0f / (scale == 0.0f ? splat(1.0f) : scale); }

// The nearest of 16 values, as a float.
f32v nearest(f32v weight, f32v inverse, f32v shift) {
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  f32v value = at_least(weight * inverse - shift, 0.0f);
  value = value < MOST ? value : splat(MOST);
  return (value + round) - round;
}

void centre_weights(Group& group) {
  group.centre = splat(0.0f);
  for (int i = 0; i < FIT_GROUP; i++) group.centre += group.weights[i] * group.shares[i];
  f32v high = splat(-INFINITY);
  group.low = splat(INFINITY);
  for (f32v& weight : group.weights) {
    weight -= group.centre;
    group.low = weight < group.low ? weight : group.low;
    high = max(weight, high);
  }
  group.span = high - group.low;
}

// Rounds scale and minimum, takes them if they lose less, and fits others to the values chosen.
void try_fit(const Group& group, f32v& scale, f32v& minimum, Fit& best) {
  scale = rounded_to<f16>(scale);
  minimum = rounded_to<f16>(minimum + group.centre) - group.centre;
  f32v by = inverse(scale), shift = minimum * by;
  f32v mean = {}, cross = {}, square = {};
  for (int i = 0; i < FIT_GROUP; i++) {
    f32v value = nearest(group.weights[i], by, shift);
    f32v weighted = value * group.shares[i];
    mean += weighted;
    cross += weighted * group.weights[i];
    square += weighted * value;
  }
  // The loss but for the mean square of the group, which is the same in every try.
  f32v loss = scale * (scale * square + 2.0f * (minimum * mean - cross)) + minimum * minimum;
  i32v is_better = loss < best.loss;
  best.loss = is_better ? loss : best.loss;
  best.scale = is_better ? scale : best.scale;
  best.minimum = is_better ? minimum : best.minimum;
  scale = cross / at_least(square - mean * mean, MIN_VARIANCE);
  minimum = -scale * mean;  // the mean of the weights is 0
}

Fit find_fit(const Group& group) {
  Fit best = {splat(0.0f), splat(0.0f), splat(INFINITY)};
  best.minimum = rounded_to<f16>(group.centre) - group.centre;
  for (int cut = 0; cut < CUTS * CUTS; cut++) {
    float low = CUT * (cut / CUTS), high = CUT * (cut % CUTS);
    f32v scale = group.span * ((1.0f - low - high) / MOST);
    f32v minimum = group.low + low * group.span;
    for (int fit = 0; fit <= FITS; fit++) try_fit(group, scale, minimum, best);
  }
  return best;
}

// Fits the group of inputs from `column` on, of up to LANES rows from `row` on.
template <class T>
void fit_group(const FitInt4Args& args, int64_t row, int64_t column) {
  int count = static_cast<int>(std::min<int64_t>(LANES, args.rows - row));
  const T* x = static_cast<const T*>(args.x) + row * args.in_size + column;
  Group group;
  group.shares = args.shares + column;
  for (int first = 0; first < FIT_GROUP; first += LANES) {
    f32v rows[LANES];
    for (int i = 0; i < LANES; i++) {  // the last row again where there are no more
      rows[i] = load(x + std::min(i, count - 1) * args.in_size + first);
    }
    transpose(rows);
    std::copy(rows, rows + LANES, group.weights + first);
  }
  centre_weights(group);
  Fit best = find_fit(group);
  f32v by = inverse(best.scale), shift = best.minimum * by;
  for (int first = 0; first < FIT_GROUP; first += LANES) {
    f32v values[LANES];
    for (int i = 0; i < LANES; i++) values[i] = nearest(group.weights[first + i], by, shift);
    transpose(values);
    for (int i = 0; i < count; i++) {
      uint8_t* to = args.values + (row + i) * args.in_size + column + first;
      for (int lane = 0; lane < LANES; lane++) to[lane] = static_cast<uint8_t>(values[i][lane]);
    }
  }
  f32v minimum = best.minimum + group.centre;
  int64_t num_groups = args.in_size / FIT_GROUP;
  for (int i = 0; i < count; i++) {
    int64_t place = (row + i) * num_groups + column / FIT_GROUP;
    args.scales[place] = static_cast<f16>(best.scale[i]);
    args.minimums[place] = static_cast<f16>(minimum[i]);
  }
}

}  // namespace

void fit_int4(const FitInt4Args& args, Team& team) {
  with_dtype(args.dtype, [&]<class T>(T*) {
    team.share((args.rows + LANES - 1) / LANES, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first * LANES; row < std::min(args.rows, last * LANES); row += LANES) {
        for (int64_t column = 0; column < args.in_size; column += FIT_GROUP) {
          fit_group<T>(args, row, column);
        }
      }
    });
  });
}
