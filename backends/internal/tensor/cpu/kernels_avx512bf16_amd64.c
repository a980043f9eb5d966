// The kernels for amd64 with avx512_bf16: only products of bfloat16 differ from avx512, in speed and not in bits.
#ifdef EMULATE_AVX512
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")
#endif
#include "vector_avx512.h"
#define BF16_DOT
#define ISA avx512bf16
#define ARITHMETIC "cpu-fma-2"
#include "kernels_all.h"
