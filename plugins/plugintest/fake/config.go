package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Config is LoadRequest.Config: a model's `backend:` section as JSON. Zero values mean the defaults given here.
type Config struct {
	Plugin           string  `json:"plugin,omitempty"`             // "fake"
	Device           string  `json:"device,omitempty"`             // "cpu" or "auto"
	DType            string  `json:"dtype,omitempty"`              // "float32"
	VocabSize        int     `json:"vocab_size,omitempty"`         // default: vocab_size of the model directory's config.json, else 256
	MaxContextLength int     `json:"max_context_length,omitempty"` // default: max_position_embeddings there, else 2048
	HiddenSize       int     `json:"hidden_size,omitempty"`        // default 16
	MaxRank          int     `json:"max_rank,omitempty"`           // default 64
	Seed             uint64  `json:"seed,omitempty"`               // of the base weights
	Delays           []Delay `json:"delays,omitempty"`
	Faults           []Fault `json:"faults,omitempty"`
}

// Operations are the names that Delay.Operation and Fault.Operation may have. "token" is one sampled token, the others are calls of the contract.
var Operations = []string{"load", "create_adapter", "forward_backward", "optim_step", "pin", "sample", "token", "save_adapter", "load_adapter"}

// Delay makes every run of an operation take longer.
type Delay struct {
	Operation string  `json:"operation"`
	Seconds   float64 `json:"seconds"`
}

// Fault makes one run of an operation go wrong, or every run with a certain token or learning rate.
type Fault struct {
	Operation string   `json:"operation"`
	N         int64    `json:"n,omitempty"`             // which run since the start of the process, from 1
	Token     *int32   `json:"token,omitempty"`         // instead of N, for forward_backward and sample: every run whose data or prompt have this token
	Rate      *float64 `json:"learning_rate,omitempty"` // instead of N, for optim_step: every run with this learning rate
	Action    string   `json:"action"`                  // one of Actions
	Message   string   `json:"message,omitempty"`       // of "fail"
	Field     string   `json:"field,omitempty"`         // of "fail"
	Kind      string   `json:"kind,omitempty"`          // of "fail": the name of a plugins.Kind; default "internal"
	ExitCode  int      `json:"exit_code,omitempty"`
}

// counted tells whether the fault is of the run with number N.
func (f *Fault) counted() bool { return f.Token == nil && f.Rate == nil }

// Actions are the values of Fault.Action.
var Actions = []string{
	"fail",  // the operation fails and changes nothing
	"crash", // the process exits with ExitCode
	"hang",  // the operation never ends
	"print", // a line goes to descriptor 1, as a C library might print it, and the operation goes on
}

const (
	defaultVocab   = 256
	defaultContext = 2048
	defaultHidden  = 16
	defaultMaxRank = 64
	maxVocab       = 1 << 20
	maxHidden      = 1024
)

func parseConfig(raw json.RawMessage, modelDir string) (Config, error) {
	var c Config
	if len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			return c, plugins.Invalidf("config", "not a configuration of the fake backend: %v", err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return c, plugins.Invalidf("config", "something follows the JSON value")
		}
	}
	vocab, context, err := modelDefaults(modelDir)
	if err != nil {
		return c, err
	}
	setDefault(&c.Plugin, "fake")
	setDefault(&c.Device, "cpu")
	setDefault(&c.DType, "float32")
	setDefault(&c.VocabSize, vocab)
	setDefault(&c.MaxContextLength, context)
	setDefault(&c.HiddenSize, defaultHidden)
	setDefault(&c.MaxRank, defaultMaxRank)
	return c, c.validate()
}

// CheckConfig implements plugins.ConfigChecker.
func (b *Backend) CheckConfig(section json.RawMessage) error {
	_, err := parseConfig(section, "")
	return err
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// modelDefaults reads the sizes out of a Hugging Face model directory, so that the fake fits the model's tokenizer.
func modelDefaults(dir string) (vocab, context int, err error) {
	var hf struct {
		VocabSize int `json:"vocab_size"`
		Context   int `json:"max_position_embeddings"`
	}
	if dir != "" {
		raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			return 0, 0, plugins.Invalidf("model_dir", "%v", err)
		}
		if err := json.Unmarshal(raw, &hf); err != nil {
			return 0, 0, plugins.Invalidf("model_dir", "config.json: %v", err)
		}
	}
	setDefault(&hf.VocabSize, defaultVocab)
	setDefault(&hf.Context, defaultContext)
	return hf.VocabSize, hf.Context, nil
}

func (c *Config) validate() error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{{"plugin", c.Plugin, []string{"fake"}}, {"device", c.Device, []string{"cpu", "auto"}}, {"dtype", c.DType, []string{"float32"}}} {
		if !slices.Contains(f.allowed, f.value) {
			return plugins.Invalidf("config."+f.name, "%q is not allowed: %s", f.value, strings.Join(f.allowed, ", "))
		}
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{{"vocab_size", c.VocabSize, maxVocab}, {"max_context_length", c.MaxContextLength, 1 << 24}, {"hidden_size", c.HiddenSize, maxHidden}, {"max_rank", c.MaxRank, 512}} {
		if f.value < 1 || f.value > f.max {
			return plugins.Invalidf("config."+f.name, "%d is not allowed: 1 to %d", f.value, f.max)
		}
	}
	for i, d := range c.Delays {
		field := fmt.Sprintf("config.delays[%d]", i)
		if !slices.Contains(Operations, d.Operation) {
			return plugins.Invalidf(field+".operation", "%q is not allowed: %s", d.Operation, strings.Join(Operations, ", "))
		}
		if !(d.Seconds >= 0 && d.Seconds <= time.Hour.Seconds()) {
			return plugins.Invalidf(field+".seconds", "%v is not allowed: 0 to 3600", d.Seconds)
		}
	}
	for i, f := range c.Faults {
		field := fmt.Sprintf("config.faults[%d]", i)
		if !slices.Contains(Operations, f.Operation) {
			return plugins.Invalidf(field+".operation", "%q is not allowed: %s", f.Operation, strings.Join(Operations, ", "))
		}
		if !slices.Contains(Actions, f.Action) {
			return plugins.Invalidf(field+".action", "%q is not allowed: %s", f.Action, strings.Join(Actions, ", "))
		}
		switch {
		case f.counted() && f.N < 1:
			return plugins.Invalidf(field+".n", "%d is not allowed: at least 1", f.N)
		case !f.counted() && f.N != 0:
			return plugins.Invalidf(field+".n", "%d is not allowed together with token or learning_rate", f.N)
		case f.Rate != nil && f.Operation != "optim_step":
			return plugins.Invalidf(field+".learning_rate", "is not allowed for %s: it has none", f.Operation)
		case f.Token != nil && f.Operation != "forward_backward" && f.Operation != "sample":
			return plugins.Invalidf(field+".token", "is not allowed for %s: it has no tokens", f.Operation)
		}
		if _, ok := kindByName(f.Kind); !ok {
			return plugins.Invalidf(field+".kind", "%q is not the name of a kind of failure", f.Kind)
		}
	}
	return nil
}

func kindByName(name string) (plugins.Kind, bool) {
	if name == "" {
		return plugins.KindInternal, true
	}
	return plugins.ParseKind(name)
}
