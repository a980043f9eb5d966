package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// ConfigChecker is a Backend that can tell, before anything is loaded, whether Load would take a configuration. The error is KindInvalid and names the key.
type ConfigChecker interface {
	CheckConfig(section json.RawMessage) error
}

// checkArgument is the only argument of a plugin program that is asked to check a configuration: it reads the section from standard input, answers with a checkAnswer on standard output and ends with status 0.
// Programs that do not know it, as those of earlier versions, end with another status, and the configuration is checked when they load.
const checkArgument = "check-config"

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
	cmd := exec.CommandContext(ctx, program, checkArgument)
	cmd.Env, cmd.Stdin = environment, bytes.NewReader(section)
	var out bytes.Buffer
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("check the section: %w", ctx.Err())
	case errors.As(err, &ended):
		return ErrUnchecked
	case err != nil:
		return fmt.Errorf("check the section: %w", err)
	}
	var answer checkAnswer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return ErrUnchecked
	}
	if answer.Message != "" {
		return &Error{Kind: KindInvalid, Field: answer.Field, Message: answer.Message}
	}
	return nil
}

// checks tells whether this process was started to check a configuration.
func checks() bool { return len(os.Args) == 2 && os.Args[1] == checkArgument }
