// Package catalog holds what the gateway itself knows of a served model: its directory, tokenizer, chat template and end tokens. Weights are the
// backend's. It knows no HTTP and no run.
package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/modelfile"
)

// maxConfigBytes bounds the JSON files of a model directory that are read here.
const maxConfigBytes = 4 << 20

// Model is one served base model. It is read-only and may be used concurrently.
type Model struct {
	config.Model
	Dir       string
	Tokenizer *tokenizer.Tokenizer // nil for a directory without one: then only token ids are served
	Template  *chat.Template       // nil without a chat template
	EndTokens []int32              // sorted

	Sampling SamplingDefaults
	Created  time.Time // when its directory was written last

	TakesTools bool          // the template can tell the model of tools
	ToolFormat answer.Format // how the model writes tool calls, "" or answer.None where that is not known
	Reasoning  answer.Tags   // what encloses the model's thoughts

	Err error // why its directory cannot be used, nil if it can; then the rest is empty, and the model is not served
}

// SamplingDefaults are generation_config.json's, for OpenAI requests that do not say; nil = not said.
type SamplingDefaults struct {
	Temperature       *float64 `json:"temperature"`
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

// check refuses values that every request would fail with.
func (d *SamplingDefaults) check() error {
	for _, f := range []struct {
		name    string
		value   *float64
		ok      func(float64) bool
		allowed string
	}{
		{"temperature", d.Temperature, func(v float64) bool { return v >= 0 }, "at least 0"},
		{"top_p", d.TopP, func(v float64) bool { return v > 0 && v <= 1 }, "above 0 and at most 1"},
		{"min_p", d.MinP, func(v float64) bool { return v >= 0 && v <= 1 }, "0 to 1"},
		{"repetition_penalty", d.RepetitionPenalty, func(v float64) bool { return v > 0 }, "above 0"},
	} {
		if f.value != nil && !f.ok(*f.value) {
			return fmt.Errorf("generation_config.json: %s: %v is not allowed: %s", f.name, *f.value, f.allowed)
		}
	}
	if d.TopK != nil && (*d.TopK < -1 || *d.TopK > math.MaxInt32) {
		return fmt.Errorf("generation_config.json: top_k: %d is not allowed: -1, which is off, to %d", *d.TopK, math.MaxInt32)
	}
	return nil
}

// Load reads what is needed from a model directory. A missing tokenizer or template is no error; a broken one is.
func Load(cfg config.Model, dir string) (*Model, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
	}
	m := &Model{Model: cfg, Dir: dir, Created: info.ModTime()}
	found, err := tokenizer.Find(dir)
	if err != nil {
		return nil, fmt.Errorf("model %s: tokenizer: %w", cfg.Name, err)
	}
	if found {
		if m.Tokenizer, err = tokenizer.Load(dir); err != nil {
			return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
		}
		if source := m.Tokenizer.ChatTemplate(); source != "" {
			if !strings.Contains(source, "{{") && !strings.Contains(source, "{%") { // such as the text of an error
				return nil, fmt.Errorf("model %s: chat template: %.80q is no template: it says the same whatever the messages are; download it again", cfg.Name, source)
			}
			if m.Template, err = chat.NewTemplate(source, m.specials()); err != nil {
				return nil, fmt.Errorf("model %s: chat template: %w", cfg.Name, err)
			}
			m.TakesTools, m.ToolFormat, m.Reasoning = strings.Contains(source, "tools"), answer.FormatOf(source), answer.TagsOf(source)
		}
	}
	if cfg.ToolFormat != "" {
		if m.ToolFormat, err = answer.ParseFormat(cfg.ToolFormat); err != nil {
			return nil, fmt.Errorf("model %s: tool_format: %w", cfg.Name, err)
		}
	}
	if err := m.readEnds(); err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
	}
	return m, nil
}

// specials are the tokens that templates refer to by name.
func (m *Model) specials() map[string]string {
	out := map[string]string{}
	for name, get := range map[string]func() (int32, bool){"bos_token": m.Tokenizer.BOS, "eos_token": m.Tokenizer.EOS, "pad_token": m.Tokenizer.PAD} {
		if id, ok := get(); ok {
			if text, ok := m.Tokenizer.TokenString(id); ok {
				out[name] = text
			}
		}
	}
	return out
}

// ids is one token id or a list of them.
type ids []int32

func (l *ids) UnmarshalJSON(b []byte) error {
	var one *int32
	if json.Unmarshal(b, &one) == nil {
		if one != nil {
			*l = ids{*one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]int32)(l))
}

// specialIDs are the ids of tokens with a role in a configuration.
type specialIDs struct {
	BOS ids `json:"bos_token_id"`
	EOS ids `json:"eos_token_id"`
	PAD ids `json:"pad_token_id"`
}

// check refuses ids that no token can have. vocabulary is the number of tokens, 0 where it is not known.
func (s *specialIDs) check(file string, vocabulary int32) error {
	most := int32(math.MaxInt32)
	if vocabulary > 0 {
		most = vocabulary - 1
	}
	for _, f := range []struct {
		name string
		ids  ids
	}{{"bos_token_id", s.BOS}, {"eos_token_id", s.EOS}, {"pad_token_id", s.PAD}} {
		for _, id := range f.ids {
			if id < 0 || id > most {
				return fmt.Errorf("%s: %s: %d is not allowed: 0 to %d", file, f.name, id, most)
			}
		}
	}
	return nil
}

// readEnds collects the end tokens: those of generation_config.json, else of config.json, and the tokenizer's.
func (m *Model) readEnds() error {
	var generation struct {
		specialIDs
		SamplingDefaults
	}
	if err := readJSON(filepath.Join(m.Dir, "generation_config.json"), &generation); err != nil {
		return err
	}
	type textModel struct {
		specialIDs
		VocabSize int32 `json:"vocab_size"`
	}
	var model struct {
		textModel
		Text *textModel `json:"text_config"` // of a model of several kinds of input
	}
	if err := readJSON(filepath.Join(m.Dir, "config.json"), &model); err != nil {
		return err
	}
	if model.Text != nil {
		outer := model.EOS
		if model.textModel = *model.Text; len(model.EOS) == 0 { // some files have it beside text_config
			model.EOS = outer
		}
	}
	if err := errors.Join(model.check("config.json", model.VocabSize), generation.specialIDs.check("generation_config.json", model.VocabSize)); err != nil {
		return err
	}
	m.Sampling = generation.SamplingDefaults
	if err := m.Sampling.check(); err != nil {
		return err
	}
	m.EndTokens = generation.EOS
	if len(m.EndTokens) == 0 {
		m.EndTokens = model.EOS
	}
	if m.Tokenizer != nil {
		if id, ok := m.Tokenizer.EOS(); ok {
			m.EndTokens = append(m.EndTokens, id)
		}
	}
	slices.Sort(m.EndTokens)
	m.EndTokens = slices.Compact(m.EndTokens)
	return nil
}

// readJSON reads a file if it exists.
func readJSON(path string, into any) error {
	info, err := os.Stat(path) // before opening: opening a pipe would wait for a writer
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return err
	}
	if len(b) > maxConfigBytes {
		return fmt.Errorf("%s: more than %d bytes", filepath.Base(path), maxConfigBytes)
	}
	if err := modelfile.Placeholder(b); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// Served is the model as package runs wants it.
func (m *Model) Served() runs.Model {
	out := runs.Model{
		Name: m.Name, Aliases: m.Aliases, TokenizerID: m.TokenizerID, ChatLatest: m.Chat == "latest", ExportNames: m.ExportNames, EndTokens: m.EndTokens,
		Backends: m.BackendNames(), BackendsID: m.BackendsID(),
	}
	if m.Tokenizer != nil {
		out.NewStopMatcher = func(stops []string) runs.StopMatcher { return newStopMatcher(m.Tokenizer, stops) }
	}
	return out
}

// Vocabulary says what the tokens of a backend's model stand for, which has so many. It takes some milliseconds. The model has a tokenizer.
func (m *Model) Vocabulary(size int) plugins.Vocabulary {
	n := min(size, m.Tokenizer.VocabSize())
	v := plugins.Vocabulary{Tokens: make([][]byte, n), Special: make([]bool, n)}
	for i := range v.Tokens {
		id := int32(i)
		if v.Special[i] = m.Tokenizer.IsAdded(id) || m.Tokenizer.IsSpecial(id); !v.Special[i] {
			v.Tokens[i] = m.Tokenizer.TokenBytes(id)
		} else if text, ok := m.Tokenizer.TokenString(id); ok {
			v.Tokens[i] = []byte(text)
		}
	}
	for _, id := range m.EndTokens {
		if int(id) < n {
			v.Ends = append(v.Ends, id)
		}
	}
	return v
}

// TokenText gives a token as text, with U+FFFD for bytes that are no character by themselves, and its exact bytes as numbers.
func (m *Model) TokenText(id int32) (string, []int) {
	raw := m.Tokenizer.TokenBytes(id)
	numbers := make([]int, len(raw))
	for i, b := range raw {
		numbers[i] = int(b)
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD"), numbers
}
