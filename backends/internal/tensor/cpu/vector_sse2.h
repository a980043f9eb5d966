// Four lanes on sse2, which has no fused multiply-add: this arithmetic differs from the others in its bits.
#include <immintrin.h>
#include <stdint.h>
#define LANES 4
#define TILE_ROWS 6
#define TILE_VECTORS 2
typedef __m128 vf;
typedef int32_t vi __attribute__((vector_size(16)));
#define vload(p) _mm_loadu_ps((const float *)(p))
#define vstore(p, a) _mm_storeu_ps((float *)(p), a)
#define vstore_past(p, a) _mm_stream_ps((float *)(p), a) // past the caches; p is aligned
#define vset(a) _mm_set1_ps(a)
#define vfma(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define vmax(a, b) _mm_max_ps(a, b) // a > b ? a : b
#define vmin(a, b) _mm_min_ps(a, b) // a < b ? a : b
#define vsqrt(a) _mm_sqrt_ps(a)
#define vmask(a) ((uint32_t)_mm_movemask_ps((vf)(a))) // a bit for each true lane
