// The kernels for amd64 with avx2 and fma.
#pragma GCC target("avx2,fma")
#include "vector_avx2.h"
#define ISA avx2
#define ARITHMETIC "cpu-fma-2"
#include "kernels_all.h"
