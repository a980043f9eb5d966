// Products with weights in eight bits on tensor cores: those of product_bfloat16.h with the bfloat16 values that the weights stand for, bit for bit.
//
// Numbers go round through places in shared memory as rows of x do, copied long before they are multiplied, in half the bytes that bfloat16 would take. A thread expands the chunks that it has copied itself, for which it waits for nobody
// else, to one of two tiles of bfloat16; while some warps still multiply with one of these, others write the other. Every thread brings numbers and rows alike, so that all share the work of expanding. Scales come a tile ahead, to registers.
#pragma once
#include "e4m3.h"
#include "product_bfloat16.h"

template <int rows, int columns, int row_warps, int column_warps, int depth, int places_> struct e4m3_shape : product_shape<rows, columns, row_warps, column_warps, depth, places_, 2> {
  static constexpr int places = places_, bringers = 32 * row_warps * column_warps;
};

template <class S, bool transposed> struct product_e4m3 : product_bf16<S, transposed> {
  using P = product_bf16<S, transposed>;
  static constexpr int width = (transposed ? S::columns : S::depth) / 16; // chunks of a row of a tile
  static constexpr int together = width & -width, step = S::bringers / together, down = P::w_rows / step, across = width / together, chunks = down * across; // of a thread
  static constexpr int place = chunks * S::bringers;                                                                                                     // chunks of a tile
  static_assert(P::w_rows % step == 0, "a thread has as many as another");

  // each_chunk does f(number, row, column) for the calling thread's chunks, counted from where a tile begins.
  template <class F> INLINE void each_chunk(F f) {
    UNROLL for (int i = 0; i < down; i++)
      UNROLL for (int j = 0; j < across; j++) f(i * across + j, thread() / together + i * step, (thread() % together + j * together) * 16);
  }

  // bring_numbers starts copying the tile at a row and a column of w; what lies beyond w becomes zero.
  INLINE void bring_numbers(e4m3_chunk *to, const e4m3_weight &w, int row, int column) {
    each_chunk([&](int n, int r, int c) {
      const bool wanted = row + r < w.out && column + c < w.in;
      copy_async_streamed(to + n * S::bringers + thread(), memory<const unsigned char>(wanted ? e4m3_row(w, row + r) + column + c : w.at), wanted);
    });
  }

  // ask_for_numbers asks for those of the tiles that the block brings first, of columns from j0 on: a thread for those of a row.
  INLINE void ask_for_numbers(const product_arguments &a, int64_t j0) {
    static_assert(S::columns <= S::bringers, "each row has a thread");
    const e4m3_weight w = e4m3_of(a.only.w);
    constexpr int most = S::places * S::depth;
    const int row = (int)j0 + thread();
    const bool frozen = a.frozen, own = thread() < S::columns, there = row < w.out; // and no condition among them: that would be a branch
    ask_early(memory<const unsigned char>(e4m3_row(w, row)), (unsigned)(w.row_bytes < most ? w.row_bytes : most), frozen & own & there);
  }

  // bring_scales gives the scales of the calling thread's chunks of a tile, where each has one.
  INLINE void bring_scales(float (&to)[chunks], const e4m3_weight &w, int row, int column) {
    each_chunk([&](int n, int r, int c) {
      const int at_row = row + r < w.out ? row + r : w.out - 1, at_column = column + c < w.in ? column + c : w.in - 1; // of zeros any
      to[n] = memory<const float>(e4m3_scales(w, at_row))[at_column >> w.power];
    });
    UNROLL for (int n = 0; n < chunks; n++) here(to[n]);
  }

  // expand writes the values of the calling thread's chunks, which have arrived.
  INLINE void expand(bfloat16 *to, const e4m3_chunk *from, const float (&scales)[chunks], const e4m3_weight &w, int row, int column) {
    each_chunk([&](int n, int r, int c) {
      const e4m3_chunk *numbers = from + n * S::bringers + thread();
      bfloat16 *at = to + r * P::w_pitch + c;
      if (w.power >= 0) {
        const e4m3_values v = e4m3_expanded(*numbers, [&](int) { return scales[n]; });
        ((e4m3_chunk *)at)[0] = v.half[0], ((e4m3_chunk *)at)[1] = v.half[1];
        return;
      }
      UNROLL_1 for (int i = 0; i < 16; i++) { // a chunk may be in several runs
        const float scale = row + r < w.out && column + c + i < w.in ? e4m3_scale(w, row + r, column + c + i) : 1.0f;
        at[i] = narrow(e4m3_number(((const unsigned char *)numbers)[i]) * scale);
      }
    });
  }

  // tile has the block's outputs of y, as in product_bf16; the inner axis is one.
  template <class B, class F> INLINE void tile(const view &y, bool accumulate, int64_t i0, int64_t rows, int64_t j0, int64_t columns, inner_axis next, const weight &of, B bring_x, F finish) {
    DYNAMIC_SHARED(bfloat16, room);
    bfloat16 *xs = room, *ws = xs + S::places * P::x_size;
    e4m3_chunk *numbers = (e4m3_chunk *)(ws + 2 * P::w_size);
    const e4m3_weight w = e4m3_of(of);
    const int row = warp() / S::column_warps * S::warp_rows, column = warp() % S::column_warps * S::warp_columns, first = (int)j0;

    int there = 0; // the place of the tile that is brought next
    auto bring = [&]() {
      if (next.k < next.depth) {
        bring_numbers(numbers + there * place, w, transposed ? next.k : first, transposed ? first : next.k);
        bring_x(xs + there * P::x_size, next, thread());
        next.k += S::depth;
      }
      copy_async_commit();
      there = there + 1 == S::places ? 0 : there + 1;
    };
    for (int t = 1; t < S::places; t++) bring();
    float scales[chunks];
    if (w.power >= 0) bring_scales(scales, w, transposed ? 0 : first, transposed ? first : 0);
    float sum[S::tall][S::wide][4];
    P::begin_sums(sum, y, accumulate, i0 + row, rows, j0 + column, columns);

    int here_now = 0, other = 0; // the place of the tile that is multiplied, and which tile of bfloat16 is its
    for (int k = 0; k < next.depth; k += S::depth) {
      copy_async_wait<S::places - 2>();
      bfloat16 *expanded = ws + other * P::w_size;
      expand(expanded, numbers + here_now * place, scales, w, transposed ? k : first, transposed ? first : k);
      if (w.power >= 0) bring_scales(scales, w, transposed ? k + S::depth : first, transposed ? first : k + S::depth);
      barrier(); // this tile has arrived and is expanded, and the one before it, whose place is the next one's, has been read by all
      bring();
      const bfloat16 *x = xs + here_now * P::x_size;
      typename P::fragments even, odd;
      P::load_group(even, x, expanded, row, column, 0);
      UNROLL for (int d = 0; d < S::depth; d += 32) {
        P::load_group(odd, x, expanded, row, column, d + 16);
        P::multiply_group(sum, even);
        if (d + 32 < S::depth) P::load_group(even, x, expanded, row, column, d + 32);
        P::multiply_group(sum, odd);
      }
      here_now = here_now + 1 == S::places ? 0 : here_now + 1, other = 1 - other;
    }
    P::store_sums(sum, y, i0 + row, rows, j0 + column, columns, finish);
  }
};
