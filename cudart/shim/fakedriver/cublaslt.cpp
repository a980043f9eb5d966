// cuBLASLt without a GPU, for tests, over the driver without one: an element is summed as the shim's tensor cores do it, from zero, and what the result held is added at the end. Attributes of sizes and numbers that
// the library does not have are refused, and so are handles that do not exist; what has not been given back when a handle is destroyed is an error there.
//
// FAKE_CUBLASLT_VERSION is the version (120804). FAKE_CUBLASLT_FAIL=name:n:code makes the n-th call of that function from the time the variable was set give that code. FAKE_CUBLASLT_BITS=other cuts the inner axis
// in two, =begin begins with what the result held. FAKE_CUBLASLT_OFFERS=split offers algorithms with workspace, with a cut of the inner axis and with a reduction only; =more offers those first.
// FAKE_CUBLASLT_ALGORITHMS=letters are the algorithms that sum in one piece, in the order in which they are offered: r is right, o has the bits of BITS=other, u is offered and then not supported, f fails. What one does is
// part of it, so it does the same in another process. It is r; =columns:letters is for products with so many columns only.
// FAKE_CUBLASLT_COUNT is a file that gets a line for each product.
#include "shim.h"
#include "streams.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace {
enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, FAILED = 13, NOT_SUPPORTED = 15 };
enum { FLOAT32_VALUES = 0, BFLOAT16_VALUES = 14 };
enum { WITH_WORKSPACE = 100, IN_PARTS, BY_MULTIPROCESSORS, REDUCED, WHOLE };

struct Operation {
  int32_t first = 0, second = 0;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t pitch;
};
struct Preference {
  uint64_t workspace = 1 << 25;
  uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};
};
struct Choice {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
std::mutex lock;
std::set<void *> handles, operations, layouts, preferences;

const char *setting(const char *name) {
  const char *v = getenv(name);
  return v ? v : "";
}

int failure(const char *function) {
  static std::string plan;
  static long calls;
  const std::string v = setting("FAKE_CUBLASLT_FAIL");
  if (plan != v) plan = v, calls = 0;
  const size_t length = strlen(function);
  if (v.compare(0, length, function) || v[length] != ':') return 0;
  char *end;
  const long n = strtol(v.c_str() + length + 1, &end, 10);
  return ++calls == n ? atoi(end + 1) : 0;
}

template <class T> int take(std::set<void *> &all, void **to, T value) {
  all.insert(*to = new T(value));
  return 0;
}
template <class T> int give(std::set<void *> &all, void *of) {
  if (!all.erase(of)) return INVALID_VALUE;
  delete (T *)of;
  return 0;
}
template <class T> int set(T &to, const void *value, size_t bytes) {
  if (bytes != sizeof to) return INVALID_VALUE;
  memcpy(&to, value, bytes);
  return 0;
}

// agree checks the shapes of D (columns × rows of the caller's) = op(A) · op(B), and that every matrix is at multiples of 16 bytes.
bool agree(const Operation &o, const Layout &a, const Layout &b, const Layout &d) {
  const uint64_t m = o.first ? a.columns : a.rows, k = o.first ? a.rows : a.columns;
  for (const Layout *l : {&a, &b, &d})
    if (l->pitch < (int64_t)l->rows || l->pitch * (l->type == FLOAT32_VALUES ? 4 : 2) % 16) return false;
  return a.type == BFLOAT16_VALUES && b.type == BFLOAT16_VALUES && d.type == FLOAT32_VALUES && !o.second && d.rows == m && d.columns == b.columns && b.rows == k;
}

// whole gives the letters of the algorithms that sum in one piece, for products with so many columns.
std::string whole(uint64_t columns) {
  const std::string letters = setting("FAKE_CUBLASLT_ALGORITHMS");
  const size_t colon = letters.find(':');
  if (letters.empty() || (colon != letters.npos && strtoull(letters.c_str(), nullptr, 10) != columns)) return "r";
  return colon == letters.npos ? letters : letters.substr(colon + 1);
}

int multiply(const Operation &o, const Layout &a, const Layout &b, const Layout &d, const uint16_t *first, const uint16_t *second, float *to, float beta, bool other) {
  const std::string bits = other ? "other" : setting("FAKE_CUBLASLT_BITS");
  const uint64_t depth = b.rows, groups = (depth + 15) / 16;
  std::vector<uint16_t> columns(d.rows * groups * 16), row(groups * 16); // the inner axis filled up with zeros
  for (uint64_t i = 0; i < d.rows; i++)
    for (uint64_t k = 0; k < depth; k++) columns[i * groups * 16 + k] = o.first ? first[i * (uint64_t)a.pitch + k] : first[k * (uint64_t)a.pitch + i];
  for (uint64_t r = 0; r < d.columns; r++) {
    memcpy(row.data(), second + r * (uint64_t)b.pitch, 2 * depth);
    for (uint64_t i = 0; i < d.rows; i++) {
      float &y = to[r * (uint64_t)d.pitch + i];
      const float held = beta ? y : 0.0f;
      float sum = bits == "begin" ? held : 0.0f, half = 0;
      for (uint64_t g = 0; g < groups; g++) {
        if (bits == "other" && g == groups / 2) half = sum, sum = 0;
        sum = shim::sum_of_products(&row[16 * g], &columns[(i * groups + g) * 16], sum);
      }
      sum += half;
      y = beta && bits != "begin" ? sum + held : sum;
    }
  }
  return 0;
}
} // namespace

#define ENTER \
  std::lock_guard<std::mutex> guard(lock); \
  if (int code = failure(__func__)) return code;
#define KNOWN(all, which) \
  if (!all.count(which)) return INVALID_VALUE;

extern "C" {
size_t cublasLtGetVersion(void) {
  const char *v = setting("FAKE_CUBLASLT_VERSION");
  return *v ? (size_t)atol(v) : 120804;
}
const char *cublasLtGetStatusString(int code) { return code == NOT_SUPPORTED ? "not supported" : code == INVALID_VALUE ? "invalid value" : code == NOT_INITIALIZED ? "not initialized" : "failed"; }
int cublasLtCreate(void **handle) { ENTER return take(handles, handle, 0); }
int cublasLtDestroy(void *handle) {
  ENTER if (!operations.empty() || !layouts.empty() || !preferences.empty()) return INVALID_VALUE;
  return give<int>(handles, handle);
}
int cublasLtMatmulDescCreate(void **operation, int compute, int scale) { ENTER return compute == 68 && scale == FLOAT32_VALUES ? take(operations, operation, Operation{}) : NOT_SUPPORTED; }
int cublasLtMatmulDescSetAttribute(void *operation, int attribute, const void *value, size_t bytes) {
  ENTER KNOWN(operations, operation) auto *o = (Operation *)operation;
  return attribute == 3 ? set(o->first, value, bytes) : attribute == 4 ? set(o->second, value, bytes) : INVALID_VALUE;
}
int cublasLtMatmulDescDestroy(void *operation) { ENTER return give<Operation>(operations, operation); }
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t pitch) { ENTER return take(layouts, layout, Layout{type, rows, columns, pitch}); }
int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
  ENTER KNOWN(layouts, layout) auto *l = (Layout *)layout;
  return attribute == 3 ? set(l->columns, value, bytes) : attribute == 4 ? set(l->pitch, value, bytes) : INVALID_VALUE;
}
int cublasLtMatrixLayoutDestroy(void *layout) { ENTER return give<Layout>(layouts, layout); }
int cublasLtMatmulPreferenceCreate(void **preference) { ENTER return take(preferences, preference, Preference{}); }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
  ENTER KNOWN(preferences, preference) auto *p = (Preference *)preference;
  if (attribute == 1) return set(p->workspace, value, bytes);
  if (attribute == 3) return set(p->reductions, value, bytes);
  return attribute >= 5 && attribute <= 8 ? set(p->alignment[attribute - 5], value, bytes) : INVALID_VALUE;
}
int cublasLtMatmulPreferenceDestroy(void *preference) { ENTER return give<Preference>(preferences, preference); }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, Choice *choices, int *count) {
  ENTER KNOWN(handles, handle) KNOWN(operations, operation) KNOWN(layouts, a) KNOWN(layouts, b) KNOWN(layouts, c) KNOWN(layouts, d) KNOWN(preferences, preference)
  const auto &p = *(Preference *)preference;
  for (uint32_t alignment : p.alignment)
    if (alignment != 16) return INVALID_VALUE;
  *count = 0;
  if (p.workspace || p.reductions || !agree(*(Operation *)operation, *(Layout *)a, *(Layout *)b, *(Layout *)d)) return INVALID_VALUE;
  std::vector<std::pair<int, char>> offers;
  const std::string which = setting("FAKE_CUBLASLT_OFFERS");
  if (!which.empty()) offers = {{WITH_WORKSPACE, 0}, {IN_PARTS, 0}, {BY_MULTIPROCESSORS, 0}, {REDUCED, 0}};
  if (which != "split")
    for (char letter : whole(((Layout *)d)->rows)) offers.push_back({WHOLE, letter});
  for (auto [offer, letter] : offers)
    if (*count < most) choices[(*count)++] = {{(uint64_t)offer, 0, 0, 0, 0, 0, 0, (uint64_t)letter}, offer == WITH_WORKSPACE ? size_t{4096} : 0, 0, 1, {}};
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *value, size_t bytes, size_t *written) {
  ENTER const uint64_t offer = *(const uint64_t *)algorithm;
  const int32_t answer = attribute == 2 ? (offer == IN_PARTS ? 4 : offer == BY_MULTIPROCESSORS ? -1 : 1) : offer == REDUCED ? 2 : 0;
  if (bytes != sizeof answer || (attribute != 2 && attribute != 3)) return INVALID_VALUE;
  memcpy(value, &answer, bytes);
  *written = bytes;
  return 0;
}
int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                   const void *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
  ENTER KNOWN(handles, handle) KNOWN(operations, operation) KNOWN(layouts, a_layout) KNOWN(layouts, b_layout) KNOWN(layouts, d_layout)
  const auto o = *(Operation *)operation;
  const uint64_t letter = ((const uint64_t *)algorithm)[7];
  const auto la = *(Layout *)a_layout, lb = *(Layout *)b_layout, ld = *(Layout *)d_layout;
  if (*(const float *)alpha != 1 || *(const uint64_t *)algorithm != WHOLE || workspace || workspace_bytes || c != d || c_layout != d_layout || !agree(o, la, lb, ld)) return INVALID_VALUE;
  for (const void *at : {a, b, (const void *)d})
    if ((uintptr_t)at % 16) return INVALID_VALUE;
  if (letter != 'r' && letter != 'o') return letter == 'u' ? NOT_SUPPORTED : FAILED;
  if (const char *path = setting("FAKE_CUBLASLT_COUNT"); *path)
    if (FILE *f = fopen(path, "a")) {
      fprintf(f, "%d %d %d %g\n", (int)ld.columns, (int)ld.rows, (int)lb.rows, *(const float *)beta);
      fclose(f);
    }
  std::lock_guard<std::mutex> driver(streams::lock());
  if (!streams::known(stream)) return INVALID_VALUE;
  return streams::put(stream, [=, with = *(const float *)beta] { return multiply(o, la, lb, ld, (const uint16_t *)a, (const uint16_t *)b, (float *)d, with, letter == 'o'); });
}
}
