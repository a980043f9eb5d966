package cmd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// maxLine bounds what one turn may say: a pasted document, not a file by mistake.
const maxLine = 4 << 20

// prompter reads what is said next: [io.EOF] at the end, and when ctrl-C or ctrl-D is typed.
type prompter interface {
	line(ctx context.Context) (string, error)
}

// piped reads the lines of a pipe or a file.
type piped struct{ in *bufio.Scanner }

func newPiped(in io.Reader) piped {
	p := piped{bufio.NewScanner(in)}
	p.in.Buffer(nil, maxLine)
	return p
}

func (p piped) line(context.Context) (string, error) {
	if !p.in.Scan() {
		if p.in.Err() != nil {
			return "", p.in.Err()
		}
		return "", io.EOF
	}
	return p.in.Text(), nil
}

// typed reads what a person types, with editing and the lines before. The terminal is raw only while a line is read, so that ctrl-C is a signal at any other time.
type typed struct {
	in, out *os.File
	editor  *term.Terminal
}

func newTyped(in, out *os.File) *typed {
	t := &typed{in: in, out: out}
	t.editor = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, out}, "> ")
	return t
}

func (t *typed) line(ctx context.Context) (string, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt) // sent by somebody else: the key is no signal here
	defer stop()
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(int(t.in.Fd()), before) }()
	if width, height, err := term.GetSize(int(t.out.Fd())); err == nil && width > 0 {
		_ = t.editor.SetSize(width, height)
	}
	t.editor.SetBracketedPasteMode(true)
	defer t.editor.SetBracketedPasteMode(false)
	type read struct {
		text string
		err  error
	}
	got := make(chan read, 1)
	go func() { // it ends with the line, or with the program
		text, err := t.read()
		got <- read{text, err}
	}()
	select {
	case r := <-got:
		return r.text, r.err
	case <-ctx.Done():
		return "", io.EOF
	}
}

// read gives one line, or all lines of what was pasted together.
func (t *typed) read() (string, error) {
	var pasted strings.Builder
	for {
		text, err := t.editor.ReadLine()
		if !errors.Is(err, term.ErrPasteIndicator) {
			return pasted.String() + text, err
		}
		if pasted.WriteString(text + "\n"); pasted.Len() > maxLine {
			return "", errors.New("what was pasted is too long")
		}
	}
}

// shown writes texts of a server's, which may be anybody's, without what would control a terminal. Every write has to be whole characters.
type shown struct{ io.Writer }

func (s shown) Write(p []byte) (int, error) {
	_, err := io.WriteString(s.Writer, printable(string(p)))
	return len(p), err
}

// printable leaves out what would control a terminal, or turn the direction of what stands around it: a model may say anything.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return -1
		}
		return r
	}, text)
}
