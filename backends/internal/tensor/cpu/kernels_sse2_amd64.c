// The kernels for every amd64 processor. Those without AVX2 are rare, so these are compiled with less effort: it halves their share of a first build.
#pragma GCC optimize("O2")
#include "vector_sse2.h"
#define ISA sse2
#define ARITHMETIC "cpu-sse2-2"
#include "kernels_all.h"
