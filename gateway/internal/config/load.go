package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// maxFileBytes bounds a configuration file; real ones have a few kilobytes.
const maxFileBytes = 1 << 20

// maxNodes bounds the values of a file.
const maxNodes = 100_000

// Load reads and validates a file. Every error names the file, and the line where there is one.
func Load(path string) (Config, error) {
	data, err := readFile(path)
	if err != nil {
		return Config{}, err
	}
	return Parse(path, data)
}

// LoadUnchecked reads a file without validating values: a keys file that is named but empty, say, is what a first key is made for.
func LoadUnchecked(path string) (Config, error) {
	data, err := readFile(path)
	if err != nil {
		return Config{}, err
	}
	return parse(path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return data, nil
}

// Parse is Load for bytes; path is used in messages and to resolve relative paths.
func Parse(path string, data []byte) (Config, error) {
	cfg, err := parse(path, data)
	if err != nil {
		return Config{}, err
	}
	if err := cfg.Validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

func parse(path string, data []byte) (Config, error) {
	fail := func(err error) (Config, error) {
		var at *lineError
		if errors.As(err, &at) {
			return Config{}, fmt.Errorf("%s:%d: %s", path, at.line, at.text)
		}
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	if len(data) > maxFileBytes {
		return fail(fmt.Errorf("the file has more than %d bytes", maxFileBytes))
	}
	cfg := Default()
	cfg.File = path
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return fail(errors.New("the file is empty: `models` is required"))
		}
		return fail(errors.New(strings.TrimPrefix(err.Error(), "yaml: ")))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fail(errors.New("more than one YAML document"))
	}
	budget := maxNodes
	if err := decodeNode(doc.Content[0], reflect.ValueOf(&cfg).Elem(), "", &budget); err != nil {
		return fail(err)
	}
	if err := cfg.resolve(filepath.Dir(path)); err != nil {
		return fail(err)
	}
	return cfg, nil
}

// lineError is a fault at a line of the file.
type lineError struct {
	line int
	text string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

func at(n *yaml.Node, format string, args ...any) error {
	return &lineError{n.Line, fmt.Sprintf(format, args...)}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	rawJSONType  = reflect.TypeFor[json.RawMessage]()
	modelType    = reflect.TypeFor[Model]()
)

// decodeNode fills v from n. It is strict: unknown and repeated keys and wrong types are errors with a line.
func decodeNode(n *yaml.Node, v reflect.Value, key string, budget *int) error {
	if *budget--; *budget < 0 {
		return at(n, "the file has more than %d values", maxNodes)
	}
	if n.Kind == yaml.AliasNode {
		return at(n, "%s: YAML aliases are not supported", key)
	}
	switch {
	case v.Type() == durationType:
		var s string
		if n.Kind != yaml.ScalarNode || n.Decode(&s) != nil {
			return at(n, "%s: expected a duration such as 30s or 5m", key)
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return at(n, "%s: %q is not a duration such as 30s or 5m", key, s)
		}
		v.SetInt(int64(d))
		return nil
	case v.Type() == rawJSONType:
		value, err := plain(n, key, budget)
		if err != nil {
			return err
		}
		section, ok := value.(map[string]any)
		if !ok {
			return at(n, "%s: expected a mapping", key)
		}
		data, err := json.Marshal(section)
		if err != nil {
			return at(n, "%s: %v", key, err)
		}
		v.SetBytes(data)
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return decodeNode(n, v.Elem(), key, budget)
	case reflect.Struct:
		return decodeStruct(n, v, key, budget)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return at(n, "%s: expected a list", key)
		}
		out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			if v.Type().Elem() == modelType {
				out.Index(i).Set(reflect.ValueOf(DefaultModel()))
			}
			if err := decodeNode(item, out.Index(i), fmt.Sprintf("%s[%d]", key, i), budget); err != nil {
				return err
			}
		}
		v.Set(out)
		return nil
	case reflect.Map: // of names to values
		if n.Kind != yaml.MappingNode {
			return at(n, "%s: expected a mapping", key)
		}
		v.Set(reflect.MakeMap(v.Type()))
		for i := 0; i+1 < len(n.Content); i += 2 {
			name, value := n.Content[i].Value, reflect.New(v.Type().Elem()).Elem()
			full := key + "." + name
			if n.Content[i].Kind != yaml.ScalarNode || name == "" {
				return at(n.Content[i], "%s: expected names", key)
			}
			if v.MapIndex(reflect.ValueOf(name)).IsValid() {
				return at(n.Content[i], "key %q is given twice", full)
			}
			if err := decodeNode(n.Content[i+1], value, full, budget); err != nil {
				return err
			}
			v.SetMapIndex(reflect.ValueOf(name), value)
		}
		return nil
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return at(n, "%s: expected text", key)
		}
		v.SetString(n.Value)
		return nil
	case reflect.Int:
		var i int
		if n.Kind != yaml.ScalarNode || n.Decode(&i) != nil {
			return at(n, "%s: expected a whole number, not %q", key, n.Value)
		}
		v.SetInt(int64(i))
		return nil
	case reflect.Float64:
		var f float64
		if n.Kind != yaml.ScalarNode || n.Decode(&f) != nil {
			return at(n, "%s: expected a number, not %q", key, n.Value)
		}
		v.SetFloat(f)
		return nil
	}
	return at(n, "%s: cannot be set from a file", key)
}

func decodeStruct(n *yaml.Node, v reflect.Value, key string, budget *int) error {
	if n.Kind != yaml.MappingNode {
		if key == "" {
			return at(n, "expected a mapping of settings")
		}
		return at(n, "%s: expected a mapping", key)
	}
	fields := map[string]int{}
	var known []string
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "-" {
			fields[name] = i
			known = append(known, name)
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		full := name
		if key != "" {
			full = key + "." + name
		}
		index, ok := fields[name]
		if !ok {
			return at(n.Content[i], "unknown key %q%s", full, nearest(name, known))
		}
		if seen[name] {
			return at(n.Content[i], "key %q is given twice", full)
		}
		seen[name] = true
		if err := decodeNode(n.Content[i+1], v.Field(index), full, budget); err != nil {
			return err
		}
	}
	for _, alone := range []string{"backend", "replicas"} {
		if v.Type() == modelType && seen["backends"] && seen[alone] {
			return at(n, "%s.backends: has a section for each backend, so %s.%s must not be given beside it", key, key, alone)
		}
	}
	return nil
}

// plain turns a node into maps, lists and scalars for JSON.
func plain(n *yaml.Node, key string, budget *int) (any, error) {
	if *budget--; *budget < 0 {
		return nil, at(n, "the file has more than %d values", maxNodes)
	}
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if _, twice := out[name]; twice {
				return nil, at(n.Content[i], "key %q is given twice", key+"."+name)
			}
			value, err := plain(n.Content[i+1], key+"."+name, budget)
			if err != nil {
				return nil, err
			}
			out[name] = value
		}
		return out, nil
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			value, err := plain(item, fmt.Sprintf("%s[%d]", key, i), budget)
			if err != nil {
				return nil, err
			}
			out[i] = value
		}
		return out, nil
	case yaml.ScalarNode:
		var value any
		if err := n.Decode(&value); err != nil {
			return nil, at(n, "%s: %v", key, err)
		}
		if _, isTime := value.(time.Time); isTime {
			return n.Value, nil
		}
		return value, nil
	}
	return nil, at(n, "%s: YAML aliases are not supported", key)
}

// nearest gives ", did you mean …" for the known key with the smallest edit distance, and else lists all.
func nearest(name string, known []string) string {
	sort.Strings(known)
	best, distance := "", 4
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ": known keys are " + strings.Join(known, ", ")
}

func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// resolve makes paths absolute or relative to the working directory, from paths relative to the file. Those of models become absolute: only such ones are known as paths when users are told why one is not served.
func (c *Config) resolve(dir string) error {
	for _, p := range []*string{&c.DataDir, &c.Files.Dir, &c.Auth.KeysFile, &c.Store.URLFile, &c.TLS.CertFile, &c.TLS.KeyFile} {
		*p = relativeTo(dir, *p)
	}
	if s := c.Files.S3; s != nil {
		s.KeyFile, s.CAFile = relativeTo(dir, s.KeyFile), relativeTo(dir, s.CAFile)
	}
	for i := range c.Models {
		m := &c.Models[i]
		if local := relativeTo(dir, m.Path); !strings.HasPrefix(m.Path, "hf://") {
			// A name such as Qwen/Qwen3-0.6B also looks like a relative path: a directory beside the file wins, else it is looked up in the Hugging Face cache.
			if info, err := os.Stat(local); filepath.IsAbs(m.Path) || strings.HasPrefix(m.Path, ".") || err == nil && info.IsDir() {
				if m.Path = local; !filepath.IsAbs(local) {
					if whole, err := filepath.Abs(local); err == nil {
						m.Path = whole
					}
				}
			}
		}
		if err := m.splitBackends(dir); err != nil {
			return fmt.Errorf("models[%d].%w", i, err)
		}
	}
	return nil
}

func relativeTo(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
