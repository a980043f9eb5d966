# Each kernel alone, one thread and two, beside the peak and the read bandwidth of the same run.
gobench kernels -bench . -benchtime 0.2s ./backends/internal/tensor/cpu
for type in float32 bfloat16; do
  row "product 512×3072×1024, $type, one thread" "$(figure kernels "MatMul/threads=1/$type/512×3072×1024$" GFLOP/s) GFLOP/s" "" "$(figure kernels "MatMul/threads=1/$type/512×3072×1024$" %peak) % of the peak" "80 %"
  row "product 1×151936×1024, $type, one thread" "$(figure kernels "MatMul/threads=1/$type/1×151936×1024$" GB/s) GB/s" "" "$(figure kernels "MatMul/threads=1/$type/1×151936×1024$" %read) % of reading" "80 %"
done
