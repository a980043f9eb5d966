package engine

import (
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// routes says by which ways the homes multiply and why not by others, those with the same ones together; "" where none has any to choose. Ranks' devices at a home do as it does: one finding holds for all of a kind.
func (h *homes) routes() string {
	var texts []string
	names := map[string][]string{}
	for _, d := range h.devices {
		routed, ok := d.(tensor.Routed)
		if !ok {
			continue
		}
		text := routed.Routes()
		if names[text] == nil {
			texts = append(texts, text)
		}
		names[text] = append(names[text], d.Name())
	}
	if len(texts) == 1 && len(names[texts[0]]) == len(h.devices) {
		return texts[0]
	}
	for i, text := range texts {
		texts[i] = strings.Join(names[text], ", ") + ": " + text
	}
	return strings.Join(texts, "; ")
}
