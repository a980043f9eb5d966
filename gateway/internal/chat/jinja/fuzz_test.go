package jinja_test

import (
	"errors"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// seeds are templates of the golden file, one of every few.
func seeds(f *testing.F, add func(source string)) *jinja.Dict {
	f.Helper()
	var vars *jinja.Dict
	t := &testing.T{}
	n := 0
	eachGolden(t, "testdata/expressions.jsonl.gz", func(v *jinja.Dict, g golden) {
		vars = v
		if n++; n%5 == 0 {
			add(g.Template)
		}
	})
	if vars == nil {
		f.Fatal("no seeds")
	}
	return vars
}

// FuzzParse: any source parses or gives an Error with a line of the source.
func FuzzParse(f *testing.F) {
	seeds(f, func(source string) { f.Add(source) })
	f.Fuzz(func(t *testing.T, source string) {
		if _, err := jinja.Parse("fuzz", source); err != nil {
			checkError(t, err)
		}
	})
}

// FuzzRender: any template that parses renders within its limits or gives an Error, and does the same the second time.
func FuzzRender(f *testing.F) {
	vars := seeds(f, func(source string) { f.Add(source) })
	options := jinja.Options{Clock: goldenClock, Limits: jinja.Limits{Steps: 1_000_000, Bytes: 4 << 20}}
	f.Fuzz(func(t *testing.T, source string) {
		template, err := jinja.Parse("fuzz", source)
		if err != nil {
			return
		}
		first, err := template.Render(t.Context(), vars, options)
		if err != nil {
			checkError(t, err)
		}
		if len(first) > options.Limits.Bytes {
			t.Errorf("%d bytes of output", len(first))
		}
		if second, _ := template.Render(t.Context(), vars, options); first != second {
			t.Errorf("got %q, then %q", first, second)
		}
	})
}

func checkError(t *testing.T, err error) {
	t.Helper()
	var failed *jinja.Error
	var raised *jinja.RaisedError
	switch {
	case errors.As(err, &failed) && failed.Line > 0 && failed.Class != "" && failed.Template == "fuzz":
	case errors.As(err, &raised) && raised.Line > 0:
	default:
		t.Errorf("got %#v", err)
	}
}
