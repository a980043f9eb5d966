package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"runtime"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// Config is the `backend:` section of a model. The zero value of a field that Defaults does not set means "automatic".
type Config struct {
	Device           string       // "cpu", "cuda:N", "auto"; of one rank
	CUDALibraries    []string     // folders that CUDA's libraries are looked for in before the system's
	Products         string       // who multiplies bfloat16 weights on GPUs: "auto", "own", "cublaslt", "bulk", "clusters"
	Attention        string       // who computes attention of many rows on GPUs: "auto", "own", "warpgroups"
	Gradients        string       // how adapters' gradients are summed on GPUs: "auto", "own", "tensor_cores"
	Launches         string       // whether launches of a decoding step overlap on GPUs: "auto", "plain", "dependent"
	Weights          [][2]int     // shapes (out, in) of the model's bfloat16 weights, for devices that choose by them; no setting: known when a model is loaded
	Training         [][]string   // devices that train, one group for each copy of the model, which is cut over the devices of its group
	Sampling         [][]string   // devices that sample; none: those that train
	samplePlugin     string       // how the model is put on Sampling
	NCCL             bool         // the ranks of a model that is cut exchange through NCCL, else through each other's memory
	NCCLPeerToPeer   *bool        // whether NCCL may read another GPU's memory directly; nil: automatic
	ShardBase        bool         // the copies of Training share the base weights out instead of having all of them each, and so do those of Sampling
	DType            tensor.DType // 0: that of the model's files
	FP8              model.FP8    // what becomes of weights that the model's files have in FP8
	Threads          int          // threads of the device; default: processors that may be used
	MaxContextLength int          // 0: the model's own
	Memory           int64        // bytes that everything may take; 0: nine tenths of what is free
	Recompute        Recompute    // whether training computes activations again in the backward pass
	TrainingMemory   int64        // bytes of training passes up to which RecomputeAuto keeps activations; 0: automatic
	AdapterMemory    int64        // bytes that adapters may take; 0: automatic
	KVCacheTokens    int          // positions of keys and values for sampling, rounded up to pages; 0: automatic
	MaxBatch         int          // sequences decoded at once
	MaxWaiting       int          // sequences that may wait for a place
	CycleTokens      int          // training tokens of one clock cycle; 0: automatic
	BatchTokens      int          // training tokens of one packed pass (a longer sequence is a pass of its own); 0: automatic
	PrefillTokens    int          // prompt tokens computed between two decoding steps
}

// Recompute says whether training keeps the activations of every layer or computes them again.
type Recompute string

// The choices.
const (
	RecomputeAuto Recompute = "auto"
	RecomputeOn   Recompute = "on"
	RecomputeOff  Recompute = "off"
)

// DefaultConfig gives the settings that hold where the section says nothing.
func DefaultConfig() Config {
	return Config{
		Device: "auto", Products: productsAuto, Attention: attentionAuto, Gradients: gradientsAuto, Launches: launchesAuto, Training: [][]string{{"auto"}}, Threads: runtime.GOMAXPROCS(0), Recompute: RecomputeAuto,
		MaxBatch: 64, MaxWaiting: 4096, PrefillTokens: 512,
	}
}

// setting reads one key's value into a configuration; its error says what is wrong without naming the key.
type setting func(c *Config, value json.RawMessage) error

// settings are the keys of the section. "plugin" is read by the gateway, which has chosen this program by it.
func settings(plugin string) map[string]setting {
	all := map[string]setting{
		"plugin": func(_ *Config, value json.RawMessage) error {
			var s string
			if err := json.Unmarshal(value, &s); err != nil || s != plugin {
				return fmt.Errorf("is %s; this program is %q", value, plugin)
			}
			return nil
		},
		"dtype": func(c *Config, value json.RawMessage) error {
			var s string
			if err := choose(&s, value, "auto", "float32", "bfloat16"); err != nil {
				return err
			}
			c.DType = map[string]tensor.DType{"float32": tensor.Float32, "bfloat16": tensor.BFloat16}[s]
			return nil
		},
		"weights": func(c *Config, value json.RawMessage) error {
			var s string
			if err := choose(&s, value, "auto", "fp8", "bf16"); err != nil {
				return err
			}
			c.FP8 = map[string]model.FP8{"auto": model.FP8Auto, "fp8": model.FP8Kept, "bf16": model.FP8Expanded}[s]
			return nil
		},
		"recompute": func(c *Config, value json.RawMessage) error {
			return choose((*string)(&c.Recompute), value, string(RecomputeAuto), string(RecomputeOn), string(RecomputeOff))
		},
		"products": func(c *Config, value json.RawMessage) error {
			return choose(&c.Products, value, productsAuto, productsOwn, productsCuBLASLt, productsBulk, productsClusters)
		},
		"attention": func(c *Config, value json.RawMessage) error {
			return choose(&c.Attention, value, attentionAuto, attentionOwn, attentionWarpgroups)
		},
		"adapter_gradients": func(c *Config, value json.RawMessage) error {
			return choose(&c.Gradients, value, gradientsAuto, gradientsOwn, gradientsTensorCores)
		},
		"launches": func(c *Config, value json.RawMessage) error {
			return choose(&c.Launches, value, launchesAuto, launchesPlain, launchesDependent)
		},
		"threads":             integer(func(c *Config) *int { return &c.Threads }, 1, 1024),
		"max_context_length":  integer(func(c *Config) *int { return &c.MaxContextLength }, 1, math.MaxInt32),
		"kv_cache_tokens":     integer(func(c *Config) *int { return &c.KVCacheTokens }, kvcache.PageSize, math.MaxInt32),
		"max_batch":           integer(func(c *Config) *int { return &c.MaxBatch }, 1, 4096),
		"max_waiting":         integer(func(c *Config) *int { return &c.MaxWaiting }, 1, 1<<20),
		"cycle_tokens":        integer(func(c *Config) *int { return &c.CycleTokens }, 1, math.MaxInt32),
		"batch_tokens":        integer(func(c *Config) *int { return &c.BatchTokens }, 1, 1<<20),
		"prefill_tokens":      integer(func(c *Config) *int { return &c.PrefillTokens }, 1, 1<<20),
		"training_memory_mib": mebibyteSetting(func(c *Config) *int64 { return &c.TrainingMemory }, 1),
		"memory_mib":          mebibyteSetting(func(c *Config) *int64 { return &c.Memory }, 1),
		"adapter_memory_mib":  mebibyteSetting(func(c *Config) *int64 { return &c.AdapterMemory }, 1),
	}
	maps.Copy(all, placementSettings(plugin))
	return all
}

func choose(to *string, value json.RawMessage, allowed ...string) error {
	var s string
	if err := json.Unmarshal(value, &s); err == nil {
		for _, a := range allowed {
			if s == a {
				*to = s
				return nil
			}
		}
	}
	return fmt.Errorf("is %s; want %s", value, strings.Join(allowed, ", "))
}

func integer(field func(*Config) *int, least, most int) setting {
	return func(c *Config, value json.RawMessage) error {
		var n int
		if err := json.Unmarshal(value, &n); err != nil || n < least || n > most {
			return fmt.Errorf("is %s; want a whole number from %d to %d", value, least, most)
		}
		*field(c) = n
		return nil
	}
}

// mebibyteSetting reads whole MiB into bytes.
func mebibyteSetting(field func(*Config) *int64, least int) setting {
	return func(c *Config, value json.RawMessage) error {
		var mib int
		if err := integer(func(*Config) *int { return &mib }, least, 1<<30)(nil, value); err != nil {
			return err
		}
		*field(c) = int64(mib) << 20
		return nil
	}
}

// ParseConfig reads the section strictly: an unknown key or a value out of range is a KindInvalid error that names it. plugin is the name of this program. An empty section gives the defaults.
func ParseConfig(plugin string, section json.RawMessage) (Config, error) {
	c := DefaultConfig()
	if len(bytes.TrimSpace(section)) == 0 {
		section = []byte("null") // an empty section
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(section, &values); err != nil {
		return c, plugins.Invalidf("backend", "is not a JSON object: %v", err)
	}
	known := settings(plugin)
	keys := make([]string, 0, len(values))
	for k := range values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		read, ok := known[k]
		if !ok {
			if where := misplaced(k); where != "" {
				return c, plugins.Invalidf("backend."+k, "%s", where)
			}
			return c, plugins.Invalidf("backend."+k, "is not a setting of the plugin %s; the nearest that is: %s", plugin, nearest(k, known))
		}
		if err := read(&c, values[k]); err != nil {
			return c, plugins.Invalidf("backend."+k, "%v", err)
		}
	}
	if _, given := values["devices"]; !given && known["devices"] != nil {
		c.Training = nil
	}
	return c, c.settle(plugin)
}

// nearest gives the known key with the smallest edit distance to key, the first in alphabetical order among equals.
func nearest(key string, known map[string]setting) string {
	best, least := "", math.MaxInt
	for k := range known {
		if d := editDistance(key, k); d < least || (d == least && k < best) {
			best, least = k, d
		}
	}
	return best
}

// editDistance is Levenshtein's distance by bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal, row[j+1] = row[j+1], min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// CheckConfig implements plugins.ConfigChecker.
func (e *Engine) CheckConfig(section json.RawMessage) error {
	_, err := ParseConfig(e.options.Plugin, section)
	return err
}
