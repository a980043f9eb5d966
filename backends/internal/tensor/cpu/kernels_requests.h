// Requests of memory in advance. Included once per instruction set.

enum { LINE = 16 }; // words that memory gives at once

// requests are lines of memory that are wanted soon, in runs that lie apart. Some are asked for at a time: as many as a processor has under way do not hold up what it multiplies.
typedef struct {
  const float *next;
  int64_t count, some; // lines in all, and at a time
  int64_t in_run, left, skip; // lines of a run and of the one at next; words from the end of a run to the next one
} requests;
INLINE void ask_some(requests *r) {
  int64_t n = r->some < r->count ? r->some : r->count;
  r->count -= n;
  for (; n > 0; n--) {
    ASK_SECOND(r->next);
    r->next += LINE;
    if (--r->left == 0) r->next += r->skip, r->left = r->in_run;
  }
}
