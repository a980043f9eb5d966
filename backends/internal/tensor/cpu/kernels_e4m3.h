// Steps of weights of eight bits as the pairs of bfloat16 that they stand for (e4m3.c says how). Included once per instruction set.
//
// A step has, for each four columns c … c+3 of the first half of a panel, the eight numbers of these, two of each column, and then those of columns c+16 … c+19, so that a vector of numbers interleaved with another one, by
// parts of sixteen bytes, is columns in their order.

#if LANES >= 8
#define NUMBERS_AVX2(t, q, lo, hi)                                                                                                      \
  do {                                                                                                                                  \
    const __m256i plain_ = _mm256_setzero_si256();                                                                                      \
    __m256i at_ = _mm256_or_si256(_mm256_and_si256(q, _mm256_set1_epi8(7)), _mm256_set1_epi8(8));                                       \
    at_ = _mm256_min_epu8(at_, _mm256_and_si256(q, _mm256_set1_epi8(0x7f)));                                                            \
    __m256i low_ = _mm256_shuffle_epi8((t).low, at_), high_ = _mm256_shuffle_epi8((t).high, at_), own_ = _mm256_set1_epi16((short)0x8780); \
    lo = _mm256_add_epi16(_mm256_unpacklo_epi8(low_, high_), _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(plain_, q), 4), own_)); \
    hi = _mm256_add_epi16(_mm256_unpackhi_epi8(low_, high_), _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(plain_, q), 4), own_)); \
  } while (0)
#endif

#if LANES == 16 && !defined(EMULATE_AVX512)
typedef struct {
  __m512i low, high; // bytes of the sixteen products, in each sixteen bytes
} e4m3_products;
INLINE e4m3_products e4m3_products_at(const char *line) {
  return (e4m3_products){_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)line)), _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(line + 16)))};
}
INLINE void e4m3_words(e4m3_products t, __m512i q, __m512i *lo, __m512i *hi) {
  const __m512i zero = _mm512_setzero_si512(), own = _mm512_set1_epi16((short)0x8780); // own: sign and exponent
  __m512i at = _mm512_min_epu8(_mm512_or_si512(_mm512_and_si512(q, _mm512_set1_epi8(7)), _mm512_set1_epi8(8)), _mm512_and_si512(q, _mm512_set1_epi8(0x7f)));
  __m512i low = _mm512_shuffle_epi8(t.low, at), high = _mm512_shuffle_epi8(t.high, at);
  *lo = _mm512_add_epi16(_mm512_unpacklo_epi8(low, high), _mm512_and_si512(_mm512_srai_epi16(_mm512_unpacklo_epi8(zero, q), 4), own));
  *hi = _mm512_add_epi16(_mm512_unpackhi_epi8(low, high), _mm512_and_si512(_mm512_srai_epi16(_mm512_unpackhi_epi8(zero, q), 4), own));
}
// e4m3_step gives the pairs of a step, column after column.
INLINE void e4m3_step(e4m3_products t, const char *step, vf *x) {
  __m512i lo, hi;
  e4m3_words(t, _mm512_loadu_si512(step), &lo, &hi);
  x[0] = (vf)lo, x[1] = (vf)hi;
}

// Where bytes are permuted across two vectors (avx512vbmi), those of all numbers but their sign are looked up. The instruction is written as such, because it is the only one of its set.
#define PERMUTES_BYTES
typedef struct {
  __m512i low[2], high[2]; // bytes of what each number without its sign is
} e4m3_numbers;
INLINE e4m3_numbers e4m3_numbers_at(const char *line) {
  const e4m3_products t = e4m3_products_at(line);
  const __m512i byte = _mm512_set1_epi16(0xff);
  e4m3_numbers n;
  for (int i = 0; i < 2; i++) {
    char codes[64];
    for (int k = 0; k < 64; k++) codes[k] = (char)(64 * i + k);
    __m512i lo, hi;
    e4m3_words(t, _mm512_loadu_si512(codes), &lo, &hi);
    n.low[i] = _mm512_packus_epi16(_mm512_and_si512(lo, byte), _mm512_and_si512(hi, byte));
    n.high[i] = _mm512_packus_epi16(_mm512_srli_epi16(lo, 8), _mm512_srli_epi16(hi, 8));
  }
  return n;
}
INLINE void e4m3_look_up(e4m3_numbers n, const char *step, vf *x) {
  __m512i q = _mm512_loadu_si512(step), low = q, high = q;
  __asm__("vpermi2b %2, %1, %0" : "+v"(low) : "v"(n.low[0]), "v"(n.low[1]));
  __asm__("vpermi2b %2, %1, %0" : "+v"(high) : "v"(n.high[0]), "v"(n.high[1]));
  high = _mm512_ternarylogic_epi32(high, q, _mm512_set1_epi8((char)0x80), 0x78); // high ^ (q & sign)
  x[0] = (vf)_mm512_unpacklo_epi8(low, high), x[1] = (vf)_mm512_unpackhi_epi8(low, high);
}
#elif LANES >= 8
typedef struct {
  __m256i low, high;
} e4m3_products;
INLINE e4m3_products e4m3_products_at(const char *line) {
  return (e4m3_products){_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)line)), _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(line + 16)))};
}
INLINE void e4m3_step(e4m3_products t, const char *step, vf *x) {
  __m256i words[4]; // of eight columns each
  for (int i = 0; i < 2; i++) {
    __m256i q = _mm256_loadu_si256((const __m256i *)(step + 32 * i));
    NUMBERS_AVX2(t, q, words[i], words[2 + i]);
  }
  memcpy(x, words, sizeof words);
}
#elif defined(__ARM_NEON)
typedef struct {
  uint8x16_t low, high;
} e4m3_products;
INLINE e4m3_products e4m3_products_at(const char *line) { return (e4m3_products){vld1q_u8((const uint8_t *)line), vld1q_u8((const uint8_t *)line + 16)}; }
INLINE void e4m3_step(e4m3_products t, const char *step, vf *x) {
  for (int i = 0; i < 4; i++) {
    uint8x16_t q = vld1q_u8((const uint8_t *)step + 16 * i), zero = vdupq_n_u8(0);
    uint8x16_t at = vminq_u8(vorrq_u8(vandq_u8(q, vdupq_n_u8(7)), vdupq_n_u8(8)), vandq_u8(q, vdupq_n_u8(0x7f)));
    uint8x16_t low = vqtbl1q_u8(t.low, at), high = vqtbl1q_u8(t.high, at);
    int16x8_t own = vdupq_n_s16((int16_t)0x8780);
    x[i] = (vf)vaddq_s16((int16x8_t)vzip1q_u8(low, high), vandq_s16(vshrq_n_s16((int16x8_t)vzip1q_u8(zero, q), 4), own));
    x[4 + i] = (vf)vaddq_s16((int16x8_t)vzip2q_u8(low, high), vandq_s16(vshrq_n_s16((int16x8_t)vzip2q_u8(zero, q), 4), own));
  }
}
#else
typedef struct {
  const uint8_t *line;
} e4m3_products;
INLINE e4m3_products e4m3_products_at(const char *line) { return (e4m3_products){(const uint8_t *)line}; }
INLINE void e4m3_step(e4m3_products t, const char *step, vf *x) {
  uint16_t words[2 * PANEL];
  for (int i = 0; i < 2 * PANEL; i++) {
    uint8_t q = (uint8_t)step[i];
    int at = (q & 7) | (q & 0x78 ? 8 : 0);
    words[i / 16 * 8 + i / 8 % 2 * PANEL + i % 8] = (uint16_t)((t.line[at] | t.line[16 + at] << 8) + ((q & 0x78) << 4) + ((q & 0x80) << 8));
  }
  memcpy(x, words, sizeof words);
}
#endif

#ifndef PERMUTES_BYTES
typedef e4m3_products e4m3_numbers;
#define e4m3_numbers_at(line) e4m3_products_at(line)
#define e4m3_look_up(n, step, x) e4m3_step(n, step, x)
#endif
enum { LOOKED_UP = E4M3 + 1 }; // the type of weights of eight bits for kernels that permute bytes

// expand_e4m3 writes n steps of a panel, from step k on, as those of bfloat16.
INLINE void expand_steps(const char *line, const char *from, int64_t n, float *to, const bool look_up) {
  e4m3_products t = {0};
  e4m3_numbers numbers = {0};
  if (look_up) numbers = e4m3_numbers_at(line);
  else t = e4m3_products_at(line);
  for (int64_t i = 0; i < n; i++, from += E4M3_STEP, to += PANEL) {
    vf x[PANEL / LANES];
    ASK(from + 2048); // so that memory works meanwhile
    if (look_up) e4m3_look_up(numbers, from, x);
    else e4m3_step(t, from, x);
    UNROLL for (int v = 0; v < PANEL / LANES; v++) vstore(to + v * LANES, x[v]);
  }
}
static void expand_e4m3(matrix w, int64_t panel, int64_t k, int64_t n, float *to, bool permutes_bytes) {
  const int64_t group = w.columns / 2;
  for (int64_t end = k + n, some; k < end; k += some, to += some * PANEL) {
    some = group - k % group;
    if (some > end - k) some = end - k;
    const char *line = weights_at(w, panel, k - k % group), *from = line + (1 + k % group) * E4M3_STEP;
    if (permutes_bytes) expand_steps(line, from, some, to, true);
    else expand_steps(line, from, some, to, false);
  }
}
