// Partial sums: where the chains of an output and the sums of its segments lie. Included once per instruction set.

// add_tile adds a tile that was summed apart.
INLINE void add_tile(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++, to += to_stride, from += from_stride) EACH_16(columns) STORE(to, ladd(LOAD(to), LOAD(from)));
}

// partial_sums is where a unit of y has its chains and the sums of its segments: y itself and, from row and column on, as wide tiles beside it.
typedef struct {
  view y;
  float *beside;
  int64_t row, column, stride, size; // size: from one to the next
} partial_sums;
INLINE float *sum_at(const partial_sums *p, int64_t i, int64_t row, int64_t column) {
  return i ? p->beside + (i - 1) * p->size + (row - p->row) * p->stride + column - p->column : row_of(p->y, row) + column;
}

// sums_beside is the partial sums of a unit of y: rows of strips from s0 on, columns from first on, as many as lie in so many panels.
INLINE partial_sums sums_beside(const product_job *j, int64_t s0, int64_t s1, int64_t first, float *memory) {
  int64_t within = j->first_row % j->strip_rows, width = j->panels_per_unit * PANEL;
  return (partial_sums){.y = j->y, .beside = memory, .row = s0 * j->strip_rows - (s0 ? within : 0), .column = first, .stride = width, .size = (s1 - s0) * j->strip_rows * width};
}
