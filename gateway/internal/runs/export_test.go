package runs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// forgetful is a backend whose first answer to the writing of an export does not arrive.
type forgetful struct {
	plugins.Backend
	forgot *atomic.Bool
}

func (b forgetful) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	saved, err := b.Backend.SaveAdapter(ctx, r)
	if err == nil && strings.Contains(r.Path, ".export-") && !b.forgot.Swap(true) {
		return plugins.SaveAdapterResult{}, &plugins.Error{Kind: plugins.KindUnavailable, Message: "the answer is lost"}
	}
	return saved, err
}

// TestExportOfALiveRun: it is what a checkpoint of the same moment has, also when a process wrote it and could not say so, and leaves nothing behind.
func TestExportOfALiveRun(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		w := newWorld(t, func(w *world) {
			forgot := &atomic.Bool{}
			forgot.Store(!forgets)
			w.wrap = func(b plugins.Backend) plugins.Backend { return forgetful{b, forgot} }
		})
		run := w.trained(w.session(), 0)
		e, err := w.Export(t.Context(), owner, run, "")
		w.ok(err)
		var got bytes.Buffer
		w.ok(e.Write(&got))
		e.Close()
		saved := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), Name: "s"})).Saved.Path
		if !bytes.Equal(got.Bytes(), w.archive(saved)) {
			t.Errorf("forgets %v: the export is not what a checkpoint of the same weights is", forgets)
		}
		if _, err := w.Export(t.Context(), other, run, ""); KindOf(err) != KindNotFound {
			t.Errorf("somebody else's run is exported: %v", err)
		}
		left, err := os.ReadDir(filepath.Join(w.dir, "incoming"))
		if err != nil || len(left) > 0 {
			t.Errorf("forgets %v: %v are left, %v", forgets, left, err)
		}
	}
}

// listening is a backend that notes how files are asked for: by the kind of the checkpoint, "export" of what is written to leave.
type listening struct {
	plugins.Backend
	mu    *sync.Mutex
	asked *[]string
}

func (b listening) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	kind := "export"
	for _, k := range []CheckpointKind{KindWeights, KindSampler, KindExternal} {
		if strings.Contains(r.Path, string(filepath.Separator)+string(k)+string(filepath.Separator)) {
			kind = string(k)
		}
	}
	b.mu.Lock()
	*b.asked = append(*b.asked, fmt.Sprintf("%s: names %q, experts stacked %v", kind, r.ExportNames, r.StackedExperts))
	b.mu.Unlock()
	return b.Backend.SaveAdapter(ctx, r)
}

// unpacked reads a tar.
func (w *world) unpacked(text []byte) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	in := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		w.ok(err)
		content, err := io.ReadAll(in)
		w.ok(err)
		all[h.Name] = string(content)
	}
}

// TestExportsHaveTheNamesOfPEFT: a live run, and checkpoints whose files are to be trained on or sampled here, are written for PEFT, whatever the names of the model's sampler checkpoints are. With the Tinker service's names everything is
// written anew.
func TestExportsHaveTheNamesOfPEFT(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	w := newWorld(t, func(w *world) {
		w.config.Models[0].ExportNames = plugins.ExportTinker
		w.wrap = func(b plugins.Backend) plugins.Backend { return listening{b, &mu, &asked} }
	})
	run := w.trained(w.session(), 0)
	state := w.good(w.SaveWeights(t.Context(), SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	export := func(name, names string) map[string]string {
		e, err := w.Export(t.Context(), owner, name, names)
		w.ok(err)
		defer e.Close()
		if e.Step != 2 {
			t.Errorf("%s: step %d, want 2", name, e.Step)
		}
		var got bytes.Buffer
		w.ok(e.Write(&got))
		return w.unpacked(got.Bytes())
	}
	live, saved := export(run, ""), export(state, plugins.ExportPEFT)
	for _, file := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile} {
		if saved[file] != live[file] || saved[file] == "" {
			t.Errorf("%s of the training checkpoint is not that of the run", file)
		}
	}
	if len(saved) != 2 {
		t.Errorf("the training checkpoint left with %d files, want 2", len(saved))
	}
	sampler := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 6), Name: "s"})).Saved.Path
	w.good(w.SaveWeightsExternal(t.Context(), SaveWeightsExternal{Operation: at(run, 7), Name: "e"}))
	if got := export(sampler, ""); got[plugins.AdapterWeightsFile] != live[plugins.AdapterWeightsFile] {
		t.Error("the sampler's checkpoint is not that of the run")
	}
	for _, name := range []string{run, state, sampler} {
		export(name, plugins.ExportTinker)
	}
	if _, err := w.Export(t.Context(), owner, run, "mine"); KindOf(err) != KindInvalid {
		t.Errorf("names that there are not: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	peft, tinker := `export: names "peft", experts stacked false`, `export: names "tinker", experts stacked false`
	want := []string{`weights: names "", experts stacked true`, peft, peft, `sampler_weights: names "tinker", experts stacked true`, `external_weights: names "tinker", experts stacked false`, peft, tinker, tinker, tinker}
	if !slices.Equal(asked, want) {
		t.Errorf("files were asked for so:\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
	left, err := os.ReadDir(filepath.Join(w.dir, "incoming"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestSamplerCheckpointsHaveTheNamesOfPEFT: they are downloaded as they are, so they have the names and modules under which PEFT finds them; only layers of experts are stacked.
func TestSamplerCheckpointsHaveTheNamesOfPEFT(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	w := newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return listening{b, &mu, &asked} }
	})
	run := w.trained(w.session(), 0)
	w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), Name: "s"}))
	w.good(w.SaveWeightsExternal(t.Context(), SaveWeightsExternal{Operation: at(run, 6), Name: "e"}))
	mu.Lock()
	defer mu.Unlock()
	want := []string{`sampler_weights: names "peft", experts stacked true`, `external_weights: names "peft", experts stacked false`}
	if !slices.Equal(asked, want) {
		t.Errorf("files were asked for so:\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}

// formless is a backend that has no form for others.
type formless struct{ plugins.Backend }

func (b formless) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if strings.Contains(r.Path, ".export-") {
		return plugins.SaveAdapterResult{}, plugins.Invalidf("export_names", "peft is not allowed for this adapter")
	}
	return b.Backend.SaveAdapter(ctx, r)
}

// TestExportRefused: who asks for a form that there is not of an adapter is told so.
func TestExportRefused(t *testing.T) {
	w := newWorld(t, func(w *world) { w.wrap = func(b plugins.Backend) plugins.Backend { return formless{b} } })
	run := w.trained(w.session(), 0)
	if _, err := w.Export(t.Context(), owner, run, ""); KindOf(err) != KindInvalid || !strings.Contains(err.Error(), "peft is not allowed for this adapter") {
		t.Errorf("error %v", err)
	}
}
