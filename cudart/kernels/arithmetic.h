// Arithmetic that every kernel shares: one rounding to bfloat16, one exp, one log, one order of sums over a warp and a block. Nothing here depends on how many
// rows a launch has.
#pragma once
#include "language.h"

typedef unsigned short bfloat16;

// Neighbours of a row that a thread moves at once.
template <int n_> struct alignas(4 * n_) floats {
  static constexpr int n = n_;
  float v[n_];
};
template <int n_> struct alignas(2 * n_) bfloat16s { bfloat16 v[n_]; };
template <int n_> struct alignas(4 * n_) bfloat16_pairs { unsigned v[n_]; }; // as narrow_two gives them

INLINE float infinity() { return bits<float>(0x7f800000u); }
INLINE float widen(bfloat16 v) { return bits<float>((uint32_t)v << 16); }
// narrow rounds to nearest even; a NaN stays one.
INLINE bfloat16 narrow(float v) {
  uint32_t u = bits<uint32_t>(v);
  if ((u & 0x7fffffff) > 0x7f800000) return (bfloat16)((u >> 16) | 0x40);
  return (bfloat16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE float rounded_to(float v, int type) { return type == BFLOAT16 ? widen(narrow(v)) : v; }
INLINE float widen_half(unsigned short v) {
  uint32_t sign = (uint32_t)(v & 0x8000) << 16, exponent = (v >> 10) & 31, fraction = v & 1023;
  if (exponent == 31) return bits<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float f = (float)fraction * bits<float>(0x33800000u); // 2⁻²⁴: half's subnormals are normal in float32
  return sign ? -f : f;
}
INLINE float load_as_float(uint64_t at, int64_t i, int type) {
  return type == FLOAT32 ? memory<const float>(at)[i] : type == BFLOAT16 ? widen(memory<const bfloat16>(at)[i]) : widen_half(memory<const unsigned short>(at)[i]);
}
INLINE void store_as(uint64_t at, int64_t i, int type, float v) {
  if (type == FLOAT32) memory<float>(at)[i] = v;
  else memory<bfloat16>(at)[i] = narrow(v);
}

// load_some and store_some are the same for neighbours from element i on, which lie at a multiple of their size.
template <int n> INLINE floats<n> load_some(uint64_t at, int64_t i, int type) {
  if (type == FLOAT32) return *(const floats<n> *)(memory<const float>(at) + i);
  bfloat16s<n> from = *(const bfloat16s<n> *)(memory<const bfloat16>(at) + i);
  floats<n> v;
  UNROLL for (int e = 0; e < n; e++) v.v[e] = widen(from.v[e]);
  return v;
}
template <int n> INLINE void store_some(uint64_t at, int64_t i, int type, const floats<n> &v) {
  if (type == FLOAT32) {
    *(floats<n> *)(memory<float>(at) + i) = v;
    return;
  }
  bfloat16s<n> to;
  UNROLL for (int e = 0; e < n; e++) to.v[e] = narrow(v.v[e]);
  *(bfloat16s<n> *)(memory<bfloat16>(at) + i) = to;
}

INLINE float larger(float a, float b) { return a > b ? a : b; }

// exp_rn is eˣ to about one unit in the last place: 2ⁿ · p(r), r = x - n·ln 2, with the polynomial of Cephes' expf. 0 below -104, +Inf above 89, NaN for NaN.
INLINE float exp_rn(float x) {
  if (x > 89.0f) x = 89.0f;
  if (x < -104.0f) x = -104.0f;
  const float magic = 12582912.0f; // 1.5 · 2²³: its sum with a small number has the nearest integer in the low bits
  float t = fma_rn(x, 1.44269504088896341f, magic), n = t - magic;
  float r = fma_rn(n, -0.693359375f, x);
  r = fma_rn(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fma_rn(p, r, 1.3981999507e-3f);
  p = fma_rn(p, r, 8.3334519073e-3f);
  p = fma_rn(p, r, 4.1665795894e-2f);
  p = fma_rn(p, r, 1.6666665459e-1f);
  p = fma_rn(p, r, 5.0000001201e-1f);
  p = fma_rn(p, r * r, r) + 1.0f;
  int k = bits<int>(t) - 0x4B400000, half = k >> 1; // two factors: 2ᵏ itself may be out of range
  return p * bits<float>((half + 127) << 23) * bits<float>((k - half + 127) << 23);
}

// log_rn is ln x for normal x > 0 (Cephes' logf); +Inf and NaN stay.
INLINE float log_rn(float x) {
  if (!(x < infinity())) return x;
  int u = bits<int>(x), e = ((u >> 23) & 255) - 126;
  float m = bits<float>((u & 0x007fffff) | 0x3f000000); // [0.5, 1)
  if (m < 0.707106781186547524f) e--, m = m + m;
  m = m - 1.0f;
  float n = (float)e, z = m * m, p = 7.0376836292e-2f;
  p = fma_rn(p, m, -1.1514610310e-1f);
  p = fma_rn(p, m, 1.1676998740e-1f);
  p = fma_rn(p, m, -1.2420140846e-1f);
  p = fma_rn(p, m, 1.4249322787e-1f);
  p = fma_rn(p, m, -1.6668057665e-1f);
  p = fma_rn(p, m, 2.0000714765e-1f);
  p = fma_rn(p, m, -2.4999993993e-1f);
  p = fma_rn(p, m, 3.3333331174e-1f);
  float y = m * z * p;
  y = fma_rn(n, -2.12194440e-4f, y);
  y = fma_rn(z, -0.5f, y);
  return fma_rn(n, 0.693359375f, m + y);
}

// order_of has the order of logits; both zeros are one.
INLINE uint32_t order_of(float x) {
  uint32_t u = bits<uint32_t>(x);
  if (u == 0x80000000) u = 0;
  return u & 0x80000000 ? ~u : u | 0x80000000;
}

INLINE int lane() { return thread() & 31; }
INLINE int warp() { return thread() >> 5; }

// warp_sum: the sum over a warp's lanes, a butterfly; every lane has the same bits because addition commutes.
INLINE float warp_sum(float v) {
  for (int m = 16; m; m >>= 1) v = v + shuffle_xor(v, m);
  return v;
}
INLINE float warp_largest(float v) {
  for (int m = 16; m; m >>= 1) v = larger(v, shuffle_xor(v, m));
  return v;
}

// lanes_sum adds what 16 lanes have, each the elements of a row that are 16 apart, as one tree. Both halves of a warp do, each for itself.
INLINE float lanes_sum(float v) {
  for (int m = 8; m; m >>= 1) v = v + shuffle_xor(v, m);
  return v;
}

// block_sum adds the warps' sums in their order. room has one element per warp; it may be used again after the next barrier of the caller.
template <int threads> INLINE float block_sum(float v, float *room) {
  v = warp_sum(v);
  if (lane() == 0) room[warp()] = v;
  barrier();
  float s = room[0];
  for (int i = 1; i < threads / 32; i++) s = s + room[i];
  return s;
}
template <int threads> INLINE float block_largest(float v, float *room) {
  v = warp_largest(v);
  if (lane() == 0) room[warp()] = v;
  barrier();
  float s = room[0];
  for (int i = 1; i < threads / 32; i++) s = larger(s, room[i]);
  return s;
}

template <class T> INLINE T *row_of(const view &v, int64_t r) { return memory<T>(v.at) + r * v.stride; }

// Element-wise kernels: block (x, y) has row x and the pieces y, y + blocks_y, … of PIECE columns; a thread every 256th column of a piece.
#define EACH_COLUMN(c, cols) \
  for (int64_t piece = block_y() * PIECE; piece < (cols); piece += blocks_y() * PIECE) \
    for (int64_t c = piece + thread(); c < piece + PIECE && c < (cols); c += 256)

// in_fours tells whether every fourth element of every row lies where four can be moved at once.
INLINE bool in_fours(const view &v, int type) { return v.at % (type == FLOAT32 ? 16 : 8) == 0 && (v.stride % 4 == 0 || v.rows == 1); }

// each_some is EACH_COLUMN for kernels that only move numbers through: with fours, a thread has four neighbouring columns. f(floats<n>, c) does columns c … c + n - 1.
template <class F> INLINE void each_some(int64_t cols, bool fours, F f) {
  for (int64_t piece = block_y() * PIECE; piece < cols; piece += blocks_y() * PIECE) {
    if (fours && piece + PIECE <= cols) f(floats<4>(), piece + 4 * thread());
    else if (fours && cols % 4 == 0) {
      if (piece + 4 * thread() < cols) f(floats<4>(), piece + 4 * thread());
    } else
      for (int64_t c = piece + thread(); c < piece + PIECE && c < cols; c += 256) f(floats<1>(), c);
  }
}

// The elements of two rows in a column.
struct two_floats {
  float a, b;
};
INLINE void here(two_floats &v) { here(v.a), here(v.b); }

// each_held takes columns from, from + step, … below to in order: held of them at a time, a power of two, and of the last ones half as many, and so on. So many are asked for before the first of them is taken: a loop that asks
// for each as it comes waits for memory once for each. load(c) gives what column c holds, f(c, that) takes it.
template <int step, int held, class I, class L, class F> INLINE void each_held(I from, I to, L load, F f) {
  for (; from + (held - 1) * step < to; from += held * step) {
    decltype(load(from)) v[held];
    UNROLL for (int e = 0; e < held; e++) v[e] = load(from + e * step);
    UNROLL for (int e = 0; e < held; e++) here(v[e]);
    UNROLL for (int e = 0; e < held; e++) f(from + e * step, v[e]);
  }
  if constexpr (held > 1) each_held<step, held / 2>(from, to, load, f);
}
