// Products of many rows with weights in blocks on Hopper, by bulk copies. They are a module of their own: a device goes on without them where it cannot be loaded, or gives other bits.
//
// The arithmetic is that of warpgroup.cu: the same instructions in the same order of groups of 16, over the same tiles in shared memory. What is new is how these come there. One warp of a block brings tiles of 64 places of the inner axis into a
// ring of places, each by a few copies of whole blocks; two warpgroups of 64 rows each multiply them. Neither waits for the other but where the ring is empty or full, which two mbarriers of each place count. Blocks live on from tile
// to tile of the output, so that the copies for the next one run while the last one is stored.
//
// Two blocks beside each other are a cluster, with the same columns and neighbouring rows: each brings half of a tile of w and has it copied to both. A place may be filled when the warpgroups of both have left it.
#include "blocks.h"
#include "bulk.h"
#include "gates.h"

enum { BULK_THREADS = 384, BULK_CONSUMERS = 256, BULK_ROWS = 128, BULK_CLUSTER = 2, BULK_MOST_PLACES = 6 };

// What both kinds of products know of the launch.
struct bulk_shape {
  int64_t rows, outputs; // of y
  int steps, tail_steps; // tiles of 64 places of the inner axis, and of the tail
};

// The tile of an output that a block has: rows from i0 on, columns from j0 on. The second block of a cluster may have no rows.
struct bulk_tile {
  int64_t i0, j0;
  bool mine;
};

// columns are those of a tile of w in shared memory, in blocks of 64; a tile of y has half as many where there are two weights.
template <int columns, int places, int weights> struct bulk_layout {
  static constexpr int x_bytes = BULK_ROWS * SWIZZLE_ROW, w_bytes = columns * SWIZZLE_ROW, place_bytes = x_bytes + w_bytes, blocks = columns / BLOCK_SIDE, outputs = columns / weights;

  // Clusters that run at the same time have few rows and few columns, so that tiles are read once from memory: strips of some tiles of rows, column by column.
  INLINE unsigned across(const bulk_shape &s) { return (unsigned)((s.outputs + outputs - 1) / outputs); }
  INLINE unsigned pairs(const bulk_shape &s) { return (unsigned)((s.rows + BULK_CLUSTER * BULK_ROWS - 1) / (BULK_CLUSTER * BULK_ROWS)); }
  INLINE bulk_tile tile_of(const bulk_shape &s, unsigned number) {
    constexpr unsigned STRIP = 8;
    const unsigned down = pairs(s), wide = across(s), strip = number / (STRIP * wide) * STRIP, tall = down - strip < STRIP ? down - strip : STRIP;
    number -= strip * wide;
    const int64_t i0 = (int64_t)((strip + number % tall) * BULK_CLUSTER + cluster_rank()) * BULK_ROWS;
    return {i0, (int64_t)(number / tall) * outputs, i0 < s.rows};
  }
  // present is how many blocks of the tile's columns there are of each weight.
  INLINE int present(const bulk_shape &s, int64_t j0) {
    const int64_t left = (s.outputs - j0) / BLOCK_SIDE;
    return (int)(left < outputs / BLOCK_SIDE ? left : outputs / BLOCK_SIDE);
  }
};

// The rows of a tail are brought by the lanes of a warp, 8 elements at once; what is not there becomes zero.
template <int rows> INLINE void bring_tail_rows(unsigned char *to, const bfloat16 *from, int64_t pitch, int64_t have_rows, int have_columns) {
  UNROLL_1 for (int i = 0; i < rows / 4; i++) {
    const int r = 4 * i + lane() / 8, c = lane() % 8;
    const bool have = r < have_rows && 8 * c < have_columns;
    copy_async(to + swizzled(r, c), have ? from + r * pitch + 8 * c : from, have);
  }
}
// Of a transposed product a tail's columns are outputs: 64 places of the inner axis, each with so many columns, in blocks of 64 of these.
template <int columns> INLINE void bring_tail_columns(unsigned char *to, const bfloat16 *from, int64_t pitch, int64_t have_rows, int64_t have_columns) {
  UNROLL_1 for (int i = 0; i < 2 * columns / 8; i++) {
    const int e = 32 * i + lane(), r = e / (columns / 8), c = e % (columns / 8);
    const bool have = r < have_rows && 8 * c < have_columns;
    copy_async(to + c / 8 * BLOCK_BYTES + swizzled(r, c % 8), have ? from + r * pitch + 8 * c : from, have);
  }
}

// run_bulk has the roles of a block's warps. P says what is brought and what becomes of the sums:
//   shape()                          of the launch
//   bring(to, barrier, tile, t, n)   by one lane: the calling block's share of the tile of w at place t, of whose columns n blocks are present, to all blocks of the cluster, where barrier counts it
//   bring_tail(to, tile, t)          by a warp: a tile of the tail's x and w
//   multiply(sum, at)                the tile at a place of the ring
//   multiply_tail(sum, at, t)        one of the tail
//   begin(sum, tile), finish(sum, tile)
template <class P, int columns, int places, int weights, bool transposed> INLINE void run_bulk(const P &p, uint64_t x) {
  using L = bulk_layout<columns, places, weights>;
  DYNAMIC_SHARED(unsigned char, room);
  unsigned char *ring = round_up(room);
  mbarrier *full = (mbarrier *)(ring + places * L::place_bytes), *empty = full + places;
  const bulk_shape s = p.shape();
  if (thread() == 0) {
    UNROLL for (int i = 0; i < places; i++) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, BULK_CLUSTER * BULK_CONSUMERS / 32); // the warps that multiply, of all blocks
    }
    mbarrier_init_done();
  }
  cluster_barrier();
  const unsigned tiles = L::pairs(s) * L::across(s), clusters = (unsigned)blocks_x() / BULK_CLUSTER, first = (unsigned)block_x() / BULK_CLUSTER;
  if (warp() >= BULK_CONSUMERS / 32) {
    leave_registers<56>();
    if (warp() == BULK_CONSUMERS / 32) {
      bulk_ring<places> at = {0, 1};
      for (unsigned number = first; number < tiles; number += clusters) {
        const bulk_tile tile = L::tile_of(s, number);
        const int n = L::present(s, tile.j0);
        for (int t = 0; t < s.steps; t++, at.go_on()) {
          mbarrier_wait(empty + at.place, at.parity);
          if (lane() == 0) {
            unsigned char *to = ring + at.place * L::place_bytes;
            mbarrier *arrived = full + at.place;
            mbarrier_arrive_expect(arrived, (unsigned)(weights * n * BLOCK_BYTES + (tile.mine ? L::x_bytes : 0)));
            if (tile.mine)
              UNROLL for (int h = 0; h < BULK_ROWS / BLOCK_SIDE; h++)
                copy_bulk(to + h * BLOCK_BYTES, memory<const unsigned char>(x) + ((tile.i0 / BLOCK_SIDE + h) * s.steps + t) * BLOCK_BYTES, BLOCK_BYTES, arrived);
            p.bring(to + L::x_bytes, arrived, tile, t, n);
          }
          warp_barrier();
        }
        for (int t = 0; t < s.tail_steps; t++, at.go_on()) {
          mbarrier_wait(empty + at.place, at.parity);
          if (tile.mine) {
            p.bring_tail(ring + at.place * L::place_bytes, tile, t);
            copy_async_commit();
            copy_async_wait<0>();
            publish();
          }
          warp_barrier();
          if (lane() == 0) mbarrier_arrive(full + at.place);
        }
      }
    }
  } else {
    take_registers<224>();
    bulk_ring<places> at = {0, 0};
    auto leave = [&](int place) { // by a lane of each warp, whose products are all done then
      if (lane() < BULK_CLUSTER) mbarrier_arrive_in(empty + place, lane());
    };
    for (unsigned number = first; number < tiles; number += clusters) {
      const bulk_tile tile = L::tile_of(s, number);
      const int all = s.steps + s.tail_steps;
      if (!tile.mine) {
        for (int t = 0; t < all; t++, at.go_on()) {
          mbarrier_wait(full + at.place, at.parity);
          warp_barrier();
          leave(at.place);
        }
        continue;
      }
      float sum[columns / 2];
      p.begin(sum, tile);
      int before = -1; // the place that products under way read
      for (int t = 0; t < s.steps; t++, at.go_on()) {
        mbarrier_wait(full + at.place, at.parity);
        begin_products();
        p.multiply(sum, ring + at.place * L::place_bytes);
        end_products();
        wait_for_products<1>();
        if (before >= 0) leave(before);
        before = at.place;
      }
      for (int t = 0; t < s.tail_steps; t++, at.go_on()) {
        mbarrier_wait(full + at.place, at.parity);
        begin_products();
        p.multiply_tail(sum, ring + at.place * L::place_bytes, t);
        end_products();
        wait_for_products<1>();
        leave(before);
        before = at.place;
      }
      finish_products(sum);
      leave(before);
      p.finish(sum, tile);
    }
  }
  cluster_barrier(); // nobody copies to, or arrives at, a block that has ended
}

// A lane's sums 4j + 2h + e of a tile are of row lane/4 + 8h of its warp's 16, and column 8j + 2(lane mod 4) + e.
INLINE int64_t bulk_row(const bulk_tile &t, int h) { return t.i0 + 16 * warp() + lane() / 4 + 8 * h; }
INLINE int64_t bulk_column(const bulk_tile &t) { return t.j0 + lane() % 4 * 2; }

struct alignas(8) two_floats_beside {
  float first, second;
};

template <int columns, int places, bool transposed> struct bulk_product {
  using L = bulk_layout<columns, places, 1>;
  const bulk_arguments &a;

  INLINE_MEMBER bulk_shape shape() const {
    const int64_t depth = transposed ? a.w.out : a.w.in, tail = a.tail.at == 0 ? 0 : transposed ? a.tail.out : a.tail.in;
    return {a.rows, transposed ? a.w.in : a.w.out, (int)(depth / BLOCK_SIDE), (int)((tail + BLOCK_SIDE - 1) / BLOCK_SIDE)};
  }
  INLINE_MEMBER void bring(unsigned char *to, mbarrier *arrived, const bulk_tile &tile, int t, int n) const {
    constexpr int share = L::blocks / BULK_CLUSTER;
    const int64_t across = a.w.in / BLOCK_SIDE, first = tile.j0 / BLOCK_SIDE;
    UNROLL for (int i = 0; i < share; i++) {
      const int b = (int)cluster_rank() * share + i;
      const int64_t block = transposed ? t * across + first + b : (first + b) * across + t;
      if (b < n) copy_bulk_multicast(to + b * BLOCK_BYTES, memory<const unsigned char>(a.w.at) + block * BLOCK_BYTES, BLOCK_BYTES, arrived, (1 << BULK_CLUSTER) - 1);
    }
  }
  INLINE_MEMBER void bring_tail(unsigned char *to, const bulk_tile &tile, int t) const {
    const int k = t * BLOCK_SIDE, depth = (int)(transposed ? a.tail.out : a.tail.in);
    bring_tail_rows<BULK_ROWS>(to, memory<const bfloat16>(a.tail_x.at) + tile.i0 * a.tail_x.stride + k, a.tail_x.stride, a.rows - tile.i0, depth - k);
    const bfloat16 *w = memory<const bfloat16>(a.tail.at);
    if constexpr (transposed) bring_tail_columns<columns>(to + L::x_bytes, w + k * a.tail.pitch + tile.j0, a.tail.pitch, depth - k, a.tail.pitch - tile.j0);
    else bring_tail_rows<columns>(to + L::x_bytes, w + tile.j0 * a.tail.pitch + k, a.tail.pitch, a.tail.out - tile.j0, (int)a.tail.pitch - k);
  }
  INLINE_MEMBER void multiply(float (&sum)[columns / 2], const unsigned char *from) const {
    const shared_matrix left = along_rows(from + warp() / 4 * BLOCK_BYTES), right = transposed ? down_rows(from + L::x_bytes, BLOCK_BYTES) : along_rows(from + L::x_bytes);
    UNROLL for (int d = 0; d < 4; d++) multiply_group<transposed>(sum, further(left, 32 * d), further(right, d * (transposed ? 16 * SWIZZLE_ROW : 32)));
  }
  INLINE_MEMBER void multiply_tail(float (&sum)[columns / 2], const unsigned char *from, int) const { multiply(sum, from); }
  // have is how many columns from a lane's first on there are.
  INLINE_MEMBER int have(int64_t row, int64_t column) const {
    const int64_t left = (transposed ? a.w.in : a.w.out) - column;
    return row < a.rows ? (int)(left < columns ? left : columns) : 0;
  }
  INLINE_MEMBER void begin(float (&sum)[columns / 2], const bulk_tile &tile) const {
    UNROLL for (int h = 0; h < 2; h++) {
      const int64_t row = bulk_row(tile, h), column = bulk_column(tile);
      const int n = a.accumulate ? have(row, column) : 0;
      const float *y = row_of<float>(a.y, row) + column;
      UNROLL for (int j = 0; j < columns / 8; j++) {
        two_floats_beside v = {0.0f, 0.0f};
        if (8 * j < n) v = *(const two_floats_beside *)(y + 8 * j);
        sum[4 * j + 2 * h] = v.first, sum[4 * j + 2 * h + 1] = v.second;
      }
    }
  }
  INLINE_MEMBER void finish(const float (&sum)[columns / 2], const bulk_tile &tile) const {
    UNROLL for (int h = 0; h < 2; h++) {
      const int64_t row = fresh(bulk_row(tile, h)), column = bulk_column(tile);
      const int n = have(row, column);
      if (a.result == BULK_NARROW) {
        unsigned *y = (unsigned *)(row_of<bfloat16>(a.y, row) + column);
        UNROLL for (int j = 0; j < columns / 8; j++)
          if (8 * j < n) y[4 * j] = (unsigned)narrow(sum[4 * j + 2 * h]) | (unsigned)narrow(sum[4 * j + 2 * h + 1]) << 16;
        continue;
      }
      float *y = row_of<float>(a.y, row) + column;
      if (a.result == BULK_ADD) {
        const float *add = row_of<float>(a.add, row) + column;
        UNROLL for (int j = 0; j < columns / 8; j++)
          if (8 * j < n) {
            const two_floats_beside v = *(const two_floats_beside *)(add + 8 * j);
            store_two(y + 8 * j, v.first + sum[4 * j + 2 * h], v.second + sum[4 * j + 2 * h + 1]);
          }
        continue;
      }
      UNROLL for (int j = 0; j < columns / 8; j++)
        if (8 * j < n) store_two(y + 8 * j, sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
  }
};

// Two weights: a tile has 128 columns of gate, and then the same of up. A tail is of one of them, so its products are with half of the sums.
struct bulk_gated {
  static constexpr int columns = 256, places = 4;
  using L = bulk_layout<columns, places, 2>;
  const bulk_gated_arguments &a;

  INLINE_MEMBER int gate_tail_steps() const { return a.gate_tail.at == 0 ? 0 : (int)((a.gate_tail.in + BLOCK_SIDE - 1) / BLOCK_SIDE); }
  INLINE_MEMBER bulk_shape shape() const {
    const int up_tail = a.up_tail.at == 0 ? 0 : (int)((a.up_tail.in + BLOCK_SIDE - 1) / BLOCK_SIDE);
    return {a.rows, a.gate.out, (int)(a.gate.in / BLOCK_SIDE), gate_tail_steps() + up_tail};
  }
  // The first block of a cluster brings gate, the second one up.
  INLINE_MEMBER void bring(unsigned char *to, mbarrier *arrived, const bulk_tile &tile, int t, int n) const {
    const int up = (int)cluster_rank();
    const unsigned char *from = memory<const unsigned char>(up ? a.up.at : a.gate.at);
    UNROLL for (int b = 0; b < L::outputs / BLOCK_SIDE; b++)
      if (b < n)
        copy_bulk_multicast(to + (up * (L::outputs / BLOCK_SIDE) + b) * BLOCK_BYTES, from + ((tile.j0 / BLOCK_SIDE + b) * (a.gate.in / BLOCK_SIDE) + t) * BLOCK_BYTES, BLOCK_BYTES, arrived, (1 << BULK_CLUSTER) - 1);
  }
  INLINE_MEMBER void bring_tail(unsigned char *to, const bulk_tile &tile, int t) const {
    const bool up = t >= gate_tail_steps();
    const view &x = up ? a.up_tail_x : a.gate_tail_x;
    const weight &w = up ? a.up_tail : a.gate_tail;
    const int k = (up ? t - gate_tail_steps() : t) * BLOCK_SIDE;
    bring_tail_rows<BULK_ROWS>(to, memory<const bfloat16>(x.at) + tile.i0 * x.stride + k, x.stride, a.rows - tile.i0, (int)w.in - k);
    bring_tail_rows<L::outputs>(to + L::x_bytes, memory<const bfloat16>(w.at) + tile.j0 * w.pitch + k, w.pitch, w.out - tile.j0, (int)w.pitch - k);
  }
  // half has products of the tile's rows with 128 columns, which become half of the sums.
  INLINE_MEMBER void half(float *sum, const unsigned char *from, int of) const {
    const shared_matrix left = along_rows(from + warp() / 4 * BLOCK_BYTES), right = along_rows(from + L::x_bytes + of * (L::w_bytes / 2));
    UNROLL for (int d = 0; d < 4; d++) multiply_group<false>(*(float(*)[columns / 4])sum, further(left, 32 * d), further(right, 32 * d));
  }
  INLINE_MEMBER void multiply(float (&sum)[columns / 2], const unsigned char *from) const {
    half(sum, from, 0);
    half(sum + columns / 4, from, 1);
  }
  INLINE_MEMBER void multiply_tail(float (&sum)[columns / 2], const unsigned char *from, int t) const {
    if (t < gate_tail_steps()) half(sum, from, 0);
    else half(sum + columns / 4, from, 0);
  }
  INLINE_MEMBER void begin(float (&sum)[columns / 2], const bulk_tile &) const {
    UNROLL for (int i = 0; i < columns / 2; i++) sum[i] = 0.0f;
  }
  INLINE_MEMBER void finish(const float (&sum)[columns / 2], const bulk_tile &tile) const {
    UNROLL for (int h = 0; h < 2; h++) {
      const int64_t row = fresh(bulk_row(tile, h)), column = bulk_column(tile), left = a.gate.out - column;
      const int n = row < a.rows ? (int)(left < L::outputs ? left : L::outputs) : 0;
      auto at = [&](const view &v) { return (unsigned *)(row_of<bfloat16>(v, row) + column); };
      auto both = [](float first, float second) { return (unsigned)narrow(first) | (unsigned)narrow(second) << 16; };
      UNROLL for (int j = 0; j < L::outputs / 8; j++) {
        const float *gate = sum + 4 * j + 2 * h, *up = gate + columns / 4;
        if (8 * j >= n) continue;
        at(a.hidden)[4 * j] = both(gate[0] * sigmoid(gate[0]) * up[0], gate[1] * sigmoid(gate[1]) * up[1]);
        if (a.kept_gate.at) at(a.kept_gate)[4 * j] = both(gate[0], gate[1]), at(a.kept_up)[4 * j] = both(up[0], up[1]);
      }
    }
  }
};

#define BULK_PRODUCT(name, columns, places, transposed) \
  KERNEL_CLUSTER(name, BULK_THREADS, BULK_CLUSTER, bulk_arguments) { run_bulk<bulk_product<columns, places, transposed>, columns, places, 1, transposed>({a}, a.x); }
BULK_PRODUCT(product_bulk, 128, 6, false)
BULK_PRODUCT(product_bulk_wide, 256, 4, false)
BULK_PRODUCT(product_bulk_transposed, 128, 6, true)
BULK_PRODUCT(product_bulk_transposed_wide, 256, 4, true)
KERNEL_CLUSTER(product_bulk_gated, BULK_THREADS, BULK_CLUSTER, bulk_gated_arguments) { run_bulk<bulk_gated, bulk_gated::columns, bulk_gated::places, 2, false>({a}, a.x); }

// Block (x, y): row x of y, and pieces of 2,048 columns.
KERNEL(narrow_blocks, 256, narrow_blocks_arguments) {
  const int64_t row = block_x(), across = a.x.cols / BLOCK_SIDE;
  for (int64_t c = (block_y() * 256 + thread()) * 8; c < a.x.cols; c += blocks_y() * 256 * 8) {
    struct alignas(16) eight {
      bfloat16 v[8];
    } to = {};
    if (row < a.rows) {
      const int64_t at = row * a.x.stride + c;
      const bool fours = a.x.at % (a.x_type == FLOAT32 ? 16 : 8) == 0 && a.x.stride % 4 == 0;
      UNROLL for (int h = 0; h < 2; h++) {
        floats<4> v;
        if (fours) v = load_some<4>(a.x.at, at + 4 * h, a.x_type);
        else
          UNROLL for (int i = 0; i < 4; i++) v.v[i] = load_as_float(a.x.at, at + 4 * h + i, a.x_type);
        UNROLL for (int i = 0; i < 4; i++) to.v[4 * h + i] = narrow(v.v[i]);
      }
    }
    *(eight *)(memory<bfloat16>(a.y) + chunk_in_blocks(row, c, across)) = to;
  }
}
