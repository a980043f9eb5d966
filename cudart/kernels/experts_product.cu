// Products of rows with the matrices of their experts. Tiles of rows are an expert's, so a block reads one matrix, and of experts that nobody has chosen nothing is read. The chain of an element is that of the plain products.
#include "experts.h"
#include "product_bfloat16.h"
#include "product_float32.h"

// A block's tile of a routed product: w is its expert's matrix.
struct routed_tile {
  routed_job j;
  expert_rows rows;
  int64_t column; // the first
  weight w;
};

// tile_of_block finds the tile; false if the block has none.
template <bool transposed> INLINE bool tile_of_block(routed_tile &t, const routed_arguments &a, int rows, int columns, int element) {
  if (a.jobs) t.j = value_at<routed_job>(a.jobs + block_y() * sizeof(routed_job));
  else if (block_y() == 0) t.j = a.own[0];
  else t.j = a.own[1];
  t.column = block_x() / a.down * columns;
  if (t.column >= (transposed ? t.j.w.in : t.j.w.out)) return false;
  t.rows = tile_of_experts(a.table, t.j.first, t.j.end, rows, (int)(block_x() % a.down));
  t.w = t.j.w;
  t.w.at += (uint64_t)t.rows.expert * t.j.apart * element;
  return t.rows.expert >= 0;
}

INLINE float finished(float v, const routed_job &j) { return j.factor != 0.0f ? rounded_to(v * j.factor, j.round) : v; }

template <class S, bool transposed> struct routed_bf16 : product_bf16<S, transposed> {
  using P = product_bf16<S, transposed>;
  static constexpr int together = S::depth / 8, step = S::bringers / together, listed = S::rows / step; // as bring_chunks has them: rows of a thread

  // A row of x for each row of a tile: the list's or, without one, those from first on.
  struct places {
    const int32_t *list;
    int first, rows;
    int mine[listed]; // of rows that the calling thread copies in chunks
  };

  INLINE int place_of(const places &at, int r) { return at.list ? at.list[r] : at.first + r; }

  // bring_listed is bring_rows of such rows.
  INLINE void bring_listed(bfloat16 *to, const inner_axis &of, const places &at, int me) {
    if (of.type == BFLOAT16 && (of.x | (uint64_t)of.stride << 1) % 16 == 0 && of.depth % 8 == 0) {
      const int column = me % together * 8;
      to += me / together * P::x_pitch + column;
      UNROLL for (int i = 0; i < listed; i++) {
        copy_async(to + i * step * P::x_pitch, memory<const bfloat16>(of.x) + at.mine[i] * of.stride + of.k + column, me / together + i * step < at.rows && of.k + column < of.depth);
      }
      return;
    }
    P::bring_rounded(to, of, at.rows, me, [&](int r) { return (int64_t)place_of(at, r); });
  }

  INLINE void run(const routed_arguments &a) {
    routed_tile t;
    if (!tile_of_block<transposed>(t, a, S::rows, S::columns, sizeof(bfloat16))) return;
    const inner_axis first = axis_of<transposed>(t.j.x, t.j.x_type, t.w, true);
    const int tiles = (first.depth + S::depth - 1) / S::depth, me = thread() < S::bringers ? thread() : thread() - S::bringers;
    places at = {t.j.gathered ? tokens_of_rows(a.table) + t.rows.first : nullptr, t.rows.first, t.rows.end - t.rows.first, {}};
    UNROLL for (int i = 0; i < listed; i++) {
      const int r = me / together + i * step;
      at.mine[i] = r < at.rows ? place_of(at, r) : 0;
    }
    P::tile(t.j.y, t.j.accumulate, t.rows.first, t.rows.end, t.column, transposed ? t.w.in : t.w.out, first, tiles, [](inner_axis &of, int places) { return (of.k += places) < of.depth; },
            [&](bfloat16 *to, const inner_axis &of, int me) { bring_listed(to, of, at, me); }, [&](float v) { return finished(v, t.j); });
  }
};

// The launch chooses by how many rows an expert has on average (experts.go).
#define ROUTED_BF16(rows, columns, row_warps, column_warps, depth, x_places, w_places, blocks) \
  KERNEL_BLOCKS(routed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, false>::run(a); } \
  KERNEL_BLOCKS(routed_transposed_##rows##x##columns, 32 * row_warps * column_warps, blocks, routed_arguments) { routed_bf16<product_shape<rows, columns, row_warps, column_warps, depth, x_places, w_places>, true>::run(a); }
ROUTED_BF16(16, 32, 1, 2, 64, 4, 12, 3)
ROUTED_BF16(64, 96, 2, 2, 64, 3, 5, 2)
ROUTED_BF16(128, 128, 2, 4, 32, 4, 4, 1)

template <bool transposed> INLINE void routed_in_float32(const routed_arguments &a) {
  routed_tile t;
  if (!tile_of_block<transposed>(t, a, TILE, TILE, sizeof(float))) return;
  const int64_t columns = transposed ? t.w.in : t.w.out, depth = transposed ? t.w.out : t.w.in;
  const view y = {t.j.y.at, t.rows.end, columns, t.j.y.stride};
  const operand left = {memory<const float>(t.j.x.at), t.j.x.stride, 1, t.j.gathered ? tokens_of_rows(a.table) : nullptr};
  const operand right = {memory<const float>(t.w.at), transposed ? 1 : t.w.pitch, transposed ? t.w.pitch : 1, nullptr};
  product_64x64(y, t.rows.first, t.column, left, right, depth, t.j.accumulate != 0, [&](float v) { return finished(v, t.j); });
}
KERNEL_BLOCKS(routed_float32, PRODUCT_THREADS, 2, routed_arguments) { routed_in_float32<false>(a); }
KERNEL_BLOCKS(routed_transposed_float32, PRODUCT_THREADS, 2, routed_arguments) { routed_in_float32<true>(a); }
