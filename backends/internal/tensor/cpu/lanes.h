// Sixteen logical lanes over whatever the instruction set has, so that sums over a row are the same tree everywhere. Included once per instruction set.
#include "jobs.h"
#include <string.h>
#pragma STDC FP_CONTRACT OFF

#define PARTS (16 / LANES)
#define EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ASK(p) __builtin_prefetch(p)
#define ASK_SECOND(p) __builtin_prefetch(p, 0, 2) // into the second-level cache

// IN_REGISTER keeps the compiler from loading a value again at every use: two loads per multiply-add are more than processors do.
#if defined(EMULATE_AVX512)
#define IN_REGISTER(x) ((void)0) // there are no such registers
#elif defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define IN_REGISTER(x) __asm__("" : "+w"(x))
#endif

typedef struct {
  vf v[PARTS];
} lanes;

INLINE vf vselect(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }

// vround is round_bits.
INLINE vf vround(vf x) {
  const vi high = (vi){0} + (int32_t)0xffff0000;
  vi u = (vi)x, near = (u + 0x7fff + ((u >> 16) & 1)) & high, nan = (u | 0x00400000) & high;
  return vselect((vi)((u & 0x7fffffff) > 0x7f800000), (vf)nan, (vf)near);
}


// vexp_each makes n vectors, at most 4, eˣ to about one unit in the last place: 2ⁿ · p(r), r = x - n·ln 2. It gives 0 below -104, +Inf above 89, and NaN for NaN. Step by step for all of them: one alone is a single
// chain, whose every step waits for the one before.
INLINE void vexp_each(const int n, vf *x) {
  const vf magic = vset(12582912.0f); // 1.5 · 2²³: its sum with a small number has the nearest integer in the low bits
  vf t[4], r[4], p[4];
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < n; i++)
  EACH x[i] = vmin(vset(89.0f), x[i]); // in this order a NaN comes through
  EACH x[i] = vmax(vset(-104.0f), x[i]);
  EACH t[i] = vfma(x[i], vset(1.44269504088896341f), magic);
  EACH r[i] = vfma(t[i] - magic, vset(-0.693359375f), x[i]);
  EACH r[i] = vfma(t[i] - magic, vset(2.12194440e-4f), r[i]);
  EACH p[i] = vfma(vset(1.9875691500e-4f), r[i], vset(1.3981999507e-3f));
  EACH p[i] = vfma(p[i], r[i], vset(8.3334519073e-3f));
  EACH p[i] = vfma(p[i], r[i], vset(4.1665795894e-2f));
  EACH p[i] = vfma(p[i], r[i], vset(1.6666665459e-1f));
  EACH p[i] = vfma(p[i], r[i], vset(5.0000001201e-1f));
  EACH p[i] = vfma(p[i], r[i] * r[i], r[i]) + vset(1.0f);
  EACH {
    vi k = (vi)t[i] - 0x4B400000, half = k >> 1; // two factors: 2ᵏ itself may be out of range
    x[i] = p[i] * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
  }
#undef EACH
}
INLINE vf vexp(vf x) { return vexp_each(1, &x), x; }

// vlog is ln x for normal x > 0; +Inf and NaN stay.
INLINE vf vlog(vf x) {
  vi bits = (vi)x;
  vi e = ((bits >> 23) & 255) - 126;
  vf m = (vf)((bits & 0x007fffff) | 0x3f000000); // [0.5, 1)
  vi small = (vi)(m < vset(0.707106781186547524f));
  m = m + vselect(small, m, vset(0.0f)) - vset(1.0f);
  e = e + small; // a true lane is -1
  float fe[LANES];
  for (int i = 0; i < LANES; i++) fe[i] = (float)e[i];
  vf n = vload(fe), z = m * m;
  vf p = vset(7.0376836292e-2f);
  p = vfma(p, m, vset(-1.1514610310e-1f));
  p = vfma(p, m, vset(1.1676998740e-1f));
  p = vfma(p, m, vset(-1.2420140846e-1f));
  p = vfma(p, m, vset(1.4249322787e-1f));
  p = vfma(p, m, vset(-1.6668057665e-1f));
  p = vfma(p, m, vset(2.0000714765e-1f));
  p = vfma(p, m, vset(-2.4999993993e-1f));
  p = vfma(p, m, vset(3.3333331174e-1f));
  vf y = m * z * p;
  y = vfma(n, vset(-2.12194440e-4f), y);
  y = vfma(z, vset(-0.5f), y);
  vf r = vfma(n, vset(0.693359375f), m + y);
  return vselect((vi)(x < vset(__builtin_inff())), r, x);
}

INLINE float exp1(float x) { return vexp(vset(x))[0]; }
INLINE float log1(float x) { return vlog(vset(x))[0]; }
INLINE float sqrt1(float x) { return vsqrt(vset(x))[0]; }

INLINE lanes lset(float x) {
  lanes r;
  EACH_PART r.v[i] = vset(x);
  return r;
}
INLINE lanes lload(const float *p) {
  lanes r;
  EACH_PART r.v[i] = vload(p + i * LANES);
  return r;
}
INLINE void lstore(float *p, lanes a) { EACH_PART vstore(p + i * LANES, a.v[i]); }
// lload_some reads n < 16 elements; the other lanes are fill.
INLINE lanes lload_some(const float *p, int64_t n, float fill) {
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? p[i] : fill;
  return lload(t);
}
INLINE void lstore_some(float *p, lanes a, int64_t n) {
  float t[16];
  lstore(t, a);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
INLINE lanes ladd(lanes a, lanes b) {
  EACH_PART a.v[i] = a.v[i] + b.v[i];
  return a;
}
INLINE lanes lmul(lanes a, lanes b) {
  EACH_PART a.v[i] = a.v[i] * b.v[i];
  return a;
}
INLINE lanes lfma(lanes a, lanes b, lanes c) {
  EACH_PART a.v[i] = vfma(a.v[i], b.v[i], c.v[i]);
  return a;
}
INLINE lanes lmax(lanes a, lanes b) {
  EACH_PART a.v[i] = vmax(a.v[i], b.v[i]);
  return a;
}
INLINE lanes lexp(lanes a) {
  vexp_each(PARTS, a.v);
  return a;
}
// lexp_two is lexp of two, beside each other as far as there are registers.
INLINE void lexp_two(lanes *a) {
  if (PARTS > 2) {
    a[0] = lexp(a[0]), a[1] = lexp(a[1]);
    return;
  }
  vf v[2 * PARTS];
  EACH_PART v[i] = a[0].v[i], v[PARTS + i] = a[1].v[i];
  vexp_each(PARTS > 2 ? 4 : 2 * PARTS, v);
  EACH_PART a[0].v[i] = v[i], a[1].v[i] = v[PARTS + i];
}
typedef float v4 __attribute__((vector_size(16), aligned(4)));
typedef float v2 __attribute__((vector_size(8), aligned(4)));

// store4 writes four elements, past the caches to an aligned place if past says so: what comes back only after much else needs no room in them and is not read before it is written.
// Who has written past them calls past_done before others may read it.
#ifdef __x86_64__
INLINE void store4(const bool past, float *p, v4 a) {
  if (past) _mm_stream_ps(p, (__m128)a);
  else *(v4 *)p = a;
}
INLINE void past_done(void) { _mm_sfence(); }
#else
INLINE void store4(const bool past, float *p, v4 a) {
  (void)past;
  *(v4 *)p = a;
}
INLINE void past_done(void) {}
#endif

// The one tree: lane i with i+8, then i+4, i+2, i+1.
INLINE float lsum(lanes a) {
  float t[16];
  lstore(t, a);
  v4 s = (*(v4 *)t + *(v4 *)(t + 8)) + (*(v4 *)(t + 4) + *(v4 *)(t + 12));
  return (s[0] + s[2]) + (s[1] + s[3]);
}
INLINE float lmax1(lanes a) {
  float t[16], u[4];
  lstore(t, a);
  for (int i = 0; i < 4; i++) {
    float x = t[i] > t[i + 8] ? t[i] : t[i + 8], y = t[i + 4] > t[i + 12] ? t[i + 4] : t[i + 12];
    u[i] = x > y ? x : y;
  }
  float x = u[0] > u[2] ? u[0] : u[2], y = u[1] > u[3] ? u[1] : u[3];
  return x > y ? x : y;
}

// EACH_16 runs its body for every 16 columns of a row: at is the first, n how many there are (16, or fewer at the end).
#define EACH_16(cols) for (int64_t at = 0, n = 0; at < (cols) && (n = (cols) - at < 16 ? (cols) - at : 16, 1); at += 16)
// EACH_32 runs its body for every 32 columns from at on, as far as there are so many; EACH_16_AFTER another one for the rest.
#define EACH_32(cols) for (; at + 32 <= (cols); at += 32)
#define EACH_16_AFTER(cols) for (int64_t n; at < (cols) && (n = (cols) - at < 16 ? (cols) - at : 16, 1); at += 16)
#define LOAD(p) (n == 16 ? lload((p) + at) : lload_some((p) + at, n, 0.0f))
#define STORE(p, v) (n == 16 ? lstore((p) + at, v) : lstore_some((p) + at, v, n))
