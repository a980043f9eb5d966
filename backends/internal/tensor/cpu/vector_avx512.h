// Sixteen lanes on avx512f; with BF16_DOT also avx512_bf16.
#ifdef EMULATE_AVX512
#include "vector_avx512_emulated.h"
#else
#include <immintrin.h>
#endif
#include <stdint.h>
#define LANES 16
#define TILE_ROWS 12
#define TILE_VECTORS 2
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
#define vload(p) _mm512_loadu_ps((const float *)(p))
#define vstore(p, a) _mm512_storeu_ps((float *)(p), a)
#define vstore_past(p, a) _mm512_stream_ps((float *)(p), a) // past the caches; p is aligned
#define vset(a) _mm512_set1_ps(a)
#define vfma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vmax(a, b) _mm512_max_ps(a, b)
#define vmin(a, b) _mm512_min_ps(a, b)
#define vsqrt(a) _mm512_sqrt_ps(a)
#define vmask(a) ((uint32_t)_mm512_movepi32_mask((__m512i)(a))) // a bit for each true lane
