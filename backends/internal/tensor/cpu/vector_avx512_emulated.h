// What vector_avx512.h and the products of bfloat16 pairs need of avx512, by the halves that avx2 has, for processors that do not have it: with the build tag emulate_avx512 the kernels' own text for
// avx512 is compiled over these, and tested, anywhere. It is slow. The bits are those of the instructions but for pairs' subnormal products, which vdpbf16ps takes as zero and these do as well
// while the threads flush subnormal numbers.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef float emulated_floats __attribute__((vector_size(64)));
typedef int32_t emulated_words __attribute__((vector_size(64)));
typedef uint16_t emulated_halves __attribute__((vector_size(64)));
#define __m512 emulated_floats
#define __m512i emulated_words
#define __m512bh emulated_words
#define EMULATED static inline __attribute__((always_inline))

EMULATED __m512 emulated_load(const void *p) {
  __m512 a;
  memcpy(&a, p, sizeof a);
  return a;
}
EMULATED void emulated_store(void *p, __m512 a) { memcpy(p, &a, sizeof a); }
EMULATED void emulated_stream(float *p, __m512 a) { // p is aligned to 64 bytes, as the instruction demands
  __m256 half[2];
  memcpy(half, &a, sizeof a);
  if ((uintptr_t)p % 64) __builtin_trap();
  _mm256_stream_ps(p, half[0]), _mm256_stream_ps(p + 8, half[1]);
}
// A function of two or three vectors, by the halves that avx2 has.
typedef union {
  __m512 whole;
  __m256 half[2];
} emulated_two;
EMULATED __m512 emulated_set(float a) { // not by arithmetic: it may be a pair of bfloat16
  emulated_two r = {.half = {_mm256_set1_ps(a), _mm256_set1_ps(a)}};
  return r.whole;
}
#define HALVES(call) (r.half[0] = call(0), r.half[1] = call(1), r.whole)
EMULATED __m512 emulated_fma(__m512 a, __m512 b, __m512 c) {
  emulated_two x = {a}, y = {b}, z = {c}, r;
#define HALF(i) _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i])
  return HALVES(HALF);
#undef HALF
}
EMULATED __m512 emulated_max(__m512 a, __m512 b) {
  emulated_two x = {a}, y = {b}, r;
#define HALF(i) _mm256_max_ps(x.half[i], y.half[i])
  return HALVES(HALF);
#undef HALF
}
EMULATED __m512 emulated_min(__m512 a, __m512 b) {
  emulated_two x = {a}, y = {b}, r;
#define HALF(i) _mm256_min_ps(x.half[i], y.half[i])
  return HALVES(HALF);
#undef HALF
}
EMULATED __m512 emulated_sqrt(__m512 a) {
  emulated_two x = {a}, r;
#define HALF(i) _mm256_sqrt_ps(x.half[i])
  return HALVES(HALF);
#undef HALF
}
EMULATED uint32_t emulated_mask(__m512i a) {
  emulated_two x = {(__m512)a};
  return (uint32_t)_mm256_movemask_ps(x.half[0]) | (uint32_t)_mm256_movemask_ps(x.half[1]) << 8;
}
EMULATED __m512 emulated_dot(__m512 c, __m512bh a, __m512bh b) { // odd elements first, and each product rounded with its sum
  const __m512i high = (__m512i){0} + (int32_t)0xffff0000;
  c = emulated_fma((__m512)(a & high), (__m512)(b & high), c);
  return emulated_fma((__m512)(a << 16), (__m512)(b << 16), c);
}
EMULATED __m512i emulated_permute(__m512i a, __m512i indices, __m512i b) {
  uint16_t from[64], which[32], to[32];
  memcpy(from, &a, 64), memcpy(from + 32, &b, 64), memcpy(which, &indices, 64);
  for (int l = 0; l < 32; l++) to[l] = from[which[l] & 63];
  __m512i r;
  memcpy(&r, to, 64);
  return r;
}

#define _mm512_loadu_ps(p) emulated_load(p)
#define _mm512_storeu_ps(p, a) emulated_store(p, a)
#define _mm512_stream_ps(p, a) emulated_stream(p, a)
#define _mm512_set1_ps(a) emulated_set(a)
#define _mm512_fmadd_ps(a, b, c) emulated_fma(a, b, c)
#define _mm512_max_ps(a, b) emulated_max(a, b)
#define _mm512_min_ps(a, b) emulated_min(a, b)
#define _mm512_sqrt_ps(a) emulated_sqrt(a)
#define _mm512_movepi32_mask(a) emulated_mask(a)
#define _mm512_loadu_si512(p) ((__m512i)emulated_load(p))
#define _mm512_storeu_si512(p, a) emulated_store(p, (__m512)(a))
#define _mm512_set1_epi32(a) ((__m512i){0} + (int32_t)(a))
#define _mm512_set1_epi16(a) ((__m512i)((emulated_halves){0} + (uint16_t)(a)))
#define _mm512_add_epi16(a, b) ((__m512i)((emulated_halves)(a) + (emulated_halves)(b)))
#define _mm512_permutex2var_epi16(a, indices, b) emulated_permute(a, indices, b)
#define _mm512_dpbf16_ps(c, a, b) emulated_dot(c, a, b)
