// The kernels for every amd64 processor.
#include "vector_sse2.h"
#define ISA sse2
#define ARITHMETIC "cpu-sse2-1"
#include "kernels_all.h"
