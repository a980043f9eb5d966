// Products with bfloat16 weights on tensor cores: rows are rounded to bfloat16 once, sums are float32. An output element is a chain over the inner axis in ascending
// groups of 16, which begins with what the output holds or with zero; a group is one instruction's sum. Tile sizes change nothing in that, so one row or many, in
// any cut, give the same bits. The last group is filled up with zeros, which an instruction's sum does not see.
#include "groups.h"

enum { DEPTH_BF16 = 32, PAD = 8 }; // the inner axis in shared memory; PAD keeps the rows of one load_matrices in different banks

// A block has rows × columns outputs, divided among row_warps × column_warps warps.
template <int rows_, int columns_, int row_warps, int column_warps> struct product_shape {
  static constexpr int rows = rows_, columns = columns_, threads = 32 * row_warps * column_warps;
  static constexpr int warp_rows = rows / row_warps, warp_columns = columns / column_warps;
  static constexpr int tall = warp_rows / 16, wide = warp_columns / 8; // instructions of a warp per group of 16
  static constexpr int held = rows * DEPTH_BF16 / threads;             // elements of x that a thread brings
};

// w is used as [out][in]: inner axis in, or transposed: inner axis out.
template <class S, bool transposed> struct product_bf16 {
  static constexpr int w_rows = transposed ? DEPTH_BF16 : S::columns, w_pitch = (transposed ? S::columns : DEPTH_BF16) + PAD, x_pitch = DEPTH_BF16 + PAD;

  // fetch_weights starts copying the tile at (first column j0, place k of the inner axis) into a stage.
  INLINE void fetch_weights(bfloat16 (*to)[w_pitch], const inner_axis &of, int64_t j0) {
    constexpr int chunks = (w_pitch - PAD) / 8;
    int64_t row0 = transposed ? of.k : j0, column0 = transposed ? j0 : of.k;
    const bfloat16 *from = memory<const bfloat16>(of.w);
    for (int e = thread(); e < w_rows * chunks; e += S::threads) {
      int r = e / chunks, c = e % chunks * 8;
      bool have = row0 + r < of.out && column0 + c < of.pitch;
      copy_async(&to[r][c], have ? from + (row0 + r) * of.pitch + column0 + c : from, have);
    }
    copy_async_commit();
  }

  // fetch_rows reads the calling thread's elements of x; store_rows puts them into shared memory, rounded.
  INLINE void fetch_rows(float (&v)[S::held], const inner_axis &of, int64_t i0, int64_t rows) {
    UNROLL for (int e = 0; e < S::held; e++) {
      int64_t r = i0 + thread() / 32 + e * (S::threads / 32), c = of.k + lane();
      v[e] = r < rows && c < of.depth ? load_as_float(of.x, r * of.stride + c, of.type) : 0.0f;
    }
  }
  INLINE void store_rows(bfloat16 (*to)[x_pitch], const float (&v)[S::held]) {
    UNROLL for (int e = 0; e < S::held; e++) to[thread() / 32 + e * (S::threads / 32)][lane()] = narrow(v[e]);
  }

  INLINE void run(const product_arguments &a, bfloat16 (*xs)[S::rows][x_pitch], bfloat16 (*ws)[w_rows][w_pitch]) {
    constexpr int column_warps = S::columns / S::warp_columns;
    const block_group b = group_of_block(a, S::rows, block_x());
    int64_t i0 = b.first, j0 = block_y() * S::columns, rows = b.g.to, columns = transposed ? b.g.w.in : b.g.w.out;
    if (j0 >= columns) return;
    int row = warp() / column_warps * S::warp_rows, column = warp() % column_warps * S::warp_columns;
    int group = lane() / 4, pair = lane() % 4 * 2;
    float sum[S::tall][S::wide][4], held[S::held];
    UNROLL for (int i = 0; i < S::tall; i++)
      UNROLL for (int j = 0; j < S::wide; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          int64_t r = i0 + row + 16 * i + group + e / 2 * 8, c = j0 + column + 8 * j + pair + e % 2;
          sum[i][j][e] = a.accumulate && r < rows && c < columns ? row_of<const float>(a.y, r)[c] : 0.0f;
        }
    inner_axis next = first_axis<transposed>(a, b.g);
    int stage = 0;
    bool more = go_on<transposed>(next, 0, a, b.g);
    if (more) {
      fetch_weights(ws[0], next, j0);
      fetch_rows(held, next, i0, rows);
      store_rows(xs[0], held);
    }
    for (; more; stage ^= 1) {
      copy_async_wait<0>();
      barrier(); // this stage has arrived, and the other has been read by all
      more = go_on<transposed>(next, DEPTH_BF16, a, b.g);
      if (more) {
        fetch_weights(ws[stage ^ 1], next, j0);
        fetch_rows(held, next, i0, rows);
      }
      UNROLL for (int d = 0; d < DEPTH_BF16; d += 16) {
        unsigned left[S::tall][4], right[S::wide / 2][4];
        UNROLL for (int i = 0; i < S::tall; i++) load_matrices(left[i], &xs[stage][row + 16 * i + lane() % 16][d + lane() / 16 * 8]);
        UNROLL for (int j = 0; j < S::wide / 2; j++) { // 16 columns: two fragments of 8, each with its two halves of the group
          if constexpr (transposed) load_matrices_transposed(right[j], &ws[stage][d + lane() % 16][column + 16 * j + lane() / 16 * 8]);
          else load_matrices(right[j], &ws[stage][column + 16 * j + lane() % 8 + lane() / 16 * 8][d + lane() / 8 % 2 * 8]);
        }
        UNROLL for (int i = 0; i < S::tall; i++)
          UNROLL for (int j = 0; j < S::wide; j++) multiply_16x8x16(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
      if (more) store_rows(xs[stage ^ 1], held);
    }
    UNROLL for (int i = 0; i < S::tall; i++)
      UNROLL for (int j = 0; j < S::wide; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          int64_t r = i0 + row + 16 * i + group + e / 2 * 8, c = j0 + column + 8 * j + pair + e % 2;
          if (r < rows && c < columns) row_of<float>(a.y, r)[c] = finished(sum[i][j][e], b.g);
        }
  }
};

// The launch chooses a shape by the number of rows: few (decoding), some, many.
using few_rows = product_shape<16, 64, 1, 4>;
using some_rows = product_shape<64, 64, 2, 2>;
using many_rows = product_shape<128, 128, 2, 4>;

#define PRODUCT_BF16(name, shape, transposed) \
  KERNEL(name, shape::threads, product_arguments) { \
    using P = product_bf16<shape, transposed>; \
    SHARED(bfloat16, xs[2][shape::rows][P::x_pitch]) __attribute__((aligned(16))); \
    SHARED(bfloat16, ws[2][P::w_rows][P::w_pitch]) __attribute__((aligned(16))); \
    P::run(a, xs, ws); \
  }
PRODUCT_BF16(product_few, few_rows, false)
PRODUCT_BF16(product_some, some_rows, false)
PRODUCT_BF16(product_many, many_rows, false)
PRODUCT_BF16(product_transposed_few, few_rows, true)
PRODUCT_BF16(product_transposed_some, some_rows, true)
PRODUCT_BF16(product_transposed_many, many_rows, true)
