package openai

import (
	"encoding/json"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// parseDocuments reads the documents that templates quote; nil if there are none.
func parseDocuments(raw []json.RawMessage) ([]*jinja.Dict, error) {
	var out []*jinja.Dict
	for i, one := range raw {
		at := fmt.Sprintf("documents[%d]", i)
		value, err := jinja.FromJSON(one)
		if err != nil {
			return nil, inference.Invalid(at, "%v", err)
		}
		document, ok := value.(*jinja.Dict)
		if !ok {
			return nil, inference.Invalid(at, "must be an object")
		}
		out = append(out, document)
	}
	return out, nil
}
