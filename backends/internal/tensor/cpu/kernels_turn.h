// Blocks of bfloat16 weights the other way round, by vectors. Included once per instruction set that has use for it.

// transpose_bf16 turns 16 pairs of k × 32 n into pairs of n × 32 k: 16 rows of these, or the first ones as far as somebody wants them. In units of 64 bits (two n, two k) it is a transposition; within one, the
// middle halves change places.
typedef uint64_t two_pairs __attribute__((vector_size(64)));
typedef uint16_t their_halves __attribute__((vector_size(64)));
static void transpose_bf16(const uint64_t *from, int64_t wanted, uint64_t *to) {
  UNROLL for (int k = 0; k < 16; k++) ASK(from + (16 + k) * 16), ASK(from + (16 + k) * 16 + 8); // the next block
  for (int n = 0; n < 16 && n < wanted; n += 8)
    for (int k = 0; k < 16; k += 8) { // 8 × 8 units
      two_pairs a[8], b[8];
      UNROLL for (int i = 0; i < 8; i++) {
        their_halves x;
        memcpy(&x, from + (k + i) * 16 + n, sizeof x);
        a[i] = (two_pairs)__builtin_shufflevector(x, x, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 16, 18, 17, 19, 20, 22, 21, 23, 24, 26, 25, 27, 28, 30, 29, 31);
      }
      UNROLL for (int i = 0; i < 8; i += 2) { // neighbours
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
      }
      UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int l = i; l < i + 2; l++) { // pairs of them
          a[l] = __builtin_shufflevector(b[l], b[l + 2], 0, 1, 8, 9, 4, 5, 12, 13);
          a[l + 2] = __builtin_shufflevector(b[l], b[l + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
      UNROLL for (int i = 0; i < 4; i++) { // and fours
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
      UNROLL for (int i = 0; i < 8; i++) memcpy(to + (n + i) * 16 + k, &b[i], sizeof b[i]);
    }
}
