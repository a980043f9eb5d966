package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// note is what a process of a measurement has logged: which arithmetic and which routes a device takes, and why not others. A report has each once.
type note struct{ Level, Text string }

// noting is a slog.Handler that says everything from level Info on.
type noting struct {
	say func(note)
	of  []slog.Attr
}

func (h noting) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h noting) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		fmt.Fprintf(&b, "; %s %v", a.Key, a.Value)
		return true
	}
	for _, a := range h.of {
		add(a)
	}
	r.Attrs(add)
	h.say(note{strings.ToLower(r.Level.String()), b.String()})
	return nil
}

func (h noting) WithAttrs(of []slog.Attr) slog.Handler {
	h.of = append(slices.Clone(h.of), of...)
	return h
}

func (h noting) WithGroup(string) slog.Handler { return h }
