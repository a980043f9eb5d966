package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/plugins/modelfile"
)

// tokenizerFile has the whole tokenizer.
const tokenizerFile = "tokenizer.json"

// Limits of the files of a model directory, in bytes. The largest tokenizer.json
// in use has about 35 MB.
const (
	maxTokenizerFile = 64 << 20
	maxConfigFile    = 16 << 20
	maxTemplateFile  = 4 << 20
	maxTemplates     = 32 // files
)

// otherForms are files that hold a tokenizer in a form that is not read.
var otherForms = []string{"tokenizer.model*", "spiece.model", "sentencepiece*.model", "*.tiktoken", "tekken.json", "vocab.txt"}

// settings are files that come with a tokenizer and hold none.
var settings = []string{"tokenizer_config.json", "special_tokens_map.json", "merges.txt", "added_tokens.json"}

// Find tells whether a model directory has a tokenizer for Load. The error says that it has one in another form, or a part of one.
func Find(dir string) (bool, error) {
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name)) // a link to nothing is not nothing
		return err == nil
	}
	if there("tokenizer.json") || there("vocab.json") {
		return true, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, pattern := range otherForms {
		for _, e := range entries {
			if ok, err := filepath.Match(pattern, e.Name()); err == nil && ok {
				return false, fmt.Errorf("there is %s but no tokenizer.json, which is what is read: write it beside it with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), or download it", e.Name())
			}
		}
	}
	for _, name := range settings {
		if there(name) {
			return false, fmt.Errorf("there is %s, but neither tokenizer.json nor vocab.json: download the rest of the tokenizer", name)
		}
	}
	return false, nil
}

// Load reads the tokenizer of a model directory: tokenizer.json, or vocab.json
// and merges.txt of a byte-level BPE, and from tokenizer_config.json the roles of
// tokens, further added tokens and the chat template. A chat_template.jinja
// beside them wins over the template in the configuration, as in transformers.
func Load(dir string) (*Tokenizer, error) {
	t, err := load(dir)
	if err != nil {
		return nil, fmt.Errorf("loading the tokenizer of %s: %w", dir, err)
	}
	return t, nil
}

func load(dir string) (*Tokenizer, error) {
	config := &tokenizerConfig{}
	if err := readJSON(dir, "tokenizer_config.json", maxConfigFile, config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var named specialTokensMap
	if err := readJSON(dir, "special_tokens_map.json", maxConfigFile, &named); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	roles := []*roleToken{&config.BOS, &config.EOS, &config.PAD, &config.UNK}
	for i, r := range []roleToken{named.BOS, named.EOS, named.PAD, named.UNK} {
		if roles[i].Content == "" {
			*roles[i] = r
		}
	}
	later, err := config.addedTokens()
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	def, source, err := readDefinition(dir, config)
	if err != nil {
		return nil, err
	}
	if source != tokenizerFile {
		if err := config.checkNamed(dir, def, later, roles); err != nil {
			return nil, err
		}
	}
	for _, r := range roles {
		later = append(later, r.implied(def, later)...)
	}
	t, err := newTokenizer(def, later)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	for _, r := range []struct {
		token roleToken
		into  *specialID
	}{{config.BOS, &t.bos}, {config.EOS, &t.eos}, {config.PAD, &t.pad}} {
		if id, ok := t.ID(r.token.Content); ok && r.token.Content != "" {
			*r.into = specialID{id, true}
		}
	}
	if err := t.applyTemplateSettings(def, config); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	if t.chatTemplates, err = readChatTemplates(dir, config); err != nil {
		return nil, err
	}
	return t, nil
}

// readDefinition reads tokenizer.json or makes its like from vocab.json and
// merges.txt. source names what was read, for errors.
func readDefinition(dir string, config *tokenizerConfig) (def *definition, source string, err error) {
	data, err := readFile(dir, tokenizerFile, maxTokenizerFile)
	if err == nil {
		if def, err = parseDefinition(data); err != nil {
			err = fmt.Errorf("%s: %w", tokenizerFile, err)
		}
		return def, tokenizerFile, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	m := &modelDefinition{Type: "BPE"}
	if err := readJSON(dir, "vocab.json", maxTokenizerFile, &m.tokens); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", errors.New("neither tokenizer.json nor vocab.json is there")
		}
		return nil, "", err
	}
	merges, err := readFile(dir, "merges.txt", maxTokenizerFile)
	if err != nil {
		return nil, "", err
	}
	if m.Merges, err = parseMerges(merges); err != nil {
		return nil, "", err
	}
	def = &definition{Model: m}
	if err := config.completeByteLevel(def); err != nil {
		return nil, "", err
	}
	return def, "vocab.json and merges.txt", nil
}

// parseMerges reads a merges.txt: a pair a line, after an optional "#version".
func parseMerges(data []byte) (mergeList, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("merges.txt: the file is not UTF-8")
	}
	var out mergeList
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		if strings.HasPrefix(line, "#version") || line == "" {
			continue
		}
		pair, ok := splitMerge(line)
		if !ok {
			return nil, fmt.Errorf("merges.txt: line %d is %q: two tokens with one space between are needed", number, line)
		}
		out = append(out, pair)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("merges.txt: %w", err)
	}
	return out, nil
}

// tokenizerConfig is what counts here of a tokenizer_config.json.
type tokenizerConfig struct {
	Class          string                `json:"tokenizer_class"`
	AddedTokens    map[string]addedToken `json:"added_tokens_decoder"`
	AddBOS         *bool                 `json:"add_bos_token"`
	AddEOS         *bool                 `json:"add_eos_token"`
	AddPrefixSpace bool                  `json:"add_prefix_space"`
	ChatTemplate   json.RawMessage       `json:"chat_template"`
	Additional     []roleToken           `json:"additional_special_tokens"`
	specialTokensMap
}

type specialTokensMap struct {
	BOS roleToken `json:"bos_token"`
	EOS roleToken `json:"eos_token"`
	PAD roleToken `json:"pad_token"`
	UNK roleToken `json:"unk_token"`
}

// roleToken is a token written as its content or as an added token; empty for null.
type roleToken addedToken

func (r *roleToken) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		return json.Unmarshal(b, (*addedToken)(r))
	}
	return json.Unmarshal(b, &r.Content)
}

// implied returns the special token that a role makes of a token of the model's
// vocabulary which is no added token yet, as transformers has it.
func (r *roleToken) implied(def *definition, later []addedToken) []addedToken {
	known := func(t addedToken) bool { return t.Content == r.Content }
	if r.Content == "" || slices.ContainsFunc(def.AddedTokens, known) || slices.ContainsFunc(later, known) {
		return nil
	}
	_, ok := def.Model.tokens[r.Content]
	if !ok && !slices.ContainsFunc(def.Model.pieces, func(p unigramPiece) bool { return p.token == r.Content }) {
		return nil
	}
	t := addedToken(*r)
	t.Special = true
	return []addedToken{t}
}

// checkNamed refuses special tokens that a directory without tokenizer.json names and gives no id: transformers makes up one for each.
func (c *tokenizerConfig) checkNamed(dir string, def *definition, later []addedToken, roles []*roleToken) error {
	named := map[string]json.RawMessage{}
	if err := readJSON(dir, "added_tokens.json", maxConfigFile, &named); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, r := range slices.Concat(c.Additional, fromPointers(roles)) {
		if _, ok := def.Model.tokens[r.Content]; !ok && r.Content != "" {
			named[r.Content] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !slices.ContainsFunc(later, func(t addedToken) bool { return t.Content == name }) {
			return fmt.Errorf("there is no tokenizer.json, and the special token %.80q has no id in vocab.json or in added_tokens_decoder of tokenizer_config.json: write tokenizer.json with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), or download it", name)
		}
	}
	return nil
}

func fromPointers(list []*roleToken) []roleToken {
	out := make([]roleToken, len(list))
	for i, r := range list {
		out[i] = *r
	}
	return out
}

// addedTokens returns the tokens of added_tokens_decoder by ascending id.
func (c *tokenizerConfig) addedTokens() ([]addedToken, error) {
	var out []addedToken
	for key, t := range c.AddedTokens {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || id > maxID {
			return nil, fmt.Errorf("added_tokens_decoder: %q is no id: allowed are 0 to %d", key, maxID)
		}
		t.ID = id
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b addedToken) int { return int(a.ID - b.ID) })
	return out, nil
}

// completeByteLevel adds to a bare vocabulary what transformers' converters add
// for the classes that come as vocab.json and merges.txt.
func (c *tokenizerConfig) completeByteLevel(def *definition) error {
	raw := func(v any) json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // maps of strings and booleans always marshal
		}
		return b
	}
	type object = map[string]any
	bytes := object{"type": "ByteLevel", "add_prefix_space": c.AddPrefixSpace, "trim_offsets": false}
	def.Decoder = raw(object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false})
	switch strings.TrimSuffix(c.Class, "Fast") {
	case "Qwen2Tokenizer":
		bytes["use_regex"] = false
		def.Normalizer = raw(object{"type": "NFC"})
		def.PreTokenizer = raw(object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": patternQwen2}, "behavior": "Isolated", "invert": false}, bytes,
		}})
	case "", "GPT2Tokenizer":
		def.PreTokenizer = raw(bytes)
	default:
		return fmt.Errorf("tokenizer_config.json: tokenizer_class is %q: vocab.json and merges.txt are supported for Qwen2Tokenizer and GPT2Tokenizer, other classes need a tokenizer.json", c.Class)
	}
	return nil
}

// applyTemplateSettings puts the tokens of add_bos_token and add_eos_token around
// texts where the tokenizer itself says nothing, and for the Llama classes, which
// transformers rebuilds from these settings, also where it does.
func (t *Tokenizer) applyTemplateSettings(def *definition, c *tokenizerConfig) error {
	kind, err := componentType("post_processor", def.PostProcessor)
	if err != nil {
		return err
	}
	llama := strings.HasPrefix(c.Class, "LlamaTokenizer") || strings.HasPrefix(c.Class, "CodeLlamaTokenizer")
	if kind != "" && !(llama && (c.AddBOS != nil || c.AddEOS != nil)) {
		return nil
	}
	var out template
	if c.AddBOS != nil && *c.AddBOS {
		if !t.bos.valid {
			return errors.New("add_bos_token is true but bos_token names no token")
		}
		out.before = []int32{t.bos.id}
	}
	if c.AddEOS != nil && *c.AddEOS {
		if !t.eos.valid {
			return errors.New("add_eos_token is true but eos_token names no token")
		}
		out.after = []int32{t.eos.id}
	}
	t.template = out
	return nil
}

// templateFolder holds further templates, NAME.jinja each.
const templateFolder = "additional_chat_templates"

// readChatTemplates collects the templates by name. Files win: if there is any,
// the configuration's, one text or a list of names and texts, do not count.
func readChatTemplates(dir string, c *tokenizerConfig) (map[string]string, error) {
	files := map[string]string{"default": "chat_template.jinja"}
	entries, err := os.ReadDir(filepath.Join(dir, templateFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", templateFolder, err)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".jinja"); ok && name != "default" {
			files[name] = filepath.Join(templateFolder, e.Name())
		}
	}
	if len(files) > maxTemplates {
		return nil, fmt.Errorf("%s has %d templates: allowed are %d", templateFolder, len(files)-1, maxTemplates-1)
	}
	out := map[string]string{}
	for name, file := range files {
		text, err := readFile(dir, file, maxTemplateFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(text) {
			return nil, fmt.Errorf("%s: the file is not UTF-8", file)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return nil, fmt.Errorf("%s: the file is empty: download it again, or remove it", file)
		}
		out[name] = string(text)
	}
	if len(out) > 0 {
		return out, nil
	}
	raw := bytes.TrimSpace(c.ChatTemplate)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	if raw[0] == '[' {
		var list []struct{ Name, Template string }
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: chat_template: %w", err)
		}
		for _, e := range list {
			out[e.Name] = e.Template
		}
		return out, nil
	}
	var single string
	if err := json.Unmarshal(raw, &single); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: chat_template: %w", err)
	}
	return map[string]string{"default": single}, nil
}

func readJSON(dir, name string, limit int64, into any) error {
	data, err := readFile(dir, name, limit)
	if err != nil {
		return err
	}
	if err := parseJSON(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readFile reads a regular file of at most limit bytes.
func readFile(dir, name string, limit int64) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path) // before opening: opening a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than the %d bytes allowed", name, limit)
	}
	if err := modelfile.Placeholder(data); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
