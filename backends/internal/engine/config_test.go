package engine

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

func TestParseConfig(t *testing.T) {
	for _, section := range []string{"", "null", "{}", `{"plugin": "single"}`} {
		if c, err := ParseConfig("single", []byte(section)); err != nil || !reflect.DeepEqual(c, DefaultConfig()) {
			t.Errorf("%q: %+v, %v; want the defaults", section, c, err)
		}
	}
	c, err := ParseConfig("single", []byte(`{"plugin": "single", "device": "cpu", "dtype": "bfloat16", "threads": 3, "max_context_length": 100, "recompute": "off",
		"kv_cache_tokens": 6400, "max_batch": 5, "max_waiting": 6, "cycle_tokens": 7, "batch_tokens": 8, "prefill_tokens": 9, "training_memory_mib": 10, "products": "own", "attention": "own", "adapter_gradients": "own", "launches": "plain"}`))
	want := Config{Device: "cpu", Products: "own", Attention: "own", Gradients: "own", Launches: "plain", Training: [][]string{{"cpu"}}, DType: tensor.BFloat16, Threads: 3, MaxContextLength: 100, Recompute: RecomputeOff, KVCacheTokens: 6400, MaxBatch: 5, MaxWaiting: 6,
		CycleTokens: 7, BatchTokens: 8, PrefillTokens: 9, TrainingMemory: 10 << 20}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, %v; want %+v", c, err, want)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for _, c := range []struct{ name, section, field, message string }{
		{"not an object", `[1]`, "backend", "not a JSON object"},
		{"misspelt key", `{"thread": 2}`, "backend.thread", "nearest that is: threads"},
		{"another plugin", `{"plugin": "dataparallel"}`, "backend.plugin", `this program is "single"`},
		{"cuda without a number", `{"device": "cuda"}`, "backend.device", "want cpu, cuda:N (N from 0) or auto"},
		{"cuda with two", `{"device": "cuda:0,1"}`, "backend.device", "want cpu, cuda:N"},
		{"unknown device", `{"device": "tpu"}`, "backend.device", "want cpu, cuda:N"},
		{"libraries", `{"cuda_libraries": ["lib"]}`, "backend.cuda_libraries", "absolute paths"},
		{"libraries no list", `{"cuda_libraries": "/lib"}`, "backend.cuda_libraries", "absolute paths"},
		{"products", `{"products": "cublas"}`, "backend.products", "want auto, own, cublaslt, bulk, clusters"},
		{"gradients", `{"adapter_gradients": "bulk"}`, "backend.adapter_gradients", "want auto, own, tensor_cores"},
		{"gradients without a GPU", `{"device": "cpu", "adapter_gradients": "tensor_cores"}`, "backend.adapter_gradients", `is tensor_cores, which is for GPUs, and there is the device "cpu"`},
		{"launches", `{"launches": "own"}`, "backend.launches", "want auto, plain, dependent"},
		{"launches without a GPU", `{"device": "cpu", "launches": "dependent"}`, "backend.launches", `is dependent, which is for GPUs, and there is the device "cpu"`},
		{"attention", `{"attention": "bulk"}`, "backend.attention", "want auto, own, warpgroups"},
		{"attention without a GPU", `{"device": "cpu", "attention": "warpgroups"}`, "backend.attention", `is warpgroups, which is for GPUs, and there is the device "cpu"`},
		{"products without a GPU", `{"device": "cpu", "products": "cublaslt"}`, "backend.products", `for GPUs, and there is the device "cpu"`},
		{"bulk copies without a GPU", `{"device": "cpu", "products": "bulk"}`, "backend.products", `is bulk, which is for GPUs, and there is the device "cpu"`},
		{"clusters without a GPU", `{"device": "cpu", "products": "clusters"}`, "backend.products", `is clusters, which is for GPUs, and there is the device "cpu"`},
		{"dtype", `{"dtype": "float16"}`, "backend.dtype", "float32, bfloat16"},
		{"threads zero", `{"threads": 0}`, "backend.threads", "from 1 to 1024"},
		{"threads not whole", `{"threads": 1.5}`, "backend.threads", "is 1.5; want a whole number"},
		{"threads text", `{"threads": "2"}`, "backend.threads", "whole number"},
		{"recompute", `{"recompute": true}`, "backend.recompute", "is true; want auto, on, off"},
		{"cache below a page", `{"kv_cache_tokens": 1}`, "backend.kv_cache_tokens", "from 64"},
		{"negative memory", `{"training_memory_mib": -1}`, "backend.training_memory_mib", "from 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseConfig("single", []byte(c.section))
			var e *plugins.Error
			if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != c.field || !strings.Contains(e.Message, c.message) {
				t.Errorf("got %v; want field %s and %q", err, c.field, c.message)
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"threads": 2}`))
	f.Add([]byte(`{"device": null, "": 0}`))
	f.Fuzz(func(t *testing.T, section []byte) {
		c, err := ParseConfig("single", section)
		if err == nil && (c.Threads < 1 || c.MaxBatch < 1 || c.CycleTokens < 0) {
			t.Errorf("accepted %s as %+v", section, c)
		}
	})
}

func TestPlacements(t *testing.T) {
	for _, c := range []struct {
		plugin, section string
		training        [][]string
		field, message  string
	}{
		{"dataparallel", `{"devices": ["cpu", "cpu", "cpu"]}`, [][]string{{"cpu"}, {"cpu"}, {"cpu"}}, "", ""},
		{"dataparallel", `{"devices": [["cpu", "cpu"], ["cpu", "cpu"]]}`, [][]string{{"cpu", "cpu"}, {"cpu", "cpu"}}, "", ""},
		{"dataparallel", `{"devices": [["cpu", "cpu"], "cpu"]}`, nil, "backend.devices", "groups of 2 and 1 devices"},
		{"dataparallel", `{"devices": [["cpu"], []]}`, nil, "backend.devices", "the entry []"},
		{"tensorparallel", `{"devices": ["cpu", "cpu"]}`, [][]string{{"cpu", "cpu"}}, "", ""},
		{"tensorparallel", `{"devices": [["cpu", "cpu"]]}`, nil, "backend.devices", "are for the plugin dataparallel"},
		{"tensorparallel", `{"devices": ["cpu"], "sample_plugin": "single"}`, nil, "backend.sample_plugin", "without sample_devices"},
		{"tensorparallel", `{"devices": ["cpu"], "sample_devices": ["cpu", "cpu"], "sample_plugin": "single"}`, nil, "backend.sample_devices", "the sample_plugin single has one"},
		{"tensorparallel", `{"devices": ["cpu"], "sample_devices": [["cpu", "cpu"]]}`, nil, "backend.sample_devices", "are for the sample_plugin dataparallel"},
		{"dataparallel", `{}`, nil, "backend.devices", "is missing"},
		{"dataparallel", `{"devices": []}`, nil, "backend.devices", "want a list of devices"},
		{"dataparallel", `{"devices": "cpu"}`, nil, "backend.devices", "want a list of devices"},
		{"dataparallel", `{"devices": ["cpu", "tpu"]}`, nil, "backend.devices", `is "tpu"; want cpu`},
		{"dataparallel", `{"devices": ["cpu", 3]}`, nil, "backend.devices", "the entry 3"},
		{"dataparallel", `{"devices": ["cuda:0", "cuda:0"], "sample_devices": ["cuda:1"]}`, [][]string{{"cuda:0"}, {"cuda:0"}}, "", ""},
		{"tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "cuda_libraries": ["/opt/cuda"]}`, [][]string{{"cuda:0", "cuda:1"}}, "", ""},
		{"dataparallel", `{"devices": ["cuda:0", "cpu"]}`, nil, "backend.devices", "they are all processors or all GPUs"},
		{"dataparallel", `{"devices": ["cpu"], "sample_devices": ["cuda:0"]}`, nil, "backend.sample_devices", "they are all processors or all GPUs"},
		{"dataparallel", `{"devices": ["auto"]}`, nil, "backend.devices", "want cpu or cuda:N"},
		{"single", `{"device": "cuda:1", "cuda_libraries": ["/opt/cuda"]}`, [][]string{{"cuda:1"}}, "", ""},
		{"tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl", "nccl_peer_to_peer": "off"}`, [][]string{{"cuda:0", "cuda:1"}}, "", ""},
		{"tensorparallel", `{"devices": ["cuda:0", "cuda:0"], "comm": "nccl"}`, nil, "backend.comm", "takes each GPU once"},
		{"tensorparallel", `{"devices": ["cpu", "cpu"], "comm": "nccl"}`, nil, "backend.comm", "which is for GPUs"},
		{"dataparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl"}`, nil, "backend.comm", "copies exchange nothing"},
		{"tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "mpi"}`, nil, "backend.comm", "want local, nccl"},
		{"tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "nccl_peer_to_peer": "on"}`, nil, "backend.nccl_peer_to_peer", "without comm: nccl"},
		{"single", `{"device": "auto"}`, [][]string{{"auto"}}, "", ""},
		{"dataparallel", `{"devices": ["cpu", "cpu"], "shard_base": true}`, [][]string{{"cpu"}, {"cpu"}}, "", ""},
		{"dataparallel", `{"devices": ["cpu"], "shard_base": false}`, [][]string{{"cpu"}}, "", ""},
		{"dataparallel", `{"devices": ["cpu"], "shard_base": true}`, nil, "backend.shard_base", "over the entries of backend.devices; there is only one"},
		{"dataparallel", `{"devices": [["cpu", "cpu"]], "shard_base": true}`, nil, "backend.shard_base", "there is only one"},
		{"dataparallel", `{"devices": ["cpu", "cpu"], "shard_base": 1}`, nil, "backend.shard_base", "is 1; want true or false"},
		{"dataparallel", `{"devices": ["cpu", "cpu"], "shard_base": null}`, nil, "backend.shard_base", "is null; want true or false"},
		{"tensorparallel", `{"devices": ["cpu", "cpu"], "shard_base": true}`, nil, "backend.shard_base", "is for the plugin dataparallel"},
		{"single", `{"shard_base": false}`, nil, "backend.shard_base", "is for the plugin dataparallel"},
		{"dataparallel", `{"device": "cpu"}`, nil, "backend.device", "nearest that is: devices"},
		{"single", `{"devices": ["cpu", "cpu"]}`, nil, "backend.devices", "nearest that is: device"},
	} {
		got, err := ParseConfig(c.plugin, []byte(c.section))
		var e *plugins.Error
		switch {
		case c.field == "":
			if err != nil || !reflect.DeepEqual(got.Training, c.training) {
				t.Errorf("%s: %v, %v", c.section, got.Training, err)
			}
		case !errors.As(err, &e) || e.Field != c.field || !strings.Contains(e.Message, c.message):
			t.Errorf("%s: %v", c.section, err)
		}
	}
	many := `{"devices": [` + strings.Repeat(`"cpu", `, maxRanks) + `"cpu"]}`
	if _, err := ParseConfig("dataparallel", []byte(many)); err == nil || !strings.Contains(err.Error(), "65 devices; at most 64") {
		t.Error(err)
	}
}
