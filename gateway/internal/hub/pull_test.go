package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPull: an adapter comes with its configuration, which a model that is served does not get.
func TestPull(t *testing.T) {
	h := newHub()
	start(t, h)
	reference := Reference{Repository: "org/m"}
	got, err := Pull(t.Context(), reference, nil)
	if err != nil || got.Adapter || got.Commit != commit {
		t.Fatalf("%+v, %v", got, err)
	}
	h.files = map[string][]byte{"adapter_config.json": []byte("{}"), "adapter_model.safetensors": []byte("weights"), "config.json": []byte("{}")}
	if dir, err := Resolve(t.Context(), "hf://org/m", nil); err != nil {
		t.Fatal(err)
	} else if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); err == nil {
		t.Error("a model that is served has the configuration of an adapter")
	}
	if got, err = Pull(t.Context(), reference, nil); err != nil || !got.Adapter {
		t.Fatalf("%+v, %v", got, err)
	}
	h.files["a\nb.safetensors"] = nil
	if _, err := Pull(t.Context(), reference, nil); err == nil || !strings.Contains(err.Error(), "not taken") {
		t.Errorf("a name of two lines: %v", err)
	}
}
