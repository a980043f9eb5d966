// Products with bfloat16 weights on tensor cores: rows are rounded to bfloat16 once, sums are float32. An output element is a chain over the inner axis in ascending
// groups of 16, which begins with what the output holds or with zero; a group is one instruction's sum. Tile sizes change nothing in that, so one row or many, in
// any cut, give the same bits. The last group is filled up with zeros, which an instruction's sum does not see.
//
// With few rows the time is that of reading the weights, and a multiprocessor must have some 26 KiB of them under way for that (4.8 TB/s for 700 ns, divided by 132). So tiles go round through places in shared memory that
// are copied to long before they are multiplied. Half of the warps bring the weights and the others the rows, because each thread waits for its own copies in their order: rows come from the second-level cache, need
// fewer places, and would hold the weights back.
#pragma once
#include "blocks.h"
#include "groups.h"

enum { PAD = 8 }; // keeps the rows of one load_matrices in different banks

// A block has rows × columns outputs, divided among row_warps × column_warps warps; tiles are depth places of the inner axis, and there is room for so many of x and of w.
template <int rows_, int columns_, int row_warps, int column_warps_, int depth_, int x_places_, int w_places_> struct product_shape {
  static constexpr int rows = rows_, columns = columns_, column_warps = column_warps_, threads = 32 * row_warps * column_warps, depth = depth_, x_places = x_places_, w_places = w_places_;
  static constexpr int warp_rows = rows / row_warps, warp_columns = columns / column_warps;
  static constexpr int tall = warp_rows / 16, wide = warp_columns / 8; // instructions of a warp per group of 16
  static constexpr int bringers = threads / 2;                         // of either operand
};

// How weights lie: row by row, in blocks (bulk_arguments.h), or as each axis says, because tails are row by row.
enum { BY_ROWS, IN_BLOCKS, AS_AXIS };

// w is used as [out][in]: inner axis in, or transposed: inner axis out.
template <class S, bool transposed, int lie = BY_ROWS> struct product_bf16 {
  static constexpr int w_rows = transposed ? S::depth : S::columns, w_pitch = (transposed ? S::columns : S::depth) + PAD, x_pitch = S::depth + PAD;
  static constexpr int w_size = w_rows * w_pitch, x_size = S::rows * x_pitch; // elements of a place

  // bring_chunks starts copying rows × width chunks of 8 elements from memory with so many elements from one row to the next; what lies beyond the given rows and columns becomes zero, and is not read.
  template <int rows, int width, class F> INLINE void bring_chunks(bfloat16 *to, int to_pitch, const bfloat16 *from, int64_t pitch, int have_rows, int have_columns, int me, F copy) {
    constexpr int together = width & -width, step = S::bringers / together; // threads beside each other in a row, and rows from a thread's row to its next
    static_assert(rows % step == 0, "a thread has as many as another");
    const int column = me % together * 8;
    from += me / together * pitch + column, to += me / together * to_pitch + column, have_rows -= me / together, have_columns -= column;
    UNROLL for (int i = 0; i < rows / step; i++) {
      UNROLL for (int j = 0; j < width / together; j++) copy(to + i * step * to_pitch + 8 * j * together, from + 8 * j * together, i * step < have_rows && 8 * j * together < have_columns);
      from += step * pitch;
    }
  }

  // bring_blocks is bring_chunks of a weight in blocks, from a row and a column on.
  template <int rows, int width> INLINE void bring_blocks(bfloat16 *to, const inner_axis &of, unsigned row, unsigned column, int me) {
    constexpr int together = width & -width, step = S::bringers / together;
    const int64_t strip = of.pitch / BLOCK_SIDE * BLOCK_BYTES; // bytes of 64 rows
    row += me / together, column += me % together * 8, to += me / together * w_pitch + me % together * 8;
    UNROLL for (int j = 0; j < width / together; j++) {
      const unsigned c = column + 8 * j * together;
      const unsigned char *from = memory<const unsigned char>(of.w) + (int64_t)(c / BLOCK_SIDE) * BLOCK_BYTES;
      UNROLL for (int i = 0; i < rows / step; i++) {
        const unsigned r = row + i * step;
        const bool wanted = r < (unsigned)of.out && c < (unsigned)of.pitch;
        const int64_t at = (r / BLOCK_SIDE) * strip + (r % BLOCK_SIDE * BLOCK_SIDE + (c / 8 % 8 ^ (r & 7)) * 8) * (unsigned)sizeof(bfloat16);
        copy_async_streamed(to + i * step * w_pitch + 8 * j * together, wanted ? from + at : from, wanted);
      }
    }
  }

  // ask_for_weights asks for the tiles that the block brings first, of columns from j0 on: those that it has places for. A thread asks for a row of them or,
  // in blocks, for 32 rows of a tile, which lie one after another.
  INLINE void ask_for_weights(const product_arguments &a, int64_t j0) {
    const weight &w = a.only.w;
    if constexpr (lie == BY_ROWS) {
      static_assert(S::columns <= S::threads, "each row has a thread");
      constexpr int most = S::w_places * S::depth;
      const int64_t row = j0 + thread();
      const bool frozen = a.frozen, own = thread() < S::columns, there = row < w.out; // and no condition among them: that would be a branch
      const unsigned along = (unsigned)(w.pitch < most ? w.pitch : most);
      ask_early(memory<const bfloat16>(w.at) + row * w.pitch, along * (unsigned)sizeof(bfloat16), frozen & own & there);
    } else ask_for_blocks<S::columns, S::w_places>(w, j0, a.frozen);
  }

  // bring_weights starts copying the tile at (first column j0, place k of the inner axis).
  INLINE void bring_weights(bfloat16 *to, const inner_axis &of, int64_t j0, int me) {
    const int row = transposed ? of.k : (int)j0, column = transposed ? (int)j0 : of.k;
    if (lie == IN_BLOCKS || (lie == AS_AXIS && of.blocks)) return bring_blocks<w_rows, (w_pitch - PAD) / 8>(to, of, row, column, me);
    bring_chunks<w_rows, (w_pitch - PAD) / 8>(to, w_pitch, memory<const bfloat16>(of.w) + row * of.pitch + column, of.pitch, of.out - row, (int)of.pitch - column, me,
                                              [](bfloat16 *to, const bfloat16 *from, bool wanted) { copy_async_streamed(to, from, wanted); });
  }

  // bring_rows starts copying the tile of x from row i0 on or, where that is not bfloat16 in whole chunks of 16 bytes, has it there rounded when it returns.
  INLINE void bring_rows(bfloat16 *to, const inner_axis &of, int64_t i0, int64_t rows, int me) {
    if (of.type == BFLOAT16 && (of.x | (uint64_t)of.stride << 1) % 16 == 0 && of.depth % 8 == 0) {
      bring_chunks<S::rows, S::depth / 8>(to, x_pitch, memory<const bfloat16>(of.x) + i0 * of.stride + of.k, of.stride, (int)(rows - i0), of.depth - of.k, me,
                                          [](bfloat16 *to, const bfloat16 *from, bool wanted) { copy_async(to, from, wanted); });
      return;
    }
    bring_rounded(to, of, rows - i0, me, [=](int r) { return i0 + r; });
  }

  // bring_rounded has a tile of x there, rounded, when it returns: so many rows at most, row r of the tile from row place(r) of x.
  template <class R> INLINE void bring_rounded(bfloat16 *to, const inner_axis &of, int64_t rows, int me, R place) {
    const bool fours = of.x % (of.type == FLOAT32 ? 16 : 8) == 0 && of.stride % 4 == 0;
    UNROLL_2 for (int e = 4 * me; e < S::rows * S::depth; e += 4 * S::bringers) {
      int r = e / S::depth, c = e % S::depth;
      const int64_t at = r < rows ? place(r) * of.stride + of.k + c : 0;
      floats<4> v;
      if (fours && r < rows && of.k + c + 4 <= of.depth) v = load_some<4>(of.x, at, of.type);
      else
        UNROLL for (int i = 0; i < 4; i++) v.v[i] = r < rows && of.k + c + i < of.depth ? load_as_float(of.x, at + i, of.type) : 0.0f;
      bfloat16s<4> narrowed;
      UNROLL for (int i = 0; i < 4; i++) narrowed.v[i] = narrow(v.v[i]);
      *(bfloat16s<4> *)(to + r * x_pitch + c) = narrowed;
    }
  }

  // A group's fragments of the calling warp; one of w is 16 columns: two of 8, each with its two halves of the group.
  struct fragments {
    unsigned left[S::tall][4], right[S::wide / 2][4];
  };
  INLINE void load_group(fragments &f, const bfloat16 *xs, const bfloat16 *ws, int row, int column, int d) {
    UNROLL for (int i = 0; i < S::tall; i++) load_matrices(f.left[i], xs + (row + 16 * i + lane() % 16) * x_pitch + d + lane() / 16 * 8);
    UNROLL for (int j = 0; j < S::wide / 2; j++) {
      if constexpr (transposed) load_matrices_transposed(f.right[j], ws + (d + lane() % 16) * w_pitch + column + 16 * j + lane() / 16 * 8);
      else load_matrices(f.right[j], ws + (column + 16 * j + lane() % 8 + lane() / 16 * 8) * w_pitch + d + lane() / 8 % 2 * 8);
    }
  }
  INLINE void multiply_group(float (&sum)[S::tall][S::wide][4], const fragments &f) {
    UNROLL for (int i = 0; i < S::tall; i++)
      UNROLL for (int j = 0; j < S::wide; j++) multiply_16x8x16(sum[i][j], f.left[i], f.right[j / 2][j % 2 * 2], f.right[j / 2][j % 2 * 2 + 1]);
  }

  // begin_sums gives what the chains of the calling warp's outputs begin with; the first of these is at row r0 and column c0. store_sums writes them, as finish gives them.
  INLINE void begin_sums(float (&sum)[S::tall][S::wide][4], const view &y, bool accumulate, int64_t r0, int64_t rows, int64_t c0, int64_t columns) {
    UNROLL for (int i = 0; i < S::tall; i++)
      UNROLL for (int j = 0; j < S::wide; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          int64_t r = r0 + 16 * i + lane() / 4 + e / 2 * 8, c = c0 + 8 * j + lane() % 4 * 2 + e % 2;
          sum[i][j][e] = accumulate && r < rows && c < columns ? row_of<const float>(y, r)[c] : 0.0f;
        }
  }
  template <class F> INLINE void store_sums(const float (&sum)[S::tall][S::wide][4], const view &y, int64_t r0, int64_t rows, int64_t c0, int64_t columns, F finish) {
    UNROLL for (int i = 0; i < S::tall; i++)
      UNROLL for (int j = 0; j < S::wide; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          int64_t r = r0 + 16 * i + lane() / 4 + e / 2 * 8, c = c0 + 8 * j + lane() % 4 * 2 + e % 2;
          if (r < rows && c < columns) row_of<float>(y, r)[c] = finish(sum[i][j][e]);
        }
  }

  // tile has the block's outputs of y: rows [i0, rows) and columns [j0, columns), as many as are there. The inner axis begins at next, has so many tiles, and goes on as go_on says, beginning with 0 places; bring_x has a tile of x copied, or there when
  // it returns, and finish gives an element of y, of the chain's value.
  template <class G, class B, class F> INLINE void tile(const view &y, bool accumulate, int64_t i0, int64_t rows, int64_t j0, int64_t columns, inner_axis next, int tiles, G go_on, B bring_x, F finish) {
    DYNAMIC_SHARED(bfloat16, room);
    bfloat16 *xs = room, *ws = room + S::x_places * x_size;
    int row = warp() / S::column_warps * S::warp_rows, column = warp() % S::column_warps * S::warp_columns;
    const bool weights = warp() < S::bringers / 32; // what the calling thread brings
    const int me = weights ? thread() : thread() - S::bringers, places = weights ? S::w_places : S::x_places;
    bool more = go_on(next, 0);
    int there = 0; // the place of the tile that is brought next
    auto bring = [&]() __attribute__((always_inline)) {
      if (more) {
        if (weights) bring_weights(ws + there * w_size, next, j0, me);
        else bring_x(xs + there * x_size, next, me);
        more = go_on(next, S::depth);
      }
      copy_async_commit();
      there = there + 1 == places ? 0 : there + 1;
    };
    for (int t = 1; t < places; t++) bring();

    float sum[S::tall][S::wide][4];
    begin_sums(sum, y, accumulate, i0 + row, rows, j0 + column, columns);
    int x_here = 0, w_here = 0; // the places of the tile that is multiplied
    for (; tiles > 0; tiles--) {
      if (weights) copy_async_wait<S::w_places - 2>();
      else copy_async_wait<S::x_places - 2>();
      barrier(); // this tile has arrived, and the one before it, whose place is the next one's, has been read by all
      bring();
      const bfloat16 *x = xs + x_here * x_size, *w = ws + w_here * w_size;
      fragments even, odd; // those of a group are loaded while the one before is multiplied
      load_group(even, x, w, row, column, 0);
      UNROLL for (int d = 0; d < S::depth; d += 32) {
        load_group(odd, x, w, row, column, d + 16);
        multiply_group(sum, even);
        if (d + 32 < S::depth) load_group(even, x, w, row, column, d + 32);
        multiply_group(sum, odd);
      }
      x_here = x_here + 1 == S::x_places ? 0 : x_here + 1, w_here = w_here + 1 == S::w_places ? 0 : w_here + 1;
    }
    store_sums(sum, y, i0 + row, rows, j0 + column, columns, finish);
  }
};

// asks_early says whether a kernel asks for its first weights before it waits for the launch before it: those of few rows do, as decoding has them.
template <class S, bool transposed> INLINE constexpr bool asks_early() { return !transposed && S::rows <= 64; }

// product_of_tiles has the tile of the calling block, of the product of a launch that it works for.
template <class S, bool transposed, int lie = BY_ROWS> INLINE void product_of_tiles(const products_arguments &all) {
  using P = product_bf16<S, transposed, lie>;
  const block_product own = product_of_block(all);
  const product_arguments &a = all.of[own.product];
  if constexpr (asks_early<S, transposed>()) {
    P::ask_for_weights(a, own.across * S::columns);
    wait_for_launch();
  }
  const block_group b = group_of_block(a, S::rows, own.down);
  int64_t i0 = b.first, j0 = own.across * S::columns, rows = b.g.to, columns = transposed ? b.g.w.in : b.g.w.out;
  if (j0 >= columns) return;
  inner_axis first = first_axis<transposed>(a, b.g);
  first.blocks = lie == AS_AXIS;
  int tiles = (first.depth + S::depth - 1) / S::depth; // that are to be multiplied
  if (!first.last) tiles += ((int)(transposed ? b.g.tail.out : b.g.tail.in) + S::depth - 1) / S::depth;
  P::tile(a.y, a.accumulate, i0, rows, j0, columns, first, tiles, [&](inner_axis &of, int places) { return go_on<transposed>(of, places, a, b.g); },
          [&](bfloat16 *to, const inner_axis &of, int me) { P::bring_rows(to, of, i0, rows, me); }, [&](float v) { return finished(v, b.g); });
}
