package jinja_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// golden is one line of a golden file: variables for the lines after it, or a template with what Python's jinja2 made of it.
type golden struct {
	Vars     *string
	Template string
	Out      *string
	Raised   *string
	Err      string
	Message  string
}

// TestGoldens compares with jinja2 on the random snippets of testdata. JINJA_GOLDENS names further files, fresh from the scripts there.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files: %v, %v", files, err)
	}
	files = append(files, filepath.SplitList(os.Getenv("JINJA_GOLDENS"))...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			compared := 0
			eachGolden(t, file, func(vars *jinja.Dict, g golden) {
				compared++
				compareGolden(t, vars, g)
			})
			if compared < 10 {
				t.Errorf("%d goldens compared", compared)
			}
		})
	}
}

func eachGolden(t *testing.T, file string, use func(vars *jinja.Dict, g golden)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if lines, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 16<<20)
	var vars *jinja.Dict
	for scanner.Scan() {
		var g golden
		if err := json.Unmarshal(scanner.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if g.Vars != nil {
			v, err := jinja.FromJSON([]byte(*g.Vars))
			if err != nil {
				t.Fatal(err)
			}
			vars = v.(*jinja.Dict)
			continue
		}
		use(vars, g)
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
}

func compareGolden(t *testing.T, vars *jinja.Dict, g golden) {
	t.Helper()
	var got string
	template, err := jinja.Parse("golden", g.Template)
	if err == nil {
		got, err = template.Render(t.Context(), vars, jinja.Options{Clock: goldenClock})
	}
	var raised *jinja.RaisedError
	var failed *jinja.Error
	switch {
	case g.Out != nil:
		if err != nil {
			t.Errorf("template %s\nfailed: %v\nwant %q", g.Template, err, *g.Out)
		} else if got != *g.Out {
			t.Errorf("template %s\ngot  %q\nwant %q", g.Template, got, *g.Out)
		}
	case g.Raised != nil:
		if !errors.As(err, &raised) || raised.Message != *g.Raised {
			t.Errorf("template %s\ngot  %q, %v\nwant raise_exception(%q)", g.Template, got, err, *g.Raised)
		}
	case !errors.As(err, &failed):
		t.Errorf("template %s\ngot  %q, %v\nwant %s: %s", g.Template, got, err, g.Err, g.Message)
	case failed.Class != g.Err:
		t.Errorf("CLASS template %s\ngot  %v\nwant %s: %s", g.Template, err, g.Err, g.Message)
	}
}
