package supervisor

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestOutput(t *testing.T) {
	var logged strings.Builder
	o := &output{log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))}
	for _, piece := range []string{"plain ", "text\n", `{"time":"2026-01-01T00:00:00Z","level":"WARN","msg":"careful","layer":3}` + "\n", "{broken\n", "\n", strings.Repeat("x", 3*tailBytes), "end"} {
		if n, err := o.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	want := "level=INFO msg=\"plugin output\" line=\"plain text\"\nlevel=WARN msg=careful layer=3\nlevel=INFO msg=\"plugin output\" line={broken\n"
	if logged.String() != want {
		t.Errorf("logged:\n%s\nwant:\n%s", logged.String(), want)
	}
	if reason := o.reason(); reason != "" {
		t.Errorf("the reason of an end is %q and none was given", reason)
	}
	if tail := o.last(); len(tail) != tailBytes || !strings.HasSuffix(tail, "xend") {
		t.Errorf("the tail has %d bytes", len(tail))
	}
}

// The reason that a process gives for its end is found in what it writes.
func TestReasonInOutput(t *testing.T) {
	exit := func(reason string) string {
		var b strings.Builder
		slog.New(slog.NewJSONHandler(&b, nil)).Error(plugins.ExitMessage, "error", errors.New(reason))
		return b.String()
	}
	for name, c := range map[string]struct{ written, want string }{
		"nothing":           {"", ""},
		"an end":            {exit("rank 1 is lost"), "rank 1 is lost"},
		"an end with stack": {exit("rank 1 has panicked: no\n\ngoroutine 7"), "rank 1 has panicked: no"},
		"a panic":           {"panic: out of range\n\ngoroutine 7 [running]:\nmain.main()\n", "panic: out of range"},
		"of the runtime":    {"fatal error: concurrent map writes\n", "fatal error: concurrent map writes"},
		"two":               {exit("first") + "panic: second\n", "first"},
		"another error":     {strings.Replace(exit("something"), plugins.ExitMessage, "closing", 1), ""},
		"a long one":        {exit(strings.Repeat("x", 2*reasonBytes)), strings.Repeat("x", reasonBytes)},
	} {
		t.Run(name, func(t *testing.T) {
			o := &output{log: slog.New(slog.DiscardHandler)}
			if _, err := o.Write([]byte(c.written)); err != nil {
				t.Fatal(err)
			}
			if got := o.reason(); got != c.want {
				t.Errorf("reason %q, want %q", got, c.want)
			}
		})
	}
}
