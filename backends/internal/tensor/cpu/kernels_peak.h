// What the processor can do at most, to measure the kernels against. Included once per instruction set.

// PEAK_CHAINS is how many sums run beside each other: enough to hide the multiply-add's latency, few enough that they and the factors stay in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
enum { PEAK_CHAINS = 16 }; // of 32 registers
#else
enum { PEAK_CHAINS = 12 }; // of 16
#endif

// peak_f32 runs PEAK_STEPS × PEAK_CHAINS vector multiply-adds that nothing but the arithmetic limits. a.addr = where its result goes, so that it is not left out.
static void peak_f32(const void *job, int64_t unit, worker *w) {
  (void)unit, (void)w;
  const rows_job *j = job;
  vf s[PEAK_CHAINS], x = vset(j->x), y = vset(0.5f);
  UNROLL for (int i = 0; i < PEAK_CHAINS; i++) s[i] = vset((float)i);
  for (int k = 0; k < PEAK_STEPS; k++)
    UNROLL for (int i = 0; i < PEAK_CHAINS; i++) s[i] = vfma(s[i], y, x);
  for (int i = 1; i < PEAK_CHAINS; i++) s[0] = s[0] + s[i];
  if (s[0][0] == 12345.0f) *(float *)j->a.addr = s[0][0];
}
static void peak_bf16(const void *job, int64_t unit, worker *w) {
  (void)unit, (void)w;
  const rows_job *j = job;
  float bits[32];
  for (int i = 0; i < 32; i++) bits[i] = j->x;
  vf s[PEAK_CHAINS];
  vpair x = vpair_load(bits), y = vpair_rows(bits, 0, 1);
  UNROLL for (int i = 0; i < PEAK_CHAINS; i++) s[i] = vset((float)i);
  for (int k = 0; k < PEAK_STEPS; k++)
    UNROLL for (int i = 0; i < PEAK_CHAINS; i++) s[i] = vdot(s[i], y, x);
  for (int i = 1; i < PEAK_CHAINS; i++) s[0] = s[0] + s[i];
  if (s[0][0] == 12345.0f) *(float *)j->a.addr = s[0][0];
}
// peak_read reads 1 MiB of a; a unit is one MiB. flag: it requests what comes later, which helps some processors and hinders others.
static void peak_read(const void *job, int64_t unit, worker *w) {
  (void)w;
  const rows_job *j = job;
  const float *p = (const float *)j->a.addr + unit * (1 << 18);
  vi s[8] = {{0}};
  for (int64_t i = 0; i < 1 << 18; i += 8 * LANES) {
    if (j->flag) ASK((const char *)(p + i) + 4096);
    UNROLL for (int v = 0; v < 8; v++) s[v] |= (vi)vload(p + i + v * LANES);
  }
  for (int v = 1; v < 8; v++) s[0] |= s[v];
  if (s[0][0] == 12345) *(float *)j->b.addr = 1.0f;
}
