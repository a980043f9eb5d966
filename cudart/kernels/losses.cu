// Derivatives of losses by log-probabilities, in float64: operation by operation those of package loss.
#include "arithmetic.h"

// exp_double is eˣ: range reduction to |r| ≤ ln2/2 and the rational approximation of FreeBSD's e_exp.c (Sun Microsystems 1993), every operation rounded by itself.
INLINE double exp_double(double x) {
  if (x != x) return x;
  if (x > 709.78) return bits<double>((uint64_t)0x7ff << 52);
  if (x < -745.0) return 0.0;
  double t = x * 1.44269504088896338700e+00 + 0.5;
  int k = (int)t;
  if ((double)k > t) k--;
  double n = (double)k, high = x - n * 6.93147180369123816490e-01, low = n * 1.90821492927058770002e-10;
  double r = high - low, z = r * r;
  double c = -1.65339022054652515390e-06 + z * 4.13813679705723846039e-08;
  c = 6.61375632143793436117e-05 + z * c;
  c = -2.77777777770155933842e-03 + z * c;
  c = 1.66666666666666657415e-01 + z * c;
  c = r - z * c;
  double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
  int half = k >> 1; // two factors: 2ᵏ itself may be out of range
  return y * bits<double>((uint64_t)(half + 1023) << 52) * bits<double>((uint64_t)(k - half + 1023) << 52);
}

INLINE bool finite(float v) { return (bits<uint32_t>(v) & 0x7f800000) != 0x7f800000; }

INLINE float loss_slope(const loss_term &t, const double *ratios, float lp) {
  double weight = t.weight, difference = (double)lp - (double)t.recorded;
  if (t.weight == 0.0f && (t.form != LOSS_QUADRATIC || t.beta == 0.0)) return 0.0f;
  double slope = -weight;
  if (t.form == LOSS_QUADRATIC) {
    slope = -(weight - t.beta * difference);
  } else if (t.form != LOSS_LINEAR) {
    double ratio = t.form == LOSS_DATUM ? ratios[t.datum] : exp_double(difference), clipped = ratio;
    if (clipped < t.low) clipped = t.low;
    if (clipped > t.high) clipped = t.high;
    if (t.form == LOSS_RATIO) slope = -clipped * weight;
    else slope = ratio * weight <= clipped * weight ? -(ratio * weight) : 0.0;
  }
  float rounded = (float)slope;
  return finite(lp) && finite(rounded) ? rounded : 0.0f;
}

// values become log-probabilities; slopes.at may be 0.
KERNEL(differentiate, 256, differentiate_arguments) {
  float *v = row_of<float>(a.values, 0), *slopes = row_of<float>(a.slopes, 0);
  const loss_term *terms = memory<const loss_term>(a.terms);
  EACH_COLUMN(i, a.values.cols) {
    float lp = v[i] - *row_of<const float>(a.lse, terms[i].row);
    v[i] = lp;
    if (a.slopes.at) slopes[i] = loss_slope(terms[i], memory<const double>(a.ratios), lp);
  }
}

// A block takes one datum: 256 differences at a time, which one thread adds in order, as package loss does.
KERNEL(datum_ratios, 256, datum_ratios_arguments) {
  SHARED(double, differences[256]);
  const int32_t *ends = memory<const int32_t>(a.ends);
  const ratio_position *positions = memory<const ratio_position>(a.positions);
  const float *logprobs = row_of<const float>(a.logprobs, 0);
  int64_t datum = block_x(), first = datum > 0 ? ends[datum - 1] : 0, end = ends[datum];
  double sum = 0.0;
  for (int64_t from = first; from < end; from += 256) {
    int64_t i = from + thread();
    if (i < end) differences[thread()] = (double)logprobs[positions[i].column] - (double)positions[i].recorded;
    barrier();
    if (thread() == 0)
      for (int64_t j = 0; j < 256 && from + j < end; j++) sum += differences[j];
    barrier();
  }
  if (thread() == 0) memory<double>(a.ratios)[datum] = first == end ? 1.0 : exp_double(sum / (double)(end - first));
}
