// Kernels that use bulk copies, mbarriers and clusters, rightly and wrongly: misuse NAME [ORDER] runs one and prints what the shim says of it.
#include "bulk.h"

#include <cstdio>
#include <cstdlib>

// One warp of 32 brings blocks of 8 KiB of the operands, four of 32 multiply them. What is wrong comes as bits.
enum Wrong {
  NOTHING,
  FEWER_BYTES, MORE_BYTES, UNALIGNED, BEYOND, // of copies
  NO_WAIT, EARLY_COPY, WRONG_PARITY, STILL_READ, // of turns
  ONE_ARRIVAL_MORE, NO_RELEASE, NOT_INITIALISED, TWICE, // of barriers
  LEFT_BEHIND, MISSED_PHASE,
  NOT_PUBLISHED, NOT_BEGUN, // of products
  OWN_ONLY, // an arrival at the own block alone
};
typedef struct { uint64_t from, to; int32_t wrong, turns; } misuse_arguments;

enum { TILE = 16 << 10 }; // a left matrix of 64 × 64 and a right one

// The room has one place, so a turn waits for the one before.
KERNEL(ring, 160, misuse_arguments) {
  DYNAMIC_SHARED(unsigned char, room);
  unsigned char *at = round_up(room);
  mbarrier *full = (mbarrier *)(at + TILE), *empty = full + 1;
  if (thread() == 0) {
    if (a.wrong != NOT_INITIALISED) mbarrier_init(full, 1);
    mbarrier_init(empty, 4);
    if (a.wrong == TWICE) mbarrier_init(empty, 4);
    mbarrier_init_done();
  }
  barrier();
  float sum[64] = {};
  for (int t = 0; t < a.turns; t++) {
    const unsigned parity = t & 1;
    if (warp() == 4) {
      if (a.wrong != EARLY_COPY) mbarrier_wait(empty, parity ^ 1);
      if (lane() == 0) {
        mbarrier_arrive_expect(full, a.wrong == FEWER_BYTES ? TILE - 16 : a.wrong == MORE_BYTES ? TILE + 16 : TILE);
        if (a.wrong == ONE_ARRIVAL_MORE) mbarrier_arrive(full);
        const unsigned char *from = memory<const unsigned char>(a.from) + t * TILE;
        copy_bulk(at + (a.wrong == UNALIGNED ? 8 : 0), from, TILE / 2, full);
        copy_bulk(at + (a.wrong == BEYOND ? TILE : TILE / 2), from + TILE / 2, TILE / 2, full);
      }
      warp_barrier();
      continue;
    }
    if (a.wrong != NO_WAIT) mbarrier_wait(full, a.wrong == WRONG_PARITY ? 0 : parity);
    begin_products();
    // Of 64 columns; the instruction has 128, of which the second half is of what lies behind the operands.
    for (int d = 0; d < 4; d++) shim::multiply_later(sum, 64, false, {at + 32 * d, 16, 1024, false}, nullptr, {at + TILE / 2 + 32 * d, 16, 1024, false});
    end_products();
    if (a.wrong != STILL_READ) finish_products(sum);
    if (lane() == 0 && a.wrong != NO_RELEASE) mbarrier_arrive(empty);
  }
  if (warp() < 4) {
    finish_products(sum);
    for (int i = 0; i < 32; i++) memory<float>(a.to)[thread() * 32 + i] = sum[i];
  }
}

// Both blocks of a cluster have each half copied to both.
KERNEL_CLUSTER(shared_by_two, 32, 2, misuse_arguments) {
  DYNAMIC_SHARED(unsigned char, room);
  mbarrier *full = (mbarrier *)(room + 2048), *done = full + 1;
  if (thread() == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(done, 2);
    mbarrier_init_done();
  }
  cluster_barrier();
  const int rank = (int)cluster_rank();
  if (thread() == 0) {
    mbarrier_arrive_expect(full, 2048);
    if (a.wrong != NO_RELEASE || rank == 0) copy_bulk_multicast(room + rank * 1024, memory<const unsigned char>(a.from) + rank * 1024, 1024, full, 3);
  }
  mbarrier_wait(full, 0);
  for (int i = thread(); i < 2048; i += 32) memory<unsigned char>(a.to)[(block_x() / 2 * 2 + rank) * 2048 + i] = room[i];
  if (a.wrong == LEFT_BEHIND) {
    if (rank == 0) return;
    for (int i = 0; i < 8; i++) warp_barrier();
    mbarrier_arrive_in(done, 0);
    return;
  }
  warp_barrier();
  if (thread() < 2) mbarrier_arrive_in(done, (unsigned)thread());
  mbarrier_wait(done, 0);
  cluster_barrier();
}

// Four blocks have the same rows of 128 bytes: each brings a quarter of them to all, a row at a time with room between, and loads matrices of all. The room has one place, which is filled again when the warps of all blocks have left it.
KERNEL_CLUSTER(shared_rows, 64, 4, misuse_arguments) {
  enum { ROWS = 16, ROW = 144 };
  DYNAMIC_SHARED(unsigned char, room);
  mbarrier *full = (mbarrier *)(room + ROWS * ROW), *empty = full + 1;
  if (thread() == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, a.wrong == OWN_ONLY ? 1 : 4);
    mbarrier_init_done();
  }
  cluster_barrier();
  float sum[8] = {};
  for (int t = 0; t < a.turns; t++) {
    if (warp() == 1) {
      if (a.wrong != EARLY_COPY) mbarrier_wait(empty, (t & 1) ^ 1);
      if (lane() == 0) mbarrier_arrive_expect(full, ROWS * 128);
      const int r = lane() * 4 + (int)cluster_rank();
      if (lane() < ROWS / 4) copy_bulk_multicast(room + r * ROW, memory<const unsigned char>(a.from) + (t * ROWS + r) * 128, 128, full, a.wrong == NO_RELEASE ? 7 : 15);
      warp_barrier();
      continue;
    }
    if (a.wrong != NO_WAIT) mbarrier_wait(full, t & 1);
    for (int d = 0; d < 4; d++) {
      unsigned r[4];
      load_matrices(r, room + lane() % 16 * ROW + 32 * d + lane() / 16 * 16);
      for (int i = 0; i < 4; i++) sum[2 * i] += bits<float>(r[i] << 16), sum[2 * i + 1] += bits<float>(r[i] & 0xffff0000u);
    }
    warp_barrier();
    if (a.wrong == OWN_ONLY ? lane() == 0 : lane() < 4) mbarrier_arrive_in(empty, a.wrong == OWN_ONLY ? cluster_rank() : (unsigned)lane());
  }
  for (int i = 0; i < 8 && warp() == 0; i++) memory<float>(a.to)[(block_x() * 32 + lane()) * 8 + i] = sum[i];
  cluster_barrier();
}

// A warp goes on to the end of the second phase without the first.
KERNEL(phases, 64, misuse_arguments) {
  DYNAMIC_SHARED(mbarrier, room);
  if (thread() == 0) {
    mbarrier_init(room, 1);
    mbarrier_init_done();
  }
  barrier();
  if (thread() == 32)
    for (int i = 0; i < 3; i++) mbarrier_arrive(room);
  barrier();
  if (thread() < a.turns) mbarrier_wait(room, 0);
}

// Two warpgroups multiply fragments, each with a right matrix that its threads bring and that they wait for among themselves; the first of them does so twice as often. The results are those of both matrices, and of twice the first one's
// where it begins anew.
KERNEL(fragments, 256, misuse_arguments) {
  DYNAMIC_SHARED(unsigned char, room);
  unsigned char *at = round_up(room) + warp() / 4 * (TILE / 2);
  const unsigned char *from = memory<const unsigned char>(a.from);
  const int number = warp() / 4, who = thread() % 128, row = warp() % 4 * 16 + lane() / 4;
  float sum[32] = {};
  for (int turn = number; turn < 2; turn++) {
    for (int i = 0; i < 50 && a.wrong == NO_WAIT && warp() % 4; i++) warp_barrier(); // later than the first warp
    for (int e = who; e < 512; e += 128) copy_async(at + 16 * e, from + TILE / 2 + number * TILE + 16 * e, true);
    copy_async_commit();
    copy_async_wait<0>();
    if (a.wrong != NOT_PUBLISHED) publish();
    if (a.wrong != NO_WAIT) group_barrier();
    if (a.wrong != NOT_BEGUN) begin_products();
    for (int d = 0; d < 4; d++) {
      unsigned left[4]; // of the matrix without a pattern
      for (int i = 0; i < 4; i++) left[i] = *(const unsigned *)(from + number * TILE + ((row + i % 2 * 8) * 64 + 16 * d + i / 2 * 8 + lane() % 4 * 2) * 2);
      const shared_matrix right = further(along_rows(at), 32 * d);
      if (d == 0) multiply_anew(sum, left, right);
      else multiply_group<false>(sum, left, right);
    }
    end_products();
    finish_products(sum);
    group_barrier();
  }
  for (int i = 0; i < 32; i++) memory<float>(a.to)[thread() * 32 + i] = sum[i];
}

int main(int, char **argv) {
  const shim::Kernel *k = shim::find(argv[1]);
  const bool ring = !strcmp(argv[1], "ring"), two = !strcmp(argv[1], "shared_by_two"), rows = !strcmp(argv[1], "shared_rows");
  enum { TURNS = 5 };
  uint16_t *from = (uint16_t *)aligned_alloc(16, TURNS * TILE);
  for (int i = 0; i < TURNS * TILE / 2; i++) from[i] = (uint16_t)(0x3f80 + (i * 7 + i / 128) % 5); // numbers around 1
  float *to = (float *)calloc(TILE, 4);
  const misuse_arguments a = {(uint64_t)from, (uint64_t)to, atoi(argv[2]), TURNS};
  const char *wrong = shim::launch(k, {two ? 4u : rows ? 8u : 1u, 1, 1}, k->threads, TILE + 1024 + 16, &a, strtoull(argv[3], nullptr, 10));
  if (wrong) return printf("%s\n", wrong), 0;
  if (two)
    for (int i = 0; i < 4 * 2048; i++)
      if (((unsigned char *)to)[i] != ((unsigned char *)from)[i % 2048]) return printf("byte %d is another one\n", i), 0;
  for (int i = 0; rows && i < 8 * 32 * 8; i++) { // a lane's are of rows lane/4 and 8 more, and of columns 2(lane mod 4), the next, and both 8 more
    const int l = i / 8 % 32, row = l / 4 + 8 * (i / 2 % 2), column = 2 * (l % 4) + i % 2 + 8 * (i / 4 % 2);
    float want = 0;
    for (int t = 0; t < TURNS; t++)
      for (int d = 0; d < 4; d++) want += bits<float>((uint32_t)from[(t * 16 + row) * 64 + 16 * d + column] << 16);
    if (to[i] != want) return printf("number %d is %g, want %g\n", i, to[i], want), 0;
  }
  if (ring) { // the sum of the turns' products, by the blocks' layout
    for (int w = 0; w < 4; w++)
      for (int l = 0; l < 32; l++)
        for (int i = 0; i < 32; i++) {
          const int row = 16 * w + l / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (l % 4) + i % 2;
          double want = 0;
          for (int t = 0; t < TURNS; t++)
            for (int k = 0; k < 64; k++) {
              auto at = [&](int matrix, int r) { return (double)bits<float>((uint32_t)from[t * TILE / 2 + matrix * TILE / 4 + r * 64 + ((k / 8) ^ (r % 8)) * 8 + k % 8] << 16); };
              want += at(0, row) * at(1, column);
            }
          const double got = to[(32 * w + l) * 32 + i];
          if (!(got > want * 0.99999 && got < want * 1.00001)) return printf("element (%d, %d) is %g, want %g\n", row, column, got, want), 0;
        }
  }
  if (!strcmp(argv[1], "fragments"))
    for (int thread = 0; thread < 256; thread++)
      for (int i = 0; i < 32; i++) {
        const int number = thread / 128, l = thread % 32, row = thread / 32 % 4 * 16 + l / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (l % 4) + i % 2;
        const uint16_t *left = from + number * TILE / 2, *right = left + TILE / 4;
        double want = 0;
        for (int k = 0; k < 64; k++) want += (double)bits<float>((uint32_t)left[row * 64 + k] << 16) * bits<float>((uint32_t)right[column * 64 + ((k / 8) ^ (column % 8)) * 8 + k % 8] << 16);
        const double got = to[thread * 32 + i];
        if (!(got > want * 0.99999 && got < want * 1.00001)) return printf("element (%d, %d) of warpgroup %d is %g, want %g\n", row, column, number, got, want), 0;
      }
  puts("right");
}
