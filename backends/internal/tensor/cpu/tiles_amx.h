// The tiles of a thread: eight registers of up to 16 rows of 64 bytes. The compiler's own names for these instructions do not tell it
// that they read and write memory.
typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_shapes;
#define TILE_SHAPES(shapes) __asm__ volatile("ldtilecfg %0" ::"m"(*(shapes)))
#define TILES_RELEASE() __asm__ volatile("tilerelease" ::)
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
// WAIT_FOR has the compiler keep what a vector is made of.
#define WAIT_FOR(v) __asm__ volatile("" ::"v"(v))
