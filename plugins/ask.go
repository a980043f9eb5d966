package plugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// A plugin program that is started with one of these as its only argument answers a question on standard input with JSON on standard output, and ends with status 0; it has nothing to do with a gateway then. Programs that do not
// know the question, as those of earlier versions, end with another status.
const (
	checkArgument = "check-config" // a section; the answer is a checkAnswer
	planArgument  = "plan-memory"  // a planQuestion; the answer is a planAnswer
)

// question is what this process was started to be asked; "" if it was started to serve.
func question() string {
	if len(os.Args) == 2 && (os.Args[1] == checkArgument || os.Args[1] == planArgument) {
		return os.Args[1]
	}
	return ""
}

// serveQuestion answers it.
func serveQuestion(b Backend, in io.Reader, out io.Writer) error {
	if question() == checkArgument {
		return serveCheck(b, in, out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return servePlan(ctx, b, in, out)
}

// errNoAnswer says that a program does not know a question, errLongAnswer that what it says is too much for an answer.
var (
	errNoAnswer   = errors.New("the plugin does not answer")
	errLongAnswer = errors.New("the plugin's answer is too long")
)

// ask has a plugin program answer a question, with an environment. The error wraps errNoAnswer if this one does not know it, errLongAnswer if the answer has more than limit bytes.
func ask(ctx context.Context, program, argument string, environment []string, question []byte, limit int) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, argument)
	cmd.Env, cmd.Stdin = environment, bytes.NewReader(question)
	out := boundedBuffer{limit: limit}
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case out.full: // of which the program may have died
		return nil, fmt.Errorf("%w: more than %d bytes", errLongAnswer, limit)
	case errors.As(err, &ended):
		return nil, errNoAnswer
	}
	return out.text.Bytes(), err
}

// boundedBuffer keeps what is written to it, and fails when that is too much.
type boundedBuffer struct {
	text  bytes.Buffer // not embedded: its ReadFrom knows no bound
	limit int
	full  bool // what was written is too much
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > b.limit {
		b.full = true
		return 0, errLongAnswer
	}
	return b.text.Write(p)
}
