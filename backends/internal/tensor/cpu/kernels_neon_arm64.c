// The kernels for arm64. Their arithmetic has the operations of "cpu-fma" in the same order, but arm64 decides before rounding whether a result is so small
// that it is flushed, and its NaN has another sign; so it has a name of its own.
#include "vector_neon.h"
#define ISA neon
#define ARITHMETIC "cpu-neon-2"
#include "kernels_all.h"
