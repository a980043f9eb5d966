package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// goldenCase is one text with what Hugging Face tokenizers 0.23.2 makes of it,
// special tokens added. testdata/goldens has four tokenizers trained for these
// tests with 3,500 cases each; for more cases of the same tokenizers run
// testdata/differential.py OUT SEED 1 COUNT -- FILE.
type goldenCase struct {
	Text        string  `json:"text"`
	IDs         []int32 `json:"ids"`
	Decoded     string  `json:"decoded"`
	DecodedSkip string  `json:"decoded_skip_special"`
}

func readGzip(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func goldenTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Parse(readGzip(t, filepath.Join("testdata", "goldens", name+".tokenizer.json.gz")))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func goldenCases(t testing.TB, path string) []goldenCase {
	t.Helper()
	var cases []goldenCase
	if err := json.Unmarshal(readGzip(t, path), &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("%s has no cases", path)
	}
	return cases
}

// checkCase compares encoding, decoding and streaming with a case and reports
// whether all agree.
func checkCase(t *testing.T, tok *Tokenizer, c goldenCase) bool {
	t.Helper()
	ids, err := tok.Encode(c.Text, true)
	if err != nil {
		t.Errorf("Encode(%q): %v", c.Text, err)
		return false
	}
	if !slices.Equal(ids, c.IDs) {
		t.Errorf("Encode(%q)\n got %v\nwant %v", c.Text, ids, c.IDs)
		return false
	}
	for _, skip := range []bool{false, true} {
		want := c.Decoded
		if skip {
			want = c.DecodedSkip
		}
		if got := tok.Decode(ids, skip); got != want {
			t.Errorf("Decode(%v, %v) of %q\n got %q\nwant %q", ids, skip, c.Text, got, want)
			return false
		}
	}
	return true
}

func TestGoldens(t *testing.T) {
	for _, name := range []string{"qwen", "llama3", "spm", "unigram"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tok := goldenTokenizer(t, name)
			wrong := 0
			for _, c := range goldenCases(t, filepath.Join("testdata", "goldens", name+".cases.json.gz")) {
				if !checkCase(t, tok, c) {
					if wrong++; wrong == 5 {
						t.Fatal("more cases may differ")
					}
				}
			}
		})
	}
}
