package schema

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// TestHostile compiles schemas that hurt naive engines: each is taken or refused as a sound server does. What it takes is logged, since no test asserts a time.
func TestHostile(t *testing.T) {
	lines(t, corpus(t, "hostile-schemas")+"/hostile.jsonl", func(line []byte) {
		var c struct {
			ID, Want, Why string
			Schema        json.RawMessage
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if only := os.Getenv("ONLY"); only != "" && only != c.ID {
			return
		}
		text := []byte(c.Schema)
		var inner string
		if json.Unmarshal(text, &inner) == nil {
			text = []byte(inner)
		}
		for _, strict := range []bool{true, false} {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := processTime()
			compiled, err := Compile(context.Background(), text, Options{Strict: strict})
			took := processTime() - start
			runtime.ReadMemStats(&after)
			first := time.Duration(0)
			if err == nil {
				start = processTime()
				_, _ = grammar.Matches(compiled.Grammar, `{"a":1}`)
				first = processTime() - start
			}
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			if took > 50*time.Millisecond || allocated > 32 || first > 50*time.Millisecond {
				t.Logf("%s strict %v: %v, match %v, %d MiB allocated", c.ID, strict, took, first, allocated)
			}
			switch {
			case c.Want == "refuse" && err == nil && strict:
				t.Errorf("%s is taken: %s", c.ID, c.Why)
			case c.Want == "refuse" && err == nil:
				t.Logf("%s is taken without strict: %s %v", c.ID, c.Why, compiled.Relaxed)
			case c.Want == "ok" && err != nil:
				t.Errorf("%s is refused: %v", c.ID, err)
			case err != nil && strict:
				t.Logf("%s: %v", c.ID, err)
			}
		}
	})
}
