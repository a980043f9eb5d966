package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
)

// Bounds of a pattern: EVA names every module of a model by its full name.
const (
	maxPatterns     = 4096
	maxPatternBytes = 300
)

// pattern is PEFT's rank_pattern or alpha_pattern: a value for the modules that a key matches, in the order of the file, where the first one counts. A key is a regular expression for the end of a module's name, from a dot on.
type pattern []patternEntry

type patternEntry struct {
	key     string
	matches *regexp.Regexp // a name; of a plain key, what stands behind some dot of it, or all
	plain   bool
	value   float64
}

// plainKey is a key without anything that depends on where the name begins, as those that name modules, or the modules of all experts: it is compared with the ends of a name, in a tenth of the time.
var plainKey = regexp.MustCompile(`^(?:[A-Za-z0-9_.]|\[0-9\]\+)+$`)

// cost is about how many half microseconds it takes to compare a name with all keys.
func (p pattern) cost() int {
	n := 0
	for _, e := range p {
		if n++; !e.plain {
			n += 32 + 4*len(e.key)
		}
	}
	return n
}

// parsePattern reads an option that is a pattern. Nothing, null and {} are an empty one.
func parsePattern(option string, raw json.RawMessage, allowed func(float64) bool, range_ string) (pattern, error) {
	refuse := func(format string, args ...any) (pattern, error) {
		return nil, plugins.Invalidf("path", "%s: %s%s", plugins.AdapterConfigFile, option, fmt.Sprintf(format, args...))
	}
	if text := bytes.TrimSpace(raw); len(text) == 0 || bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	in := json.NewDecoder(bytes.NewReader(raw))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return refuse(" %.100s is not allowed: an object", raw)
	}
	var p pattern
	for in.More() {
		if len(p) == maxPatterns {
			return refuse(" has more than %d entries", maxPatterns)
		}
		token, err := in.Token()
		key, _ := token.(string)
		if err != nil || key == "" || len(key) > maxPatternBytes {
			return refuse(": key %.100q is not allowed: 1 to %d bytes", key, maxPatternBytes)
		}
		var value float64
		if err := in.Decode(&value); err != nil || !allowed(value) {
			return refuse("[%.100q] is not allowed: a number, %s", key, range_)
		}
		// What Python's regular expressions have and Go's have not is refused when it is compiled, but for these two, which mean something else.
		text, plain := `^(.*\.)?(`+key+`)$`, plainKey.MatchString(key)
		if plain {
			text = `^` + key + `$`
		}
		matches, err := regexp.Compile(text)
		if err != nil || strings.Contains(key, "{,") || strings.Contains(key, "[[") {
			return refuse("[%.100q] is not a regular expression that is supported", key)
		}
		if slices.ContainsFunc(p, func(e patternEntry) bool { return e.key == key }) {
			return refuse("[%.100q] is there twice", key)
		}
		p = append(p, patternEntry{key, matches, plain, value})
	}
	return p, nil
}

// of is the value of the module of that full name ("model.layers.0.self_attn.q_proj"), or of the name that it has in a model with other parts; otherwise where no key matches.
func (p pattern) of(module string, otherwise float64) float64 {
	for _, e := range p {
		if e.is(module) || e.is(lora.Nested(module)) {
			return e.value
		}
	}
	return otherwise
}

// is tells whether the key matches a name.
func (e patternEntry) is(name string) bool {
	for {
		if e.matches.MatchString(name) {
			return true
		}
		_, rest, more := strings.Cut(name, ".")
		if !e.plain || !more {
			return false
		}
		name = rest
	}
}
