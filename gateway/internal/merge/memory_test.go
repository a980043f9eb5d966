package merge

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestMemory merges into a matrix of 128 MiB and looks at the heap at every piece.
func TestMemory(t *testing.T) {
	const rows, columns, rank, most = 16384, 4096, 4, 48 << 20
	base, dir := t.TempDir(), t.TempDir()
	head, err := encodeHeader([]string{query + ".weight"}, map[string]entry{query + ".weight": {typeBFloat16, []int64{rows, columns}, [2]int64{0, rows * columns * 2}}})
	if err != nil {
		t.Fatal(err)
	}
	text(t, filepath.Join(base, weightsFile), string(head))
	if err := os.Truncate(filepath.Join(base, weightsFile), int64(len(head))+rows*columns*2); err != nil { // zeros, which take no room on disk
		t.Fatal(err)
	}
	text(t, filepath.Join(base, configFile), "{}")
	draw := rand.New(rand.NewPCG(1, 2))
	file(t, filepath.Join(dir, "adapter_model.safetensors"), map[string]matrix{
		namePrefix + query + ".lora_A.weight": random(draw, typeFloat32, rank, columns), namePrefix + query + ".lora_B.weight": random(draw, typeFloat32, rows, rank),
	})
	text(t, filepath.Join(dir, "adapter_config.json"), `{"r": 4, "lora_alpha": 4}`)
	plan, err := Prepare(t.Context(), Options{Base: Directory(base), Adapter: dir, ShardBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := uint64(0)
	if err := plan.Write(t.Context(), t.TempDir(), func(int) {
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapInuse)
	}); err != nil {
		t.Fatal(err)
	}
	if peak > before.HeapInuse+most {
		t.Errorf("the heap grew from %d to %d MiB", before.HeapInuse>>20, peak>>20)
	}
}

// BenchmarkAdd is LoRA of rank 32 on a matrix of Qwen3-8B's MLP, some rows of it.
func BenchmarkAdd(b *testing.B) {
	const rows, columns, rank = 256, 4096, 32
	draw := rand.New(rand.NewPCG(1, 2))
	w, a, factors := random(draw, typeFloat32, rows, columns).values, random(draw, typeFloat32, rank, columns).values, random(draw, typeFloat32, rows, rank).values
	for b.Loop() {
		add(w, a, factors, rank, columns, 0, 1, 1)
	}
	b.ReportMetric(float64(rows*columns*rank)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFMA/s")
}
