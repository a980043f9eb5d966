package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// differentialCase is a goldenCase; without a text only decoding is compared.
type differentialCase struct {
	Text        *string `json:"text"`
	IDs         []int32 `json:"ids"`
	Decoded     string  `json:"decoded"`
	DecodedSkip string  `json:"decoded_skip_special"`
}

// TestDifferential compares with what testdata/differential.py wrote: the small
// set of odd configurations in testdata/odd, and any number of further ones in
// the directory that TOKENIZER_CASES names.
func TestDifferential(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "odd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if extra := os.Getenv("TOKENIZER_CASES"); extra != "" {
		more, err := filepath.Glob(filepath.Join(extra, "*"))
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, more...)
	}
	if len(dirs) == 0 {
		t.Fatal("testdata/odd is empty")
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
			if os.IsNotExist(err) {
				data, err = readGzip(t, filepath.Join(dir, "tokenizer.json.gz")), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			var cases []differentialCase
			if err := json.Unmarshal(readGzip(t, filepath.Join(dir, "cases.json.gz")), &cases); err != nil {
				t.Fatal(err)
			}
			wrong := 0
			for _, c := range cases {
				if !differentialCaseAgrees(t, tok, c) {
					if wrong++; wrong == 3 {
						t.Fatal("more cases may differ")
					}
				}
			}
		})
	}
}

func differentialCaseAgrees(t *testing.T, tok *Tokenizer, c differentialCase) bool {
	if c.Text != nil {
		ids, err := tok.Encode(*c.Text, true)
		if err != nil {
			t.Errorf("Encode(%q): %v", *c.Text, err)
			return false
		}
		if !slices.Equal(ids, c.IDs) {
			t.Errorf("Encode(%q)\n got %v\nwant %v", *c.Text, ids, c.IDs)
			return false
		}
	}
	for skip, want := range map[bool]string{false: c.Decoded, true: c.DecodedSkip} {
		if got := tok.Decode(c.IDs, skip); got != want {
			t.Errorf("Decode(%v, %v)\n got %q\nwant %q", c.IDs, skip, got, want)
			return false
		}
	}
	return true
}
