// The kernels for amd64 with avx512f, and those where there is AMX as well, whose products of bfloat16 weights are another arithmetic.
#ifdef EMULATE_AVX512
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#include "vector_avx512.h"
#define ISA avx512
#define ARITHMETIC "cpu-fma-2"
#include "kernels_all.h"

#include "amx.h"
const kernels kernels_amx = {.isa = "amx", .arithmetic = "cpu-amx-1", .arithmetic_float32 = ARITHMETIC, .peak_bf16 = peak_amx, .peak_pairs = AMX_PEAK_PAIRS, KERNELS
                             .pack_amx = pack_amx, .matmul_amx = matmul_amx, .matmul_amx_few = matmul_amx_few,
                             .matmul_amx_transposed = matmul_amx_transposed};
