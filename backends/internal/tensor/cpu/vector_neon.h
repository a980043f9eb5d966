// Four lanes on NEON, which always has fma.
#include <arm_neon.h>
#include <stdint.h>
#define LANES 4
#define TILE_ROWS 6
#define TILE_VECTORS 4
typedef float32x4_t vf;
typedef int32_t vi __attribute__((vector_size(16)));
#define vload(p) vld1q_f32((const float *)(p))
#define vstore(p, a) vst1q_f32((float *)(p), a)
#define vstore_past(p, a) vstore(p, a) // a processor of this kind sees by itself what is written straight on
#define vset(a) vdupq_n_f32(a)
#define vfma(a, b, c) vfmaq_f32(c, a, b)
#define vmax(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define vmin(a, b) vbslq_f32(vcltq_f32(a, b), a, b)
#define vsqrt(a) vsqrtq_f32(a)
#define vmask(a) vaddvq_u32(vandq_u32((uint32x4_t)(a), (uint32x4_t){1, 2, 4, 8})) // a bit for each true lane
