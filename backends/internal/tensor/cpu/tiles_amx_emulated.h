// The tiles of tiles_amx.h by vectors, for processors that have none: with the build tag emulate_avx512 the kernels' own text for tiles
// is compiled over these, and tested, anywhere. The bits are those of the instructions while the threads flush subnormal numbers, but for
// which NaN it is.
typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_shapes;
typedef struct {
  tile_shapes shapes;
  char rows[8][16][64];
} emulated_tiles;
static _Thread_local emulated_tiles tiles;

static void tile_shape(const tile_shapes *shapes) {
  memset(&tiles, 0, sizeof tiles);
  tiles.shapes = *shapes;
}
static void tiles_release(void) { memset(&tiles, 0, sizeof tiles); }
static void tile_zero(int t) { memset(tiles.rows[t], 0, sizeof tiles.rows[t]); }
static void tile_load(int t, const void *from, int64_t stride) {
  if (tiles.shapes.palette != 1) __builtin_trap(); // as without a shape
  tile_zero(t);
  for (int r = 0; r < tiles.shapes.rows[t]; r++) memcpy(tiles.rows[t][r], (const char *)from + r * stride, tiles.shapes.row_bytes[t]);
}
static void tile_store(int t, void *to, int64_t stride) {
  if (tiles.shapes.palette != 1) __builtin_trap();
  for (int r = 0; r < tiles.shapes.rows[t]; r++) memcpy((char *)to + r * stride, tiles.rows[t][r], tiles.shapes.row_bytes[t]);
}
// tile_dot: for every output a chain of multiply-adds over the even ones of its 32 products and one over the odd ones, each from zero;
// their sum is added to what was there.
static void tile_dot(int c, int a, int b) {
  if (tiles.shapes.palette != 1 || tiles.shapes.rows[b] != 16 || tiles.shapes.rows[a] != tiles.shapes.rows[c]) __builtin_trap();
  for (int r = 0; r < tiles.shapes.rows[c]; r++) {
    vf even = vset(0.0f), odd = vset(0.0f);
    for (int k = 0; k < 16; k++) {
      uint32_t pair;
      memcpy(&pair, tiles.rows[a][r] + 4 * k, 4);
      union { uint32_t u; float f; } low = {pair << 16}, high = {pair & 0xffff0000};
      vi columns = (vi)vload(tiles.rows[b][k]);
      even = vfma(vset(low.f), (vf)(columns << 16), even);
      odd = vfma(vset(high.f), (vf)(columns & ((vi){0} + (int32_t)0xffff0000)), odd);
    }
    vstore(tiles.rows[c][r], vload(tiles.rows[c][r]) + (even + odd));
  }
}
#define TILE_SHAPES(shapes) tile_shape(shapes)
#define TILES_RELEASE() tiles_release()
#define TILE_ZERO(t) tile_zero(t)
#define TILE_LOAD(t, from, stride) tile_load(t, from, stride)
#define TILE_STORE(t, to, stride) tile_store(t, to, stride)
#define TILE_DOT(c, a, b) tile_dot(c, a, b)
#define WAIT_FOR(v) ((void)(v))
