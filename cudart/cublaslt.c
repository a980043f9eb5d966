#include "cublaslt.h"

#include <string.h>

#define NEEDED(result, name, arguments) {#name, offsetof(cublaslt, name), 0},
const library_function cublaslt_functions[CUBLASLT_FUNCTION_COUNT] = {CUBLASLT_FUNCTIONS(NEEDED)};
#undef NEEDED

size_t cublaslt_version(const cublaslt *l) { return l->cublasLtGetVersion ? l->cublasLtGetVersion() : 0; }
const char *cublaslt_error_text(const cublaslt *l, cublaslt_result code) { return l->cublasLtGetStatusString(code); }

enum { NOT_INITIALIZED = 1, NOT_SUPPORTED = 15 };

// The library works in the thread's current context.
#define CURRENT(v) \
  if ((v)->d->cuCtxSetCurrent((v)->context)) return NOT_INITIALIZED

cublaslt_result cublaslt_create(const cublaslt *l, const device *v, void **handle) {
  CURRENT(v);
  return l->cublasLtCreate(handle);
}

cublaslt_result cublaslt_destroy(const cublaslt *l, const device *v, void *handle) {
  CURRENT(v);
  return l->cublasLtDestroy(handle);
}

// CALL calls a function of the library, whose name *failed then is.
#define CALL(name, ...) \
  do { \
    *failed = #name; \
    const cublaslt_result code = l->name(__VA_ARGS__); \
    if (code) return code; \
  } while (0)

cublaslt_result cublaslt_describe(const cublaslt *l, cublaslt_plan *p, int transposed, int64_t rows, int64_t columns, int64_t depth, const char **failed) {
  enum { COMPUTE_FLOAT32 = 68, FLOAT32_VALUES = 0, BFLOAT16_VALUES = 14 };
  enum { FIRST_TRANSPOSED = 3, SECOND_TRANSPOSED = 4 };                              // of a description
  enum { WORKSPACE = 1, REDUCTIONS = 3, FIRST_ALIGNMENT = 5, LAST_ALIGNMENT = 8 }; // of a preference
  CALL(cublasLtMatmulDescCreate, &p->operation, COMPUTE_FLOAT32, FLOAT32_VALUES);
  const int32_t first = !transposed, second = 0; // rows of w are the library's columns
  CALL(cublasLtMatmulDescSetAttribute, p->operation, FIRST_TRANSPOSED, &first, sizeof first);
  CALL(cublasLtMatmulDescSetAttribute, p->operation, SECOND_TRANSPOSED, &second, sizeof second);
  const uint64_t in = (uint64_t)(transposed ? columns : depth), out = (uint64_t)(transposed ? depth : columns);
  CALL(cublasLtMatrixLayoutCreate, &p->weight, BFLOAT16_VALUES, in, out, (int64_t)in);
  CALL(cublasLtMatrixLayoutCreate, &p->rows, BFLOAT16_VALUES, (uint64_t)depth, (uint64_t)rows, depth);
  CALL(cublasLtMatrixLayoutCreate, &p->result, FLOAT32_VALUES, (uint64_t)columns, (uint64_t)rows, columns);
  CALL(cublasLtMatmulPreferenceCreate, &p->preference);
  const uint64_t workspace = 0;
  const uint32_t reductions = 0, alignment = 16;
  CALL(cublasLtMatmulPreferenceSetAttribute, p->preference, WORKSPACE, &workspace, sizeof workspace);
  CALL(cublasLtMatmulPreferenceSetAttribute, p->preference, REDUCTIONS, &reductions, sizeof reductions);
  for (int which = FIRST_ALIGNMENT; which <= LAST_ALIGNMENT; which++) CALL(cublasLtMatmulPreferenceSetAttribute, p->preference, which, &alignment, sizeof alignment);
  return 0;
}

cublaslt_result cublaslt_offers(const cublaslt *l, const device *v, void *handle, const cublaslt_plan *p, uint64_t (*algorithms)[8], int most, int *found, const char **failed) {
  enum { PARTS = 2, REDUCTION = 3, MOST = 32 }; // of an algorithm; how many are looked at
  cublaslt_choice choices[MOST];
  int count = 0;
  *found = 0;
  *failed = "cuCtxSetCurrent";
  CURRENT(v);
  CALL(cublasLtMatmulAlgoGetHeuristic, handle, p->operation, p->weight, p->rows, p->result, p->result, p->preference, MOST, choices, &count);
  for (int i = 0; i < count && *found < most; i++) {
    if (choices[i].state || choices[i].workspace) continue;
    int32_t parts = 0;
    uint32_t reduction = 0;
    size_t written = 0;
    CALL(cublasLtMatmulAlgoConfigGetAttribute, choices[i].algorithm, PARTS, &parts, sizeof parts, &written);
    CALL(cublasLtMatmulAlgoConfigGetAttribute, choices[i].algorithm, REDUCTION, &reduction, sizeof reduction, &written);
    if ((parts != 0 && parts != 1) || reduction) continue; // a number below zero is a cut by the number of multiprocessors
    memcpy(algorithms[(*found)++], choices[i].algorithm, sizeof *algorithms);
  }
  return *found ? 0 : NOT_SUPPORTED;
}

cublaslt_result cublaslt_multiply(const cublaslt *l, const device *v, void *handle, const cublaslt_plan *p, int64_t rows, uint64_t y, int64_t y_pitch, uint64_t x, int64_t x_pitch, uint64_t w, int64_t w_pitch,
                                  int accumulate) {
  enum { COLUMNS = 3, PITCH = 4 }; // of a layout
  const uint64_t columns = (uint64_t)rows;
  const float alpha = 1, beta = accumulate ? 1 : 0;
  const struct {
    void *layout;
    int attribute;
    const void *value;
  } now[] = {{p->weight, PITCH, &w_pitch}, {p->rows, COLUMNS, &columns}, {p->rows, PITCH, &x_pitch}, {p->result, COLUMNS, &columns}, {p->result, PITCH, &y_pitch}};
  CURRENT(v);
  for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
    const cublaslt_result code = l->cublasLtMatrixLayoutSetAttribute(now[i].layout, now[i].attribute, now[i].value, 8);
    if (code) return code;
  }
  void *to = (void *)(uintptr_t)y;
  return l->cublasLtMatmul(handle, p->operation, &alpha, (const void *)(uintptr_t)w, p->weight, (const void *)(uintptr_t)x, p->rows, &beta, to, p->result, to, p->result, p->algorithm, NULL, 0, v->stream);
}

cublaslt_result cublaslt_forget(const cublaslt *l, cublaslt_plan *p) {
  cublaslt_result first = 0, code;
  if (p->preference && (code = l->cublasLtMatmulPreferenceDestroy(p->preference)) && !first) first = code;
  void *const layouts[] = {p->weight, p->rows, p->result};
  for (int i = 0; i < 3; i++)
    if (layouts[i] && (code = l->cublasLtMatrixLayoutDestroy(layouts[i])) && !first) first = code;
  if (p->operation && (code = l->cublasLtMatmulDescDestroy(p->operation)) && !first) first = code;
  memset(p, 0, sizeof *p);
  return first;
}
