package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
	"github.com/tinsmith/tinsmith/plugins"
)

// A model's products by cuBLASLt have the bits of those by kernels, and its name is in the arithmetic's. They are computed by the algorithm that another process has checked, not by what the library offers first.
func TestCuBLASLtOnCUDA(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	libraries := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	results := map[string]history{}
	for _, products := range []string{productsOwn, productsCuBLASLt} {
		o := testOptions()
		var weights [][2]int
		o.OpenDevice = func(c Config) (tensor.Device, error) {
			weights = c.Weights
			t.Setenv("FAKE_CUBLASLT_ALGORITHMS", "our")
			d, err := cuda.New(cuda.Options{Device: c.Device, Libraries: libraries, Products: c.Products, Weights: c.Weights})
			t.Setenv("FAKE_CUBLASLT_COUNT", count) // after the check
			t.Setenv("FAKE_CUBLASLT_ALGORITHMS", "o")
			return d, err
		}
		e := placeWith(t, placement{plugin: "single", section: fmt.Sprintf(`{"device": "cuda:0", "dtype": "bfloat16", "products": %q, "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 512}`, products)}, o)
		if got, want := len(weights) > 0, products == productsCuBLASLt; got != want {
			t.Errorf("%s: the device is told of weights: %v", products, got)
		}
		if got, want := strings.Contains(e.loaded.info.Arithmetic, "-cublaslt12.8.4/bfloat16"), products == productsCuBLASLt; got != want {
			t.Errorf("%s: the arithmetic is %q", products, e.loaded.info.Arithmetic)
		}
		if got, want := e.loaded.info.Products, "by cuBLASLt 12.8.4 in"; strings.Contains(got, want) != (products == productsCuBLASLt) {
			t.Errorf("%s: the routes are %q", products, got)
		}
		h := history{floats: map[string][]float32{}, tokens: map[string][]int32{}}
		d := create(t, e, "run", 1, 2)
		random := rand.New(rand.NewPCG(3, 1))
		var data []plugins.Datum
		for range 2 {
			tokens := randomTokens(random, 141)
			weights := make([]float32, 140)
			for i := range weights {
				weights[i] = random.Float32()
			}
			data = append(data, plugins.Datum{Tokens: tokens[:140], Targets: tokens[1:], K: 1, Weights: weights})
		}
		for i, lp := range d.pass(data).Logprobs {
			h.floats[fmt.Sprint("logprobs ", i)] = lp
		}
		d.step()
		for name, w := range d.weights() {
			h.floats["weights "+name] = w
		}
		out, err := collect(t.Context(), e, ask("q", d.adapter, randomTokens(random, 5), 1, 3))
		if err != nil {
			t.Fatal(err)
		}
		h.tokens["sample"], h.floats["sample"] = out.sequences[0].Tokens, out.sequences[0].Logprobs
		results[products] = h
		said, err := os.ReadFile(count)
		if products == productsOwn {
			if err == nil {
				t.Error("cuBLASLt is used without being asked for")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, product := range []string{"280 64 32 0\n", "280 48 32 0\n", "280 32 48 0\n", "280 32 64 0\n"} {
			if !strings.Contains(string(said), product) {
				t.Errorf("no product of %q by cuBLASLt:\n%s", product, said)
			}
		}
	}
	equalHistories(t, results[productsCuBLASLt], results[productsOwn])
}

// cuBLASLt for a model without bfloat16 weights is a mistake.
func TestCuBLASLtRefused(t *testing.T) {
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.OpenDevice = func(Config) (tensor.Device, error) {
		t.Error("the device is opened")
		return nil, os.ErrInvalid
	}
	e := New(o)
	defer e.Close()
	_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(`{"device": "cuda:0", "products": "cublaslt"}`)}, nil)
	if plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(fmt.Sprint(err), "multiplies weights of bfloat16, and this model has none") {
		t.Errorf("error %v", err)
	}
}

// The shapes of a model's weights, whole and cut.
func TestWeightShapes(t *testing.T) {
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ranks []int
		want  [][2]int
	}{
		{[]int{1}, [][2]int{{32, 32}, {32, 48}, {32, 64}, {48, 32}, {64, 32}, {89, 32}}},
		{[]int{2}, [][2]int{{16, 32}, {24, 32}, {32, 24}, {32, 32}, {44, 32}, {45, 32}}},
		{[]int{2, 1}, [][2]int{{16, 32}, {24, 32}, {32, 24}, {32, 32}, {32, 48}, {32, 64}, {44, 32}, {45, 32}, {48, 32}, {64, 32}, {89, 32}}},
	} {
		got, err := model.WeightShapes(t.Context(), dir, architectures.All(), model.LoadOptions{DType: tensor.BFloat16}, c.ranks...)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %v, %v; want %v", c.ranks, got, err, c.want)
		}
	}
	if got, err := model.WeightShapes(t.Context(), dir, architectures.All(), model.LoadOptions{}, 1); err != nil || len(got) != 0 {
		t.Errorf("in float32: %v, %v", got, err)
	}
	if _, err := model.WeightShapes(t.Context(), t.TempDir(), architectures.All(), model.LoadOptions{}, 1); err == nil {
		t.Error("an empty folder has weights")
	}
}
