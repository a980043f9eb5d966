package engine

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// fp8Model unpacks a model whose files are of FP8.
func fp8Model(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fp8")
	goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", "fp8"), dir)
	return dir
}

// withWeights says what becomes of weights in FP8 under a placement.
func withWeights(p placement, weights string) placement {
	p.section = strings.TrimSuffix(strings.TrimSpace(p.section), "}") + `, "weights": "` + weights + `"}`
	return p
}

// TestFP8Placements: whole runs of training and sampling have the same bits with weights kept in FP8 as with those that were expanded, in less memory, wherever the model is.
func TestFP8Placements(t *testing.T) {
	dir := fp8Model(t)
	for _, p := range []placement{{"single", "single", `{"threads": 2}`}, copies[0], sharded[0], cuts[0], splits[0]} {
		t.Run(p.name, func(t *testing.T) {
			expanded := placeModel(t, dir, withWeights(p, "bf16"), testOptions())
			for _, weights := range []string{"fp8", "auto"} {
				kept := placeModel(t, dir, withWeights(p, weights), testOptions())
				if a, b := kept.loaded.plan.weights, expanded.loaded.plan.weights; a >= b || !kept.loaded.model.FP8 || expanded.loaded.model.FP8 {
					t.Errorf("weights %s: %d bytes, expanded %d", weights, a, b)
				}
				if weights == "fp8" {
					equalHistories(t, live(t, kept), live(t, expanded))
				}
			}
		})
	}
}

// withoutE4M3 is a device that has no kernels for weights in FP8.
type withoutE4M3 struct{ tensor.Device }

func (withoutE4M3) HasE4M3() bool { return false }

// TestFP8WhereItCannotBe: weights that are asked for in FP8 are refused by the name of the setting, where the model or the device does not have them; by themselves they are expanded there.
func TestFP8WhereItCannotBe(t *testing.T) {
	dir, tiny := fp8Model(t), t.TempDir()
	if err := writeTiny(tiny); err != nil {
		t.Fatal(err)
	}
	bare := testOptions()
	open := bare.OpenDevice
	bare.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := open(c)
		return withoutE4M3{d}, err
	}
	for _, c := range []struct {
		name, dir, section, want string
		options                  Options
	}{
		{"plain files", tiny, `{"weights": "fp8"}`, "the model's files are not of FP8", testOptions()},
		{"float32", dir, `{"weights": "fp8", "dtype": "float32"}`, "models of bfloat16 only", testOptions()},
		{"another word", dir, `{"weights": "int4"}`, `is "int4"; want auto, fp8, bf16`, testOptions()},
		{"another device", dir, `{"weights": "fp8"}`, "device cpu has no kernels for them yet", bare},
		{"another device, expanded", dir, `{}`, "", bare},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := New(c.options)
			t.Cleanup(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: c.dir, Name: "tiny", Config: []byte(c.section)}, nil)
			if c.want == "" {
				if err != nil || e.loaded.model.FP8 {
					t.Errorf("error %v", err)
				}
				return
			}
			var refused *plugins.Error
			if !errors.As(err, &refused) || refused.Field != weightsKey || !strings.Contains(refused.Message, c.want) {
				t.Errorf("error %v, want one of %s with %q", err, weightsKey, c.want)
			}
		})
	}
}
