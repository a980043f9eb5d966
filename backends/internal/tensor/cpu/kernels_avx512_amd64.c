// The kernels for amd64 with avx512f.
#ifdef EMULATE_AVX512
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#include "vector_avx512.h"
#define ISA avx512
#define ARITHMETIC "cpu-fma-2"
#include "kernels_all.h"
