// g[p,q] += Σm a[m,p]·b[m,q] on tensor cores, as a module of its own: the gradients of LoRA factors by another arithmetic than that of outer_product.h, on request.
//
// Rows come in groups of up to 16, which begin at multiples of 16 of a position in a sequence and end with it: a group is one whatever rows are before it, so the sum does not depend on neighbours, nor on where it is cut as long as that is between
// groups. An element of g is a chain over the groups, in float32: g, then each group's sum, rounded to nearest. Each float32 number is three of bfloat16, each of what those before it lack, which together have all of its 24 bits; a group's sum is
// that of six instructions, which begin with zero and end with the largest products. The three that are left out would add 2⁻²⁵ of a product or so. Two numbers for one, and three instructions, are nearly 10⁻⁵ of a product from it, more than is promised.
#include "outer_product.h"

enum { OUTER_GROUP = 16, OUTER_PAD = 4 }; // rows; the pad has what a warp reads at once in different banks

enum { OUTER_PARTS = 3 };
struct outer_parts {
  unsigned v[OUTER_PARTS]; // two numbers each
};
INLINE outer_parts parts_of(float x, float y) {
  outer_parts p;
  UNROLL for (int i = 0; i < OUTER_PARTS; i++) {
    p.v[i] = narrow_two(x, y);
    x = x - bits<float>(p.v[i] << 16), y = y - bits<float>(p.v[i] & 0xffff0000u);
  }
  return p;
}

// A tile has narrow of the narrow side, 16 or 32, and as many of the wide one as make 4,096 elements; each of four warps has a quarter of these.
template <int narrow, int places> struct outer_by_groups {
  static constexpr int wide = OUTER_TILE / narrow, narrow_row = narrow + OUTER_PAD, wide_row = wide + OUTER_PAD, place_floats = OUTER_GROUP * (narrow_row + wide_row);
  static constexpr int down = narrow / 16, across = wide / 32; // instructions' results of a warp

  template <int n> INLINE void bring_side_of(float *to, const outer_side &s, int64_t row, int count) {
    for (int e = 4 * thread(); e < OUTER_GROUP * n; e += 4 * OUTER_THREADS) {
      const int r = e / n, c = e % n;
      const float *from = s.at + (row + r) * s.stride + c;
      float *at = to + r * (n + OUTER_PAD) + c;
      const bool have = r < count && c < s.count;
      if (s.fours && (!have || c + 4 <= s.count)) copy_async(at, have ? from : s.at, have);
      else
        UNROLL for (int i = 0; i < 4; i++) at[i] = have && c + i < s.count ? from[i] : 0.0f;
    }
  }

  // each_of calls f(element of g, sum) for a lane's elements.
  template <class F> INLINE void each_of(const view &g, bool turned, const outer_tile &t, float (&sum)[down][across][4], F f) {
    const int64_t by_n = turned ? 1 : g.stride, by_w = turned ? g.stride : 1;
    const int n0 = t.narrow + lane() / 4, w0 = t.wide + warp() * (wide / 4) + lane() % 4 * 2;
    const int have_n = (int)(turned ? g.cols : g.rows) - n0, have_w = (int)(turned ? g.rows : g.cols) - w0;
    float *first = memory<float>(g.at) + fresh(n0) * by_n + w0 * by_w;
    UNROLL for (int i = 0; i < down; i++)
      UNROLL for (int h = 0; h < 2; h++) {
        float *at = first + (16 * i + 8 * h) * by_n;
        UNROLL for (int j = 0; j < across; j++) {
          UNROLL for (int e = 0; e < 2; e++)
            if (16 * i + 8 * h < have_n && 8 * j + e < have_w) f(at[e * by_w], sum[i][j][2 * h + e]);
          at += 8 * by_w;
        }
      }
  }

  INLINE void add_group(float (&sum)[down][across][4], const float *ns, const float *ws) {
    const int k = lane() % 4 * 2, outer = lane() / 4;
    auto two = [&](const float *from, int pitch) { return parts_of(from[k * pitch], from[(k + 1) * pitch]); };
    unsigned n[OUTER_PARTS][down][4];
    UNROLL for (int i = 0; i < down; i++)
      UNROLL for (int r = 0; r < 4; r++) {
        const outer_parts p = two(ns + r / 2 * 8 * narrow_row + 16 * i + outer + r % 2 * 8, narrow_row);
        UNROLL for (int part = 0; part < OUTER_PARTS; part++) n[part][i][r] = p.v[part];
      }
    UNROLL for (int j = 0; j < across; j++) {
      const float *column = ws + warp() * (wide / 4) + 8 * j + outer;
      const outer_parts first = two(column, wide_row), second = two(column + 8 * wide_row, wide_row);
      UNROLL for (int i = 0; i < down; i++) {
        float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        UNROLL for (int both = OUTER_PARTS - 1; both >= 0; both--) // the parts' numbers together: the smallest products first
          UNROLL for (int part = both; part >= 0; part--) multiply_16x8x16(s, n[part][i], first.v[both - part], second.v[both - part]);
        UNROLL for (int e = 0; e < 4; e++) sum[i][j][e] = sum[i][j][e] + s[e];
      }
    }
  }

  INLINE void run(float *room, const outer_group_job &j, const outer_tile &t) {
    const view g = j.g;
    const bool turned = g.rows > g.cols;
    const outer_side left = turned ? side_of(j.b, 0, t.narrow) : side_of(j.a, 0, t.narrow), right = turned ? side_of(j.a, 0, t.wide) : side_of(j.b, 0, t.wide);
    for (int chain = 0; chain < 2; chain++) {
      const bool apart = chain == 1;
      const int from = apart ? j.count - j.apart : 0, to = apart ? j.count : j.count - j.apart;
      if (from >= to) continue;
      int next = from, there = 0, here = 0;
      auto bring = [&]() {
        if (next < to) {
          const outer_rows rows = memory<const outer_rows>(j.groups)[next++];
          float *place = room + there * place_floats;
          bring_side_of<narrow>(place, left, rows.first, rows.count);
          bring_side_of<wide>(place + OUTER_GROUP * narrow_row, right, rows.first, rows.count);
        }
        copy_async_commit();
        there = there + 1 == places ? 0 : there + 1;
      };
      for (int k = 1; k < places; k++) bring();
      float sum[down][across][4];
      UNROLL for (int i = 0; i < down; i++)
        UNROLL for (int c = 0; c < across; c++)
          UNROLL for (int e = 0; e < 4; e++) sum[i][c][e] = 0.0f;
      if (!apart && !j.first) each_of(g, turned, t, sum, [](const float &at, float &v) { v = at; });
      for (int group = from; group < to; group++) {
        copy_async_wait<places - 2>();
        barrier(); // these rows have arrived, and those before them, whose place is the next ones', have been read by all
        bring();
        add_group(sum, room + here * place_floats, room + here * place_floats + OUTER_GROUP * narrow_row);
        here = here + 1 == places ? 0 : here + 1;
      }
      barrier(); // the rows of this chain have been read by all
      if (apart) each_of(g, turned, t, sum, [](float &at, float v) { at = at + v; });
      else each_of(g, turned, t, sum, [](float &at, float v) { at = v; });
    }
  }
};

KERNEL_BLOCKS(outer_group, OUTER_THREADS, 3, outer_arguments) {
  DYNAMIC_SHARED(float, room);
  const outer_tile t = memory<const outer_tile>(a.tiles)[block_x()];
  const outer_group_job &j = memory<const outer_group_job>(a.jobs)[t.job];
  if (t.power == 5) outer_by_groups<32, 6>::run(room, j, t);
  else outer_by_groups<16, 4>::run(room, j, t);
}
