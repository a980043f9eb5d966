// Package transformers is the backend for any causal language model that Hugging Face transformers has: package simple keeps the contract, and one Python process, worker.py, computes
// log-probabilities, gradients and logits. It is there for models that the other backends have no architecture for, and to compare theirs with. It knows tokens and floats, and no text.
package transformers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// Options say how the backend lives in its process. The zero value is right for a plugin program.
type Options struct {
	Version string
	Lost    func(error)   // is called once when the worker is gone or hangs; nil: plugins.Exit
	Wait    time.Duration // for a sign of life of the worker; 0: plugins.Patience
}

// Backend implements plugins.Backend and plugins.ConfigChecker.
type Backend struct {
	*simple.Backend
	options Options
	config  Config
	model   *model
}

var (
	_ plugins.Backend       = (*Backend)(nil)
	_ plugins.ConfigChecker = (*Backend)(nil)
)

// loadLimit is how long a model may take to load: a file of hundreds of gigabytes from a slow disk.
const loadLimit = time.Hour

// New makes a backend that has not been loaded.
func New(o Options) *Backend {
	if o.Lost == nil {
		o.Lost = plugins.Exit
	}
	if o.Wait == 0 {
		o.Wait = plugins.Patience()
	}
	b := &Backend{options: o}
	b.Backend = simple.New(simple.Options{Plugin: "transformers", Version: o.Version, Topology: "transformers", Open: b.open, Configure: b.configure})
	return b
}

// CheckConfig implements plugins.ConfigChecker.
func (b *Backend) CheckConfig(section json.RawMessage) error {
	_, err := parseConfig(section)
	return err
}

func (b *Backend) configure(section json.RawMessage) error {
	c, err := parseConfig(section)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(c, b.config) {
		return plugins.Invalidf("config", "nothing of the transformers backend can be changed while it runs")
	}
	return nil
}

// Close ends the worker. A plugin program need not call it: the worker ends with it.
func (b *Backend) Close() {
	if b.model != nil {
		b.model.close()
	}
}

// loadRequest is the worker's verb "load".
type loadRequest struct {
	Verb            string              `json:"verb"`
	Dir             string              `json:"dir"`
	DType           string              `json:"dtype"`
	Device          string              `json:"device"`
	Attention       string              `json:"attention"`
	Threads         int                 `json:"threads"`
	Context         int                 `json:"context"`
	Modules         map[string][]string `json:"modules"`
	TrustRemoteCode bool                `json:"trust_remote_code"`
}

// loadAnswer is what the worker says of the model.
type loadAnswer struct {
	Architecture string          `json:"architecture"`
	Parameters   int64           `json:"parameters"`
	Bytes        int64           `json:"bytes"`
	Layers       int             `json:"layers"`
	HiddenSize   int             `json:"hidden_size"`
	VocabSize    int             `json:"vocab_size"`
	Context      int             `json:"context"`
	Tied         bool            `json:"tied"`
	Modules      []simple.Module `json:"modules"`
	Torch        string          `json:"torch"`
	Transformers string          `json:"transformers"`
	Device       string          `json:"device"`
	Capability   string          `json:"capability"`
}

func (b *Backend) open(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (simple.Opened, error) {
	c, err := parseConfig(req.Config)
	if err != nil {
		return simple.Opened{}, err
	}
	hash, size, err := examine(ctx, req.ModelDir, func(done, total int64) { progress(plugins.LoadProgress{Stage: "map", Done: done, Total: total}) })
	if err != nil {
		return simple.Opened{}, err
	}
	w, err := startWorker(c.Python, c.Threads, req.Scratch, loadLimit)
	if err != nil {
		return simple.Opened{}, err
	}
	a, err := w.loadWhile(ctx, req.ModelDir, &c, func() { progress(plugins.LoadProgress{Stage: "pack", Done: size, Total: size}) })
	if err != nil {
		w.close()
		return simple.Opened{}, err
	}
	progress(plugins.LoadProgress{Stage: "ready", Done: size, Total: size})
	b.use(c, w, a)
	return opened(b.model, c, a, hash), nil
}

// use takes a worker that has loaded a model.
func (b *Backend) use(c Config, w *worker, a *loadAnswer) {
	b.config, b.model = c, newModel(w, a)
	w.patience, w.progress = b.options.Wait, func() { b.Progress(func(*plugins.Status) {}) }
	w.lost = func(reason error) {
		b.Lose()
		b.options.Lost(reason)
	}
	go w.watch()
}

// opened describes a loaded model.
func opened(m *model, c Config, a *loadAnswer, hash string) simple.Opened {
	device := a.Device
	if c.Device == "cpu" {
		device = fmt.Sprintf("cpu (%s)", a.Capability)
	}
	return simple.Opened{Model: m, WeightBytes: a.Bytes, Info: plugins.ModelInfo{
		Architecture: a.Architecture, Parameters: a.Parameters, Layers: a.Layers, HiddenSize: a.HiddenSize, VocabSize: a.VocabSize, MaxContextLength: a.Context,
		DType: c.DType, Device: c.Device, MaxRank: c.MaxRank, TiedHead: a.Tied, ModelHash: hash,
		Arithmetic: fmt.Sprintf("torch=%s %s %s attention=%s threads=%d transformers=%s: sampled tokens are drawn from the logits of decoding steps, log-probabilities are those of whole passes",
			a.Torch, device, c.DType, c.Attention, c.Threads, a.Transformers),
	}}
}

// loadWhile has the worker load the model, and calls alive every few seconds meanwhile.
func (w *worker) loadWhile(ctx context.Context, dir string, c *Config, alive func()) (*loadAnswer, error) {
	a, done := &loadAnswer{}, make(chan error, 1)
	go func() { done <- w.load(ctx, dir, c, a) }()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return a, err
		case <-tick.C:
			alive()
		}
	}
}

// load has the worker load the model and checks what it says of it.
func (w *worker) load(ctx context.Context, dir string, c *Config, a *loadAnswer) error {
	release, err := w.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	if _, err := w.exchange(loadRequest{
		Verb: "load", Dir: dir, DType: c.DType, Device: c.Device, Attention: c.Attention, Threads: c.Threads, Context: c.MaxContextLength, Modules: c.Modules, TrustRemoteCode: c.TrustRemoteCode,
	}, a); err != nil {
		return err
	}
	if a.VocabSize < 1 || a.Context < 1 || len(a.Modules) == 0 {
		return plugins.Invalidf("model_dir", "%s has a vocabulary of %d, a context of %d and %d modules that can carry LoRA: all must be at least 1", a.Architecture, a.VocabSize, a.Context, len(a.Modules))
	}
	return nil
}

// watch notices a worker that dies while nothing is asked of it.
func (w *worker) watch() {
	<-w.ended
	w.turn <- struct{}{}
	_ = w.fail(errors.New("it has ended"))
	<-w.turn
}
