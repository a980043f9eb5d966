package answer

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// Format names how a model writes tool calls.
type Format string

// None is no tool calls.
const None Format = "none"

// Hermes is <tool_call>{"name": N, "arguments": {…}}</tool_call>.
const Hermes Format = "hermes"

// definition is what a format is made of.
type definition struct {
	format Format
	// signs say whether a chat template shows the format.
	signs func(template string) bool
	// openers are the texts with which calls begin.
	openers []opener
	// open reads what follows openers[i].
	open func(i int, c *calls) machine
	// noise is left out of texts.
	noise []string
	// channels says that the format has reasoning of its own: Options.Tags say only whether it is read.
	channels bool
	// newID makes an id; nil is NewID.
	newID func() string
}

// definitions in the order in which their signs are looked for: the first match wins.
var definitions = []definition{harmony, kimiK2, dsml, deepSeekV31, glm, mistral, nemotronList, qwen3XML, hermes, llama3JSON}

// Formats lists what ParseFormat takes.
func Formats() []string {
	names := []string{string(None)}
	for _, d := range definitions {
		names = append(names, string(d.format))
	}
	slices.Sort(names)
	return names
}

// ParseFormat takes the name of a format, or "none".
func ParseFormat(name string) (Format, error) {
	if name == string(None) || slices.ContainsFunc(definitions, func(d definition) bool { return string(d.format) == name }) {
		return Format(name), nil
	}
	return "", fmt.Errorf("tool format %q is unknown: %s are known", name, strings.Join(Formats(), ", "))
}

// FormatOf finds the format that a chat template tells the model to write, or "" if it shows none that is known.
func FormatOf(template string) Format {
	for _, d := range definitions {
		if d.signs(template) {
			return d.format
		}
	}
	return ""
}

// definitionOf is nil where no calls are read.
func definitionOf(f Format) *definition {
	for i := range definitions {
		if definitions[i].format == f {
			return &definitions[i]
		}
	}
	return nil
}

// HistoryID is the id of a call as a template of the format takes it: the same for the call and for its result. Mistral's demand nine letters and digits, so
// other ids are replaced by a hash.
func (f Format) HistoryID(id string) string {
	if f != Mistral || len(id) == 9 && strings.Trim(id, idAlphabet) == "" {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	text := make([]byte, 9)
	for i := range text {
		text[i] = idAlphabet[int(sum[i])%len(idAlphabet)]
	}
	return string(text)
}

const idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// NewID makes an id of a call as OpenAI's look: call_ and 24 letters and digits.
func NewID() string { return "call_" + randomText(24) }

// randomText is n letters and digits that nobody can guess.
func randomText(n int) string {
	text := make([]byte, 0, n)
	var bytes [64]byte
	for len(text) < n {
		rand.Read(bytes[:])
		for _, b := range bytes {
			if b < 4*byte(len(idAlphabet)) && len(text) < n { // the rest of the bytes would make some letters likelier
				text = append(text, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return string(text)
}
