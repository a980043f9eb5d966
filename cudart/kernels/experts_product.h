// What products of rows with the matrices of their experts have in common.
#pragma once
#include "experts.h"
#include "product_bfloat16.h"

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

// Rows of x as bring_listed copies them, for the threads that bring rows.
template <class S, bool transposed> struct routed_rows {
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

  // places_of are those of a tile; me is the calling thread among those that bring rows.
  INLINE places places_of(const routed_tile &t, const routed_arguments &a, int me) {
    places at = {t.j.gathered ? tokens_of_rows(a.table) + t.rows.first : nullptr, t.rows.first, t.rows.end - t.rows.first, {}};
    UNROLL for (int i = 0; i < listed; i++) {
      const int r = me / together + i * step;
      at.mine[i] = r < at.rows ? place_of(at, r) : 0;
    }
    return at;
  }
};

// routed_in_bf16 has the tile of the calling block.
template <class S, bool transposed, int lie = BY_ROWS> INLINE void routed_in_bf16(const routed_arguments &a) {
  using R = routed_rows<S, transposed>;
  routed_tile t;
  if (!tile_of_block<transposed>(t, a, S::rows, S::columns, sizeof(bfloat16))) return;
  const inner_axis first = axis_of<transposed>(t.j.x, t.j.x_type, t.w, true);
  const int tiles = (first.depth + S::depth - 1) / S::depth;
  const typename R::places at = R::places_of(t, a, thread() < S::bringers ? thread() : thread() - S::bringers);
  product_bf16<S, transposed, lie>::tile(t.j.y, t.j.accumulate, t.rows.first, t.rows.end, t.column, transposed ? t.w.in : t.w.out, first, tiles, [](inner_axis &of, int places) { return (of.k += places) < of.depth; },
                                    [&](bfloat16 *to, const inner_axis &of, int me) { R::bring_listed(to, of, at, me); }, [&](float v) { return finished(v, t.j); });
}
