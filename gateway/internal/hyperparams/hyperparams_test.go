package hyperparams

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// For models that the cookbook knows, the rule over config.json gives the cookbook's numbers. The configurations are the published ones; the cookbook's numbers came from the cookbook itself (testdata/make.py).
func TestRuleIsTheCookbooks(t *testing.T) {
	for dir, name := range map[string]string{
		"gpt-oss-20b": "openai/gpt-oss-20b", "gpt-oss-120b": "openai/gpt-oss-120b", "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-32b": "Qwen/Qwen3-32B",
		"qwen3.5-27b": "Qwen/Qwen3.5-27B", "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B",
	} {
		t.Run(name, func(t *testing.T) {
			config, err := os.ReadFile(filepath.Join("../../../backends/internal/engine/testdata/plans", dir, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name, config)
		})
	}
	for name, config := range map[string]string{
		"meta-llama/Llama-3.2-1B": `{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256}`,
		"meta-llama/Llama-3.1-8B": `{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}`,
		"Qwen/Qwen3-30B-A3B": `{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
			"num_experts": 128, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936}`,
	} {
		t.Run(name, func(t *testing.T) { compare(t, name, []byte(config)) })
	}
}

func compare(t *testing.T, name string, config []byte) {
	t.Helper()
	want, ok := Known(name, 0)
	if !ok {
		t.Fatal("the cookbook does not know it")
	}
	got, err := Of(name, config, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.ParametersPerRank == nil || *got.ParametersPerRank != *want.ParametersPerRank {
		t.Errorf("parameters %+v, the cookbook's are %+v", got.ParametersPerRank, want.ParametersPerRank)
	}
	if math.Abs(got.LearningRate-want.LearningRate) > 1e-15 || got.HiddenSize != want.HiddenSize || got.Calibrated != want.Calibrated {
		t.Errorf("learning rate %v (%v) of width %d, the cookbook's is %v (%v) of %d", got.LearningRate, got.Calibrated, got.HiddenSize, want.LearningRate, want.Calibrated, want.HiddenSize)
	}
}

func TestRankFollowsTheDataset(t *testing.T) {
	const perRank = 1_769_472 + 958_464 + 156_032 // of Qwen3-8B
	for _, c := range []struct {
		name   string
		tokens int64
		rank   int
		enough bool
	}{
		{"small", 1, 32, true},
		{"as many as parameters", 32 * perRank, 32, true},
		{"one more", 32*perRank + 1, 64, true},
		{"large", 200 * perRank, 256, true},
		{"the largest", 512 * perRank, 512, true},
		{"too large", 512*perRank + 1, 512, false},
		{"far too large", math.MaxInt64, 512, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, ok := Known("Qwen/Qwen3-8B:peft:1024", c.tokens)
			if !ok {
				t.Fatal("not known")
			}
			if a.Rank != c.rank || *a.Enough != c.enough || *a.Parameters != int64(c.rank)*perRank || (len(a.Notes) > 0) == c.enough {
				t.Errorf("rank %d, enough %v, %d parameters, notes %q", a.Rank, *a.Enough, *a.Parameters, a.Notes)
			}
		})
	}
}

func TestOtherModels(t *testing.T) {
	a, err := Of("m", []byte(`{"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000}`), 0)
	if err != nil || a.Calibrated || a.LearningRate != 5e-4 || a.ParametersPerRank == nil || len(a.Notes) != 1 {
		t.Errorf("a family without a fit: %+v, %v", a, err)
	}
	a, err = Of("m", []byte(`{"model_type": "kimi_k9", "hidden_size": 4096}`), 1e9)
	if err != nil || a.ParametersPerRank != nil || a.Parameters != nil || a.Enough != nil || a.Rank != DefaultRank {
		t.Errorf("an unknown architecture: %+v, %v", a, err)
	}
	a, ok := Known("deepseek-ai/DeepSeek-V3.1", 0)
	if !ok || a.Calibrated || a.LearningRate != 5e-4 {
		t.Errorf("one that the cookbook refuses: %+v", a)
	}
	if _, ok := Known("nobody/knows", 0); ok {
		t.Error("it knows what nobody knows")
	}
}

func TestHostileConfigs(t *testing.T) {
	good := `{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100%s}`
	for _, c := range []struct{ name, config, want string }{
		{"no JSON", "{", "config.json"},
		{"a list", "[]", "config.json"},
		{"no width", "{}", "hidden_size is 0"},
		{"a negative width", `{"hidden_size": -5}`, "hidden_size is -5"},
		{"an endless width", `{"hidden_size": 9000000000000}`, "hidden_size is 9000000000000"},
		{"endless layers", fmt.Sprintf(good, `, "num_hidden_layers": 1000000`), "num_hidden_layers is 1000000"},
		{"negative experts", fmt.Sprintf(good, `, "num_experts": -1`), "num_experts is -1"},
		{"negative heads of keys", fmt.Sprintf(good, `, "num_key_value_heads": -1`), "num_key_value_heads"},
		{"an endless vocabulary", fmt.Sprintf(good, `, "vocab_size": 9000000000000`), "vocab_size"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a, err := Of("m", []byte(c.config), 5); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, error %v, want %q", a, err, c.want)
			}
		})
	}
}

func FuzzOf(f *testing.F) {
	f.Add([]byte(`{"model_type": "qwen3_5", "text_config": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "linear_num_key_heads": 2, "num_experts": 4, "moe_intermediate_size": 8, "vocab_size": 9}}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		a, err := Of("m", config, 1<<40)
		if err == nil && (a.Rank < DefaultRank || a.Rank > MaxRank || !(a.LearningRate > 0) || math.IsInf(a.LearningRate, 0) || a.Parameters != nil && *a.Parameters < 0) {
			t.Errorf("%+v", a)
		}
	})
}
