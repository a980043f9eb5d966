package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
)

const (
	tailBytes = 8 << 10
	lineBytes = 64 << 10
)

// output takes what a plugin writes to standard error: it keeps the end of it and forwards each line to a logger. It may be written to from several goroutines.
type output struct {
	log *slog.Logger

	mu   sync.Mutex
	tail []byte
	line []byte
	end  string // see reason
}

// Write implements io.Writer and never fails.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, p...)
	if len(o.tail) > 2*tailBytes {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-tailBytes:]...)
	}
	o.line = append(o.line, p...)
	for {
		i := bytes.IndexByte(o.line, '\n')
		if i < 0 && len(o.line) >= lineBytes {
			i = lineBytes - 1
		}
		if i < 0 {
			return len(p), nil
		}
		o.forward(bytes.TrimRight(o.line[:i+1], "\r\n"))
		o.line = append(o.line[:0], o.line[i+1:]...)
	}
}

// last gives the last 8 KiB.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.ToValidUTF8(string(o.tail[max(0, len(o.tail)-tailBytes):]), "\uFFFD")
}

// reason is why the plugin said that it ends: plugins.Exit, or the Go runtime's line before a panic's stack. "" if it said nothing.
func (o *output) reason() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end
}

// reasonBytes bounds what is kept of it.
const reasonBytes = 1 << 10

// ends notes a reason; a process that panics while it ends has two, of which the first counts.
func (o *output) ends(reason string) {
	if first, _, _ := strings.Cut(reason, "\n"); o.end == "" {
		o.end = strings.ToValidUTF8(first[:min(len(first), reasonBytes)], "\uFFFD")
	}
}

// forward logs one line: as it was meant if it is one of slog's JSON lines, else as text.
func (o *output) forward(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	var fields map[string]any
	if line[0] != '{' || json.Unmarshal(line, &fields) != nil {
		if bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) {
			o.ends(string(line))
		}
		o.log.Info("plugin output", "line", string(line))
		return
	}
	message, _ := fields[slog.MessageKey].(string)
	levelName, _ := fields[slog.LevelKey].(string)
	var level slog.Level
	if message == "" || level.UnmarshalText([]byte(levelName)) != nil {
		o.log.Info("plugin output", "line", string(line))
		return
	}
	if reason, ok := fields["error"].(string); ok && message == plugins.ExitMessage {
		o.ends(reason)
	}
	delete(fields, slog.MessageKey)
	delete(fields, slog.LevelKey)
	delete(fields, slog.TimeKey)
	attrs := make([]slog.Attr, 0, len(fields))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		attrs = append(attrs, slog.Any(k, fields[k]))
	}
	o.log.LogAttrs(context.Background(), level, message, attrs...)
}
