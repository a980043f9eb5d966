// Products with bfloat16 weights by warpgroups, for many rows on Hopper. They are a module of their own: a device goes on with the products of product_bfloat16.cu where this one cannot be
// loaded, or gives other bits (the device's self-check).
//
// The arithmetic is that of product_bfloat16.cu: an output element is one chain over the inner axis in ascending groups of 16, which begins with what the output holds or with zero, and a group is one
// instruction's sum. Rows have been rounded to bfloat16 before, once for all blocks.
//
// A block has 128 rows, two warpgroups of 64 each. Tiles of 64 places of the inner axis go round through shared memory: while the tensor cores work on one, the tiles after it are on their way, and the one before it is
// being left. A tile's place is copied to again when both warpgroups have passed the barrier of the next but one tile, which they reach when their products with this one are done; the copies begin behind the products of that tile.
#include "groups.h"
#include "warpgroup.h"

enum { GROUP_THREADS = 256, GROUP_ROWS = 128, GROUP_DEPTH = 64 };

template <int columns, int places, bool transposed> struct group_product {
  static constexpr int x_bytes = GROUP_ROWS * SWIZZLE_ROW, w_bytes = columns * SWIZZLE_ROW, place_bytes = x_bytes + w_bytes;
  static constexpr int ahead = places - 2; // tiles that are under way while one is multiplied

  // fetch starts copying rows of width chunks of 8 elements. Chunk c of a row goes to row r of its block of 64 elements; what lies beyond the given rows and columns becomes zero, and is not read. A thread has the same chunk of
  // rows that are a multiple of 8 apart, so each lies as the first does in its pattern.
  template <int rows, int width> INLINE void fetch(unsigned char *to, const bfloat16 *from, int64_t pitch, int have_rows, int have_columns) {
    constexpr int step = GROUP_THREADS / width;
    static_assert(step % 8 == 0 && rows % step == 0, "a thread has as many as another");
    const int row = thread() / width, chunk = thread() % width;
    const int have = 8 * chunk < have_columns ? have_rows - row : 0;
    from += row * pitch + 8 * chunk, to += chunk / 8 * (rows * SWIZZLE_ROW) + swizzled(row, chunk % 8);
    UNROLL for (int i = 0; i < rows / step; i++) {
      copy_async(to + i * step * SWIZZLE_ROW, from, i * step < have);
      from += step * pitch;
    }
  }

  // fetch_tile starts copying the tiles at a place of the inner axis: of x from row i0 on, of w for the columns from j0 on.
  INLINE void fetch_tile(unsigned char *to, const inner_axis &of, int64_t i0, int64_t j0, int64_t rows) {
    fetch<GROUP_ROWS, GROUP_DEPTH / 8>(to, memory<const bfloat16>(of.x) + i0 * of.stride + of.k, of.stride, (int)(rows - i0), of.depth - of.k);
    const bfloat16 *from = memory<const bfloat16>(of.w);
    if constexpr (transposed) fetch<GROUP_DEPTH, columns / 8>(to + x_bytes, from + of.k * of.pitch + j0, of.pitch, of.out - of.k, (int)(of.pitch - j0));
    else fetch<columns, GROUP_DEPTH / 8>(to + x_bytes, from + j0 * of.pitch + of.k, of.pitch, of.out - (int)j0, (int)of.pitch - of.k);
  }

  // A lane's sums 4j + 2h + e are elements 8j + e from at on, of which the output has those below have.
  struct results {
    float *at;
    int have;
  };
  INLINE results results_of(const product_arguments &a, int64_t i0, int64_t j0, int h, int64_t rows, int64_t outputs) {
    int64_t row = i0 + 16 * warp() + lane() / 4 + 8 * h, column = j0 + lane() % 4 * 2;
    return {row_of<float>(a.y, row) + column, row < rows ? (int)(outputs - column < columns ? outputs - column : columns) : 0};
  }

  template <bool factor> INLINE void store(const float (&sum)[columns / 2], const product_arguments &a, const row_group &g, int64_t i0, int64_t j0, int64_t rows, int64_t outputs) {
    const bool pairs = (a.y.at | (uint64_t)a.y.stride * sizeof(float)) % 8 == 0;
    UNROLL for (int h = 0; h < 2; h++) {
      const results y = results_of(a, i0, j0, h, rows, outputs);
      UNROLL for (int j = 0; j < columns / 8; j++) {
        float first = sum[4 * j + 2 * h], second = sum[4 * j + 2 * h + 1];
        if constexpr (factor) first = finished(first, g), second = finished(second, g);
        if (pairs && 8 * j + 1 < y.have) store_two(y.at + 8 * j, first, second);
        else {
          if (8 * j < y.have) y.at[8 * j] = first;
          if (8 * j + 1 < y.have) y.at[8 * j + 1] = second;
        }
      }
    }
  }

  INLINE void run(const product_arguments &a) {
    DYNAMIC_SHARED(unsigned char, room);
    unsigned char *place = round_up(room);
    // Blocks that run at the same time are of few rows and few columns, so that their tiles are read once from memory: strips of some tiles of rows, column by column.
    constexpr int64_t STRIP = 16;
    int64_t number = block_y() * blocks_x() + block_x(), strip = number / (STRIP * blocks_y()) * STRIP, tall = blocks_x() - strip < STRIP ? blocks_x() - strip : STRIP;
    number -= strip * blocks_y();
    const block_group b = group_of_block(a, GROUP_ROWS, strip + number % tall);
    int64_t i0 = b.first, j0 = number / tall * columns, rows = b.g.to, outputs = transposed ? b.g.w.in : b.g.w.out;
    if (j0 >= outputs) return;

    float sum[columns / 2];
    UNROLL for (int h = 0; h < 2; h++) {
      const results y = results_of(a, i0, j0, h, rows, outputs);
      UNROLL for (int j = 0; j < columns / 8; j++)
        UNROLL for (int e = 0; e < 2; e++) sum[4 * j + 2 * h + e] = a.accumulate && 8 * j + e < y.have ? y.at[8 * j + e] : 0.0f;
    }
    inner_axis next = first_axis<transposed>(a, b.g);
    bool more = go_on<transposed>(next, 0, a, b.g);
    int waiting = 0; // tiles that have been fetched, or are under way, and have not been multiplied
    UNROLL for (int t = 0; t < ahead; t++) {
      if (more) {
        fetch_tile(place + t * place_bytes, next, i0, j0, rows);
        more = go_on<transposed>(next, GROUP_DEPTH, a, b.g);
        waiting++;
      }
      copy_async_commit();
    }
    int here = 0, there = ahead; // the places of the tile that is multiplied and of the one that is fetched
    for (; waiting > 0; waiting--) {
      copy_async_wait<ahead - 1>(); // the calling thread's part of the tile has arrived
      publish();
      barrier(); // all of it; and all products with the tile before the last are done
      const unsigned char *at = place + here * place_bytes;
      const shared_matrix left = along_rows(at + warp() / 4 * (64 * SWIZZLE_ROW)), right = transposed ? down_rows(at + x_bytes, GROUP_DEPTH * SWIZZLE_ROW) : along_rows(at + x_bytes);
      begin_products();
      UNROLL for (int d = 0; d < GROUP_DEPTH / 16; d++) multiply_group<transposed>(sum, further(left, 32 * d), further(right, d * (transposed ? 16 * SWIZZLE_ROW : 32)));
      end_products();
      if (more) { // the threads compute addresses while the tensor cores are at work
        fetch_tile(place + there * place_bytes, next, i0, j0, rows);
        more = go_on<transposed>(next, GROUP_DEPTH, a, b.g);
        waiting++;
      }
      copy_async_commit();
      wait_for_products<1>();
      here = here + 1 == places ? 0 : here + 1, there = there + 1 == places ? 0 : there + 1;
    }
    finish_products(sum);
    i0 = fresh(i0), j0 = fresh(j0);
    if (b.g.factor != 0.0f) store<true>(sum, a, b.g, i0, j0, rows, outputs);
    else store<false>(sum, a, b.g, i0, j0, rows, outputs);
  }
};

// Wide blocks have the multiprocessor alone; of the others two share it.
#define GROUP_PRODUCT(name, columns, places, transposed) \
  KERNEL(name, GROUP_THREADS, product_arguments) { group_product<columns, places, transposed>::run(a); }
GROUP_PRODUCT(product_group, 128, 3, false)
GROUP_PRODUCT(product_group_wide, 256, 4, false)
GROUP_PRODUCT(product_group_transposed, 128, 3, true)
GROUP_PRODUCT(product_group_transposed_wide, 256, 4, true)
