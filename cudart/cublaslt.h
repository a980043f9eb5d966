// cuBLASLt through a table of function pointers, as driver.h has the driver. Types and numbers are those of cublasLt.h, whose binary interface for what is used here is the same in versions 12 and 13: descriptors
// are made by the library (…Create), none is laid out here.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

typedef int cublaslt_result;

// One of the algorithms that the library offers for a product. It may be kept for as long as the library is loaded.
typedef struct cublaslt_choice {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} cublaslt_choice;

#define CUBLASLT_FUNCTIONS(X) \
  X(size_t, cublasLtGetVersion, (void)) \
  X(const char *, cublasLtGetStatusString, (cublaslt_result code)) \
  X(cublaslt_result, cublasLtCreate, (void **handle)) \
  X(cublaslt_result, cublasLtDestroy, (void *handle)) \
  X(cublaslt_result, cublasLtMatmulDescCreate, (void **operation, int compute_type, int scale_type)) \
  X(cublaslt_result, cublasLtMatmulDescSetAttribute, (void *operation, int attribute, const void *value, size_t bytes)) \
  X(cublaslt_result, cublasLtMatmulDescDestroy, (void *operation)) \
  X(cublaslt_result, cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t pitch)) \
  X(cublaslt_result, cublasLtMatrixLayoutSetAttribute, (void *layout, int attribute, const void *value, size_t bytes)) \
  X(cublaslt_result, cublasLtMatrixLayoutDestroy, (void *layout)) \
  X(cublaslt_result, cublasLtMatmulPreferenceCreate, (void **preference)) \
  X(cublaslt_result, cublasLtMatmulPreferenceSetAttribute, (void *preference, int attribute, const void *value, size_t bytes)) \
  X(cublaslt_result, cublasLtMatmulPreferenceDestroy, (void *preference)) \
  X(cublaslt_result, cublasLtMatmulAlgoGetHeuristic, (void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, cublaslt_choice *choices, int *count)) \
  X(cublaslt_result, cublasLtMatmulAlgoConfigGetAttribute, (const void *algorithm, int attribute, void *value, size_t bytes, size_t *written)) \
  X(cublaslt_result, cublasLtMatmul, \
    (void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm, \
     void *workspace, size_t workspace_bytes, void *stream))

typedef struct cublaslt {
  void *library;
#define CUBLASLT_POINTER(result, name, arguments) result(*name) arguments;
  CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
} cublaslt;

#define CUBLASLT_ONE(result, name, arguments) +1
enum { CUBLASLT_FUNCTION_COUNT = 0 CUBLASLT_FUNCTIONS(CUBLASLT_ONE) };
#undef CUBLASLT_ONE
extern const library_function cublaslt_functions[CUBLASLT_FUNCTION_COUNT];

size_t cublaslt_version(const cublaslt *l); // also of a library that lacks functions; 0 if it does not tell
const char *cublaslt_error_text(const cublaslt *l, cublaslt_result code);
// The handle is for v's device.
cublaslt_result cublaslt_create(const cublaslt *l, const device *v, void **handle);
cublaslt_result cublaslt_destroy(const cublaslt *l, const device *v, void *handle);

// Products of rows with one shape of weights: y = x · wᵀ, or x · w, of bfloat16 into float32, by one algorithm. In the library's terms, where columns are contiguous, yᵀ = w · xᵀ, or wᵀ · xᵀ.
typedef struct cublaslt_plan {
  void *operation, *weight, *rows, *result, *preference;
  uint64_t algorithm[8];
} cublaslt_plan;
// cublaslt_describe fills a zeroed plan for as many rows; it needs no device. failed names the function that did not work; also then cublaslt_forget undoes what was done.
cublaslt_result cublaslt_describe(const cublaslt *l, cublaslt_plan *p, int transposed, int64_t rows, int64_t columns, int64_t depth, const char **failed);
// cublaslt_offers gives the first algorithms offered, at most as many as asked for, that sum a product's element in one piece: without workspace, a cut of the inner axis or a reduction. Code 15, not supported, if there is none.
cublaslt_result cublaslt_offers(const cublaslt *l, const device *v, void *handle, const cublaslt_plan *p, uint64_t (*algorithms)[8], int most, int *found, const char **failed);
// cublaslt_multiply puts a product by the plan's algorithm into v's stream; pitches are in elements. Not for two threads with one plan.
cublaslt_result cublaslt_multiply(const cublaslt *l, const device *v, void *handle, const cublaslt_plan *p, int64_t rows, uint64_t y, int64_t y_pitch, uint64_t x, int64_t x_pitch, uint64_t w, int64_t w_pitch,
                                  int accumulate);
// cublaslt_forget zeroes the plan.
cublaslt_result cublaslt_forget(const cublaslt *l, cublaslt_plan *p);
