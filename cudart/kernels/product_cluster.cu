// Products of few rows with weights in blocks on Hopper: decoding's. A cluster of four blocks has the same rows and columns beside each other, and each tile
// of x comes to all four at once.
//
// With few rows a product takes the time of reading its weight, but each block of the kernels by warps reads all of x beside its columns: with 64 rows and 32
// columns that is twice the weight's bytes more, through the second-level cache. Here a
// block brings a quarter of a tile's rows and has them copied to all blocks of the cluster, so that of x the cache gives half of the weight's bytes. What is
// brought is counted by an mbarrier in each block; another one counts the warps of all
// blocks that have left a place of the ring, before anybody fills it again.
//
// Rows lie as they do for the kernels by warps, row by row: a tile has 128 bytes of each, which one copy brings to where a row of the tile is, with room
// between rows against bank conflicts. So there is no launch that puts rows in blocks, and
// adapters' products read the same rows. A weight's tile is one copy: rows of a block that lie one after another.
//
// Products are by warps (mma.sync), in the same ascending groups of 16, so the bits are those of product_blocks.cu.
#include "bulk.h"
#include "product_bfloat16.h"

enum { CLUSTER_BLOCKS = 4 };

// A block has rows × columns outputs, divided among row_warps × column_warps warps; another warp brings tiles of 64 places of the inner axis. There is room
// for so many of them, and for one of the tail.
template <int rows_, int columns_, int row_warps, int column_warps_, int places_> struct cluster_shape {
  static constexpr int rows = rows_, columns = columns_, column_warps = column_warps_, warps = row_warps * column_warps, depth = BLOCK_SIDE, places = places_;
  static constexpr int warp_rows = rows / row_warps, warp_columns = columns / column_warps, tall = warp_rows / 16, wide = warp_columns / 8;
  static constexpr int bringers = 32 * warps; // of the tail
  static constexpr int x_row = 2 * (depth + PAD), x_bytes = rows * x_row, w_bytes = columns * SWIZZLE_ROW, place_bytes = x_bytes + w_bytes;
  static constexpr int share = rows / CLUSTER_BLOCKS; // the rows that a block brings at most
};

template <class S> struct cluster_product {
  using P = product_bf16<S, false>;

  // multiply_tile adds the products of a tile to the calling warp's sums.
  INLINE void multiply_tile(float (&sum)[S::tall][S::wide][4], const unsigned char *at, int row, int column) {
    const unsigned char *x = at + S::w_bytes;
    auto load = [&](typename P::fragments &f, int d) __attribute__((always_inline)) {
      UNROLL for (int i = 0; i < S::tall; i++) load_matrices(f.left[i], x + (row + 16 * i + lane() % 16) * S::x_row + 2 * d + lane() / 16 * 16);
      UNROLL for (int j = 0; j < S::wide / 2; j++)
        load_matrices(f.right[j], at + swizzled(column + 16 * j + lane() % 8 + lane() / 16 * 8, d / 8 + lane() / 8 % 2));
    };
    typename P::fragments even, odd; // those of a group are loaded while the one before is multiplied
    load(even, 0);
    UNROLL for (int d = 0; d < S::depth; d += 32) {
      load(odd, d + 16);
      P::multiply_group(sum, even);
      if (d + 32 < S::depth) load(even, d + 32);
      P::multiply_group(sum, odd);
    }
  }

  // bring has the bringing warp go through the tiles of the inner axis. have is how many of the rows there are, mine whether the block has columns.
  INLINE void bring(unsigned char *room, mbarrier *full, mbarrier *empty, const product_arguments &a, const row_group &g, int64_t j0, int have, bool mine) {
    const int steps = (int)(g.w.in / BLOCK_SIDE);
    // Lane l brings the l-th of the block's rows, which are those between the other blocks': each has about as many of however few there are.
    const int r = lane() * CLUSTER_BLOCKS + (int)cluster_rank();
    const bool brings = lane() < S::share && r < have;
    const unsigned char *x = memory<const unsigned char>(a.x.at) + (g.from + r) * a.x.stride * 2;
    const unsigned char *w = memory<const unsigned char>(g.w.at) + j0 / BLOCK_SIDE * steps * BLOCK_BYTES + j0 % BLOCK_SIDE * SWIZZLE_ROW;
    bulk_ring<S::places> at = {0, 1};
    for (int t = 0; t < steps; t++, at.go_on()) {
      mbarrier_wait(empty + at.place, at.parity);
      unsigned char *to = room + at.place * S::place_bytes;
      mbarrier *arrived = full + at.place;
      if (lane() == 0) {
        mbarrier_arrive_expect(arrived, (unsigned)(have * SWIZZLE_ROW + (mine ? S::w_bytes : 0)));
        if (mine) copy_bulk(to, w + (int64_t)t * BLOCK_BYTES, S::w_bytes, arrived);
      }
      if (brings) copy_bulk_multicast(to + S::w_bytes + r * S::x_row, x + t * SWIZZLE_ROW, SWIZZLE_ROW, arrived, (1 << CLUSTER_BLOCKS) - 1);
      warp_barrier();
    }
  }

  // bring_tail starts copying the tail's rows, or has them there rounded, and its weight; what is not there becomes zero. It is for the threads that
  // multiply, before their first tile has come.
  INLINE void bring_tail(unsigned char *to, const product_arguments &a, const row_group &g, int64_t j0) {
    P::bring_rows((bfloat16 *)(to + S::w_bytes), axis_of<false>(a.tail_x, a.tail_type, g.tail, true), g.from, g.to, thread());
    const bfloat16 *w = memory<const bfloat16>(g.tail.at);
    UNROLL for (int e = thread(); e < S::columns * 8; e += S::bringers) {
      const int r = e / 8, c = e % 8;
      const bool have = j0 + r < g.tail.out && 8 * c < g.tail.pitch;
      copy_async(to + swizzled(r, c), have ? w + (j0 + r) * g.tail.pitch + 8 * c : w, have);
    }
  }

  INLINE void run(const products_arguments &all) {
    DYNAMIC_SHARED(unsigned char, room);
    unsigned char *tail = room + S::places * S::place_bytes;
    mbarrier *full = (mbarrier *)(tail + S::place_bytes), *empty = full + S::places;
    const block_product own = product_of_block(all);
    const product_arguments &a = all.of[own.product];
    ask_for_blocks<S::columns, S::places>(a.only.w, own.across * S::columns, a.frozen);
    wait_for_launch();
    const row_group g = a.only;
    const int64_t j0 = own.across * S::columns;
    const bool mine = j0 < g.w.out; // others bring rows, and wait for nobody's sake but the cluster's
    if (thread() == 0) {
      UNROLL for (int i = 0; i < S::places; i++) {
        mbarrier_init(full + i, 1);
        mbarrier_init(empty + i, CLUSTER_BLOCKS * S::warps);
      }
      mbarrier_init_done();
    }
    cluster_barrier();
    const bool has_tail = g.tail.at != 0 && mine;
    if (warp() == S::warps) {
      bring(room, full, empty, a, g, j0, (int)(g.to - g.from), mine);
      if (has_tail) barrier();
    } else {
      if (has_tail) bring_tail(tail, a, g, j0);
      copy_async_commit();
      const int row = warp() / S::column_warps * S::warp_rows, column = warp() % S::column_warps * S::warp_columns, steps = (int)(g.w.in / BLOCK_SIDE);
      float sum[S::tall][S::wide][4];
      P::begin_sums(sum, a.y, a.accumulate, g.from + row, g.to, j0 + column, g.w.out);
      bulk_ring<S::places> at = {0, 0};
      for (int t = 0; t < steps; t++, at.go_on()) {
        mbarrier_wait(full + at.place, at.parity);
        if (mine) multiply_tile(sum, room + at.place * S::place_bytes, row, column);
        warp_barrier(); // all lanes have read it
        if (lane() < CLUSTER_BLOCKS) mbarrier_arrive_in(empty + at.place, (unsigned)lane());
      }
      if (has_tail) {
        copy_async_wait<0>();
        barrier(); // all have their copies there
        multiply_tile(sum, tail, row, column);
      }
      P::store_sums(sum, a.y, g.from + row, g.to, j0 + column, g.w.out, [&](float v) { return finished(v, g); });
    }
    cluster_barrier(); // nobody copies to, or arrives at, a block that has ended
  }
};

// The shapes, and how many places they have, are those of cluster.go. The last number is how many blocks a multiprocessor has room for.
#define PRODUCT_CLUSTER(rows, columns, row_warps, column_warps, places, blocks) \
  KERNEL_CLUSTER_BLOCKS(product_cluster_##rows##x##columns, 32 * (row_warps * column_warps + 1), CLUSTER_BLOCKS, blocks, products_arguments) { \
    cluster_product<cluster_shape<rows, columns, row_warps, column_warps, places>>::run(a); \
  }
PRODUCT_CLUSTER(16, 32, 1, 2, 10, 3)
PRODUCT_CLUSTER(32, 32, 2, 2, 7, 3)
PRODUCT_CLUSTER(64, 32, 2, 2, 7, 2)
PRODUCT_CLUSTER(64, 64, 2, 2, 5, 2)
