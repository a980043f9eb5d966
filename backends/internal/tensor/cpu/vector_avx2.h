// Eight lanes on avx2 with fma.
#include <immintrin.h>
#include <stdint.h>
#define LANES 8
#define TILE_ROWS 6
#define TILE_VECTORS 2
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
#define vload(p) _mm256_loadu_ps((const float *)(p))
#define vstore(p, a) _mm256_storeu_ps((float *)(p), a)
#define vstore_past(p, a) _mm256_stream_ps((float *)(p), a) // past the caches; p is aligned
#define vset(a) _mm256_set1_ps(a)
#define vfma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vmax(a, b) _mm256_max_ps(a, b)
#define vmin(a, b) _mm256_min_ps(a, b)
#define vsqrt(a) _mm256_sqrt_ps(a)
#define vmask(a) ((uint32_t)_mm256_movemask_ps((vf)(a))) // a bit for each true lane
