// Package fake is a small but real backend without cgo, for tests of everything above the contract: a language model of three matrices with LoRA on each, exact gradients,
// AdamW, every sampling option, checkpoints in the contract's format. Nothing is a canned answer: losses fall under training, the sampler's
// log-probabilities are the trainer's, saved is loaded bit for bit. Its configuration can also make operations slow or go wrong.
//
// It can be used inside a test's own process (New) or as a plugin program (backends/fake). It knows the contract, and package simple, which keeps it over the fake's model.
package fake

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// Version is what Info says.
const Version = "1"

// Options change how a fake lives in its process. The zero value is right for a plugin program.
type Options struct {
	// Exit is called by the fault "crash"; nil means os.Exit. A test in the same process passes a function that calls Lose.
	Exit func(code int)
	// Say gives the tokens of a sequence in place of drawn ones, and its first stop token after them; nil, or nothing from it, leaves the draw. A test of what is made of an answer
	// in the same process sets it.
	Say func(req *plugins.SampleRequest, sequence int) []int32
}

// Backend implements plugins.Backend.
type Backend struct {
	*simple.Backend
	options Options
	starved atomic.Bool // see Starve
	small   atomic.Bool // see Shrink

	config Config // written by open before anything else is called
	dir    string

	mu   sync.Mutex
	runs map[string]int64 // by operation, for faults
}

var _ plugins.Backend = (*Backend)(nil)

// New makes a backend that has not been loaded.
func New(o Options) *Backend {
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	b := &Backend{options: o, runs: map[string]int64{}}
	b.Backend = simple.New(simple.Options{Plugin: "fake", Version: Version, Topology: "fake cpu", Open: b.open, Configure: b.configure, Before: b.before, Say: o.Say})
	return b
}

func (b *Backend) open(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (simple.Opened, error) {
	c, err := parseConfig(req.Config, req.ModelDir)
	if err != nil {
		return simple.Opened{}, err
	}
	b.config, b.dir = c, req.ModelDir
	if err := b.interfere(ctx, "load"); err != nil {
		return simple.Opened{}, err
	}
	total := 4 * int64(c.VocabSize*c.HiddenSize*2+2*c.HiddenSize*c.HiddenSize)
	progress(plugins.LoadProgress{Stage: "map", Done: 0, Total: total})
	m := newModel(&c)
	progress(plugins.LoadProgress{Stage: "ready", Done: total, Total: total})
	return simple.Opened{Model: m, WeightBytes: 4 * m.parameters(), Info: plugins.ModelInfo{
		Architecture: "TinsmithFakeForCausalLM", Parameters: m.parameters(), Layers: 1, HiddenSize: c.HiddenSize, VocabSize: c.VocabSize, MaxContextLength: c.MaxContextLength,
		DType: c.DType, Device: "cpu", Arithmetic: "fake-float64", ModelHash: m.hash, MaxRank: c.MaxRank,
	}}, nil
}

func (b *Backend) configure(section json.RawMessage) error {
	c, err := parseConfig(section, b.dir)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(c, b.config) {
		return plugins.Invalidf("config", "nothing of the fake backend can be changed while it runs")
	}
	return nil
}
