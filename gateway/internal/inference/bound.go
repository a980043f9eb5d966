package inference

import (
	"fmt"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/plugins"
)

// Text that no model can read is refused by its length, before it is parsed, rendered and tokenized, which takes many times its memory.
const (
	tokenTextBytes = 64      // of JSON, for each token of the context: that of ordinary text has four, or, with every character escaped, 24
	LeastTextBytes = 1 << 20 // are let through always: that much takes no memory to speak of

	SmallTextBytes = 16 << 10 // need not claim memory
	TextCopies     = 8        // of a text there are, at most, while it is rendered and tokenized
)

// TextLimit is how many bytes of JSON the text of one prompt may have.
func TextLimit(info plugins.ModelInfo) int {
	return max(LeastTextBytes, info.MaxContextLength*tokenTextBytes)
}

// Bound refuses a text of so many bytes if that is more than a prompt of the model can have, and claims the memory that making tokens of it takes.
func (s *Service) Bound(c Call, m *catalog.Model, field string, size int) error {
	if size > LeastTextBytes {
		info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
		if err != nil {
			return err
		}
		if size > TextLimit(info) {
			return TooLong(field, size, info)
		}
	}
	if size <= SmallTextBytes {
		return nil
	}
	return c.Claim.Take(TextCopies * int64(size))
}

// TooLong says that a text is longer than a prompt can be.
func TooLong(field string, size int, info plugins.ModelInfo) error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: field, Code: "context_length_exceeded", Message: fmt.Sprintf(
		"%s: %d bytes are more than the %d that are looked at for this model, whose maximum context length is %d tokens", field, size, TextLimit(info), info.MaxContextLength)}
}
