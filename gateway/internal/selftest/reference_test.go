package selftest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const goodReference = `{"format": "tinsmith-reference-1", "source": "a program", "arithmetic": "", "tolerance": 0, "tolerance_elsewhere": 0.1,
	"sequences": [{"tokens": [5, 6, 7], "logprobs": [-1.5, -0.25]}]}`

func TestParseReference(t *testing.T) {
	change := func(old, new string) string {
		if !strings.Contains(goodReference, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(goodReference, old, new, 1)
	}
	for _, c := range []struct{ name, text, want string }{
		{"good", goodReference, ""},
		{"another format", change("reference-1", "reference-2"), `format is "tinsmith-reference-2"`},
		{"no JSON", "{", "unexpected EOF"},
		{"more behind it", goodReference + "{}", "something follows"},
		{"a key that is not known", change(`"source"`, `"sauce"`), "sauce"},
		{"a negative tolerance", change(`"tolerance": 0`, `"tolerance": -1`), "tolerance is -1"},
		{"a tolerance that allows anything", change("0.1", "1e9"), "tolerance_elsewhere is 1e+09"},
		{"no sequences", change(`{"tokens": [5, 6, 7], "logprobs": [-1.5, -0.25]}`, ""), "sequences: there are 0"},
		{"one token", change("[5, 6, 7]", "[5]"), "sequences[0]: 1 tokens and 2 logprobs"},
		{"a value too few", change("[-1.5, -0.25]", "[-1.5]"), "sequences[0]: 3 tokens and 1 logprobs"},
		{"a negative token", change("6, 7", "-6, 7"), "sequences[0].tokens[1] is -6"},
		{"a token that is too large", change("6, 7", "4294967296, 7"), "sequences[0].tokens[1] is 4294967296"},
		{"no number", change("-0.25", `"x"`), "cannot unmarshal"},
		{"a number that is no float32", change("-0.25", "1e60"), "cannot unmarshal"},
		{"too large", goodReference + strings.Repeat(" ", maxReferenceBytes), "more than"},
		{"too many tokens", change("[5, 6, 7]", "[5"+strings.Repeat(",1", maxReferenceTokens)+"]"), "logprobs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseReference([]byte(c.text))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add([]byte(goodReference))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseReference(b)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), ReferenceFile)
		if err := r.Write(path, false); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadReference(path); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("written and read again: %+v, %v; want %+v", again, err, r)
		}
	})
}

func TestWriteReference(t *testing.T) {
	r, err := parseReference([]byte(goodReference))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), ReferenceFile)
	if _, err := ReadReference(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := r.Write(path, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(path, false); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a file that is there: %v", err)
	}
	r.Source = "another"
	if err := r.Write(path, true); err != nil {
		t.Fatal(err)
	}
	again, err := ReadReference(path)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("read %+v, %v; want %+v", again, err, r)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

// The example of the page is one that is read.
func TestReferenceOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/selftest.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no example")
	}
	if r, err := parseReference([]byte(example)); err != nil || r.ToleranceElsewhere != 0.001 {
		t.Errorf("%+v, %v", r, err)
	}
}
