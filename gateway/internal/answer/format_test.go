package answer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// templates are the formats and tags of published templates, which may not be committed.
var templates = map[string]struct {
	format Format
	tags   Tags
}{
	"GLM-4.6.jinja":                                       {GLM, knownTags[0]},
	"GLM-4.7-Flash.jinja":                                 {GLM, knownTags[0]},
	"Kimi-K2-Instruct.jinja":                              {KimiK2, Tags{}},
	"Kimi-K2-Thinking.jinja":                              {KimiK2, knownTags[0]},
	"Kimi-K3.jinja":                                       {"", Tags{}},
	"Mistral-Small-3.2-24B-Instruct-2506.jinja":           {Mistral, Tags{}},
	"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja":           {Qwen3XML, knownTags[0]},
	"NVIDIA-Nemotron-Nano-v2.jinja":                       {NemotronList, knownTags[0]},
	"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": {Hermes, Tags{}},
	"NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja":   {Hermes, Tags{}},
	"Qwen-QwQ-32B.jinja":                                  {Hermes, knownTags[0]},
	"Qwen-Qwen2.5-7B-Instruct.jinja":                      {Hermes, Tags{}},
	"Qwen-Qwen3-0.6B.jinja":                               {Hermes, knownTags[0]},
	"Qwen3-Coder.jinja":                                   {Qwen3XML, Tags{}},
	"Qwen3.5-4B.jinja":                                    {Qwen3XML, knownTags[0]},
	"Qwen3.8.jinja":                                       {Qwen3XML, knownTags[0]},
	"deepseek-ai-DeepSeek-V3.1.jinja":                     {DeepSeekV31, knownTags[0]},
	"deepseek-ai-DeepSeek-V3.2.jinja":                     {DSML, knownTags[0]},
	"deepseek-ai-DeepSeek-V4.jinja":                       {DSML, knownTags[0]},
	"llama-cpp-deepseek-r1.jinja":                         {DeepSeekV31, knownTags[0]},
	"meta-llama-Llama-3.1-8B-Instruct.jinja":              {Llama3JSON, Tags{}},
	"meta-llama-Llama-3.2-3B-Instruct.jinja":              {Llama3JSON, Tags{}},
	"meta-llama-Llama-3.3-70B-Instruct.jinja":             {Llama3JSON, Tags{}},
	"mistralai-Ministral-3-14B-Reasoning-2512.jinja":      {Mistral, knownTags[1]},
	"mistralai-Mistral-Nemo-Instruct-2407.jinja":          {Mistral, Tags{}},
	"moonshotai-Kimi-K2.jinja":                            {KimiK2, Tags{}},
	"openai-gpt-oss-120b.jinja":                           {Harmony, harmonyTags},
	"unsloth-mistral-Devstral-Small-2507.jinja":           {Mistral, Tags{}},
}

func TestTemplates(t *testing.T) {
	folder := os.Getenv("TINSMITH_TESTDATA")
	if folder == "" {
		t.Skip("the templates may not be committed: TINSMITH_TESTDATA says where they are")
	}
	files, err := filepath.Glob(filepath.Join(folder, "surfaces/chat-templates/*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates in %s: %v", folder, err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, ok := templates[filepath.Base(file)]
		if !ok {
			t.Errorf("%s is not in the table", filepath.Base(file))
			continue
		}
		if got := FormatOf(string(source)); got != want.format {
			t.Errorf("%s: format %q, want %q", filepath.Base(file), got, want.format)
		}
		if got := TagsOf(string(source)); got != want.tags {
			t.Errorf("%s: tags %q, want %q", filepath.Base(file), got, want.tags)
		}
		var matches []Format
		for _, d := range definitions {
			if d.signs(string(source)) {
				matches = append(matches, d.format)
			}
		}
		if len(matches) > 1 {
			t.Errorf("%s has the signs of %v", filepath.Base(file), matches)
		}
	}
}

// TestBuiltInModel reads the template of the model that comes with the server.
func TestBuiltInModel(t *testing.T) {
	content, err := os.ReadFile("../../../configs/models/tiny-chat/tokenizer_config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Template string `json:"chat_template"`
	}
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	if f, tags := FormatOf(config.Template), TagsOf(config.Template); f != Hermes || tags != knownTags[0] {
		t.Errorf("format %q and tags %q", f, tags)
	}
}

func TestParseFormat(t *testing.T) {
	for _, name := range Formats() {
		if f, err := ParseFormat(name); err != nil || string(f) != name {
			t.Errorf("%q: %q, %v", name, f, err)
		}
	}
	for _, name := range []string{"", "qwen", "Hermes"} {
		if _, err := ParseFormat(name); err == nil || !strings.Contains(err.Error(), "hermes") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if !slices.Contains(Formats(), "none") || !slices.IsSorted(Formats()) {
		t.Errorf("%q", Formats())
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if seen[id] || !regexp.MustCompile(`^call_[A-Za-z0-9]{24}$`).MatchString(id) {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
	for format, want := range map[Format]string{Hermes: `^call_[A-Za-z0-9]{24}$`, Mistral: `^[A-Za-z0-9]{9}$`} {
		text := map[Format]string{Hermes: `<tool_call>{"name":"f"}</tool_call>`, Mistral: `[TOOL_CALLS]f[ARGS]{}`}[format]
		if a := Collect(read(Options{Format: format, ReadCalls: true}, false, text)); len(a.Calls) != 1 || !regexp.MustCompile(want).MatchString(a.Calls[0].ID) {
			t.Errorf("%s: %+v", format, a.Calls)
		}
	}
}

func TestHistoryIDs(t *testing.T) {
	id := NewID()
	for _, f := range []Format{"", None, Hermes, KimiK2} {
		if got := f.HistoryID(id); got != id {
			t.Errorf("%s: %q", f, got)
		}
	}
	nine := regexp.MustCompile(`^[A-Za-z0-9]{9}$`)
	seen := map[string]bool{}
	for _, id := range []string{"", id, NewID(), "123456789 ", "12345678-", "call00001x"} {
		got := Mistral.HistoryID(id)
		if !nine.MatchString(got) || got != Mistral.HistoryID(id) || seen[got] {
			t.Errorf("%q: %q", id, got)
		}
		seen[got] = true
	}
	if got := Mistral.HistoryID("aB3456789"); got != "aB3456789" {
		t.Errorf("%q", got)
	}
}

func TestTags(t *testing.T) {
	for _, c := range []struct {
		tags      Tags
		prompt    string
		at        State
		continued State
		opening   string
	}{
		{Tags{}, "<|im_start|>assistant\n<think>\n", MayOpen, Underway, ""},
		{knownTags[0], "<|im_start|>assistant\n", MayOpen, Underway, ""},
		{knownTags[0], "<think> what is <think>?<|im_end|>\n<|im_start|>assistant\n", MayOpen, Inside, ""},
		{knownTags[0], "<|im_start|>assistant\n<think>", Opened, Opened, "<think>"},
		{knownTags[0], "<|im_start|>assistant\n<think>\n", Inside, Inside, "<think>\n"},
		{knownTags[0], "<|im_start|>assistant\n<think>\n\n</think>\n\n", Over, Over, ""},
		{knownTags[0], "<｜Assistant｜></think>", Over, Over, ""},
		{knownTags[0], "<think>\nI'm", MayOpen, Inside, ""},
		{knownTags[0], "<think>\nhm\n</think>\n\nHello", MayOpen, Underway, ""},
		{knownTags[0], "", MayOpen, MayOpen, ""},
		{knownTags[1], "[THINK]", Opened, Opened, "[THINK]"},
	} {
		if got := c.tags.At(c.prompt); got != c.at {
			t.Errorf("At(%q) is %d, want %d", c.prompt, got, c.at)
		}
		if got := c.tags.Continued(c.prompt); got != c.continued {
			t.Errorf("Continued(%q) is %d, want %d", c.prompt, got, c.continued)
		}
		if got := c.tags.Opening(c.prompt); got != c.opening {
			t.Errorf("Opening(%q) is %q, want %q", c.prompt, got, c.opening)
		}
	}
}
