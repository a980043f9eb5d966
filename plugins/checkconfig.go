package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ConfigChecker is a Backend that can tell, before anything is loaded, whether Load would take a configuration. The error is KindInvalid and names the key.
type ConfigChecker interface {
	CheckConfig(section json.RawMessage) error
}

// maxSection bounds a section and an answer about one.
const maxSection = 1 << 20

// checkAnswer says what is wrong with a configuration; nothing, if both are empty.
type checkAnswer struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// serveCheck answers a program that asks for a check, which has nothing to do with a gateway.
func serveCheck(b Backend, in io.Reader, out io.Writer) error {
	checker, ok := b.(ConfigChecker)
	if !ok {
		return errors.New("this plugin checks its configuration when it loads only")
	}
	section, err := io.ReadAll(io.LimitReader(in, maxSection))
	if err != nil {
		return fmt.Errorf("read the section: %w", err)
	}
	var answer checkAnswer
	if err := checker.CheckConfig(section); err != nil {
		answer.Message = err.Error()
		var e *Error
		if errors.As(err, &e) {
			answer = checkAnswer{e.Field, e.Message}
		}
	}
	return json.NewEncoder(out).Encode(answer)
}

// ErrUnchecked says that a plugin cannot check a configuration before it loads.
var ErrUnchecked = errors.New("the plugin checks its section only when it loads")

// CheckConfig has a plugin program check a `backend:` section, with an environment. The error is KindInvalid if the plugin would refuse it, ErrUnchecked if this one cannot tell.
func CheckConfig(ctx context.Context, program string, environment []string, section json.RawMessage) error {
	raw, err := ask(ctx, program, checkArgument, environment, section, maxSection)
	switch {
	case errors.Is(err, errNoAnswer), errors.Is(err, errLongAnswer):
		return ErrUnchecked
	case err != nil:
		return fmt.Errorf("check the section: %w", err)
	}
	var answer checkAnswer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return ErrUnchecked
	}
	if answer.Message != "" {
		return &Error{Kind: KindInvalid, Field: answer.Field, Message: answer.Message}
	}
	return nil
}
