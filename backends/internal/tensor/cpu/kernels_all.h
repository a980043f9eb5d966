// Every kernel of one instruction set. The including file has chosen the target, vf and its operations, ISA and ARITHMETIC.
#include "lanes.h"
#include "kernels_rows.h"
#include "kernels_experts.h"
#include "kernels_sinks.h"
#include "kernels_loss.h"
#include "kernels_draw.h"
#include "kernels_pack.h"
#include "kernels_e4m3.h"
#include "kernels_sums.h"
#include "kernels_requests.h"
#include "kernels_product.h"
#include "kernels_outer.h"
#include "kernels_attention.h"
#include "kernels_gates.h"
#include "kernels_delta.h"
#include "kernels_delta_backward.h"
#include "kernels_peak.h"

#define STRING(x) #x
#define NAME(x) STRING(x)
#define TABLE_OF(x) kernels_##x
#define TABLE(x) TABLE_OF(x)

// KERNELS is a table but for its name and what another one may have for bfloat16.
#define KERNELS \
    .tile_rows = TILE_ROWS, \
    .tile_columns = TILE_COLUMNS, \
    .pair_words = PAIR_WORDS, \
    .peak_chains = PEAK_CHAINS, \
    .few_rows = few_rows, \
    .pack_strip_f32 = pack_strip_f32, \
    .pack_strip_bf16 = pack_strip_bf16, \
    .pack_few = pack_few, \
    .repack = repack, \
    .matmul = matmul, \
    .matmul_few = matmul_few, \
    .matmul_transposed = matmul_transposed, \
    .pack_across_f32 = pack_across_f32, \
    .pack_across_bf16 = pack_across_bf16, \
    .matmul_across = matmul_across, \
    .outer = outer, \
    .rmsnorm = rmsnorm, \
    .rmsnorm_backward = rmsnorm_backward, \
    .rope = rope, \
    .swiglu = swiglu, \
    .swiglu_backward = swiglu_backward, \
    .add = add, \
    .scale = scale, \
    .add_row = add_row, \
    .round = round_rows, \
    .logsumexp_tile = logsumexp_tile, \
    .logsumexp_merge = logsumexp_merge, \
    .softmax = softmax, \
    .softmax_gradient = softmax_gradient, \
    .draw_token = draw_token, \
    .mask_row = mask_row, \
    .route = route, \
    .route_backward = route_backward, \
    .spread = spread, \
    .combine = combine, \
    .combine_backward = combine_backward, \
    .sink = sink, \
    .swiglu_clamped = swiglu_clamped, \
    .swiglu_clamped_backward = swiglu_clamped_backward, \
    .add_routed = add_routed, \
    .add_routed_backward = add_routed_backward, \
    .sum_squares = sum_squares, \
    .adamw = adamw, \
    .peak_f32 = peak_f32, \
    .peak_read = peak_read, \
    .conv = conv, \
    .conv_backward = conv_backward, \
    .delta_rule = delta_rule, \
    .delta_rule_backward = delta_rule_backward, \
    .gated_norm = gated_norm, \
    .gated_norm_backward = gated_norm_backward, \
    .sigmoid_gate = sigmoid_gate, \
    .sigmoid_gate_backward = sigmoid_gate_backward, \
    .lanes = LANES, \
    .attention = attention, \
    .attention_backward = attention_backward,

const kernels TABLE(ISA) = {.isa = NAME(ISA), .arithmetic = ARITHMETIC, .peak_bf16 = peak_bf16, .peak_pairs = PEAK_STEPS * PEAK_CHAINS * LANES * 2, KERNELS};
