package schema

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

var update = flag.Bool("update", false, "write testdata/suite_refused.txt anew")

// knownWrong are groups, by what their names end with, that a grammar has otherwise than the suite, with the reason. Everything else is right or
// refused by name.
var knownWrong = map[string]string{
	"const.json: const with object": "keys are written in the order of the schema's text",
	" format":                       "formats are enforced; by the standard they are annotations unless a dialect says otherwise",
	"optional/content.json: validation of string-encoded content based on media type": "annotations",
	"optional/content.json: validation of binary string-encoding":                     "annotations",
	"optional/content.json: validation of binary-encoded media type documents":        "annotations",
	"float-overflow.json: all integers are multiples of 0.5, if overflow is handled":  "beside a divisor numbers are written without exponent",
	"hostname.json: validation of A-label (punycode) host names":                      "no regular language decodes punycode, so such labels are not offered",
	"time.json: validation of time strings":                                           "leap seconds are not offered",
	"date-time.json: validation of date-time strings":                                 "leap seconds are not offered",
}

func knownReason(name string) string {
	for ending, reason := range knownWrong {
		if strings.HasSuffix(name, ending) {
			return reason
		}
	}
	return ""
}

// TestSuite runs the JSON Schema test suite through the grammars, under strict: what is valid can be written, what is not cannot; or the schema is
// refused by name.
func TestSuite(t *testing.T) {
	var refused []string
	groups, right := 0, 0
	for draft, version := range map[string]Draft{"draft7": Draft7, "draft2019-09": Draft2019, "draft2020-12": Draft2020} {
		root := filepath.Join("testdata/suite", draft)
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			var list []struct {
				Description string          `json:"description"`
				Schema      json.RawMessage `json:"schema"`
				Tests       []instance      `json:"tests"`
			}
			if err := json.Unmarshal(text, &list); err != nil {
				return err
			}
			for _, group := range list {
				name := strings.TrimPrefix(path, "testdata/suite/") + ": " + group.Description
				groups++
				compiled, err := compileDraft(group.Schema, version)
				if err != nil {
					var e *Error
					if !errors.As(err, &e) {
						t.Errorf("%s: %v", name, err)
					}
					refused = append(refused, fmt.Sprintf("%s: %s: %s", name, e.Pointer, e.Keyword))
					continue
				}
				ok := true
				for _, test := range group.Tests {
					if problems := compiled.Validate(test.Data); (len(problems) == 0) != test.Valid && (knownReason(name) == "" || strings.Contains(name,
						"const with object")) {
						t.Errorf("%s: %s: validator: %v", name, test.Description, problems)
					}
					for _, text := range writings(t, compiled.document, test.Data) {
						got, err := grammar.Matches(compiled.Grammar, text)
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
						if got != test.Valid {
							ok = false
							if knownReason(name) == "" {
								t.Errorf("%s: %s: valid %v, %.200s %.300s", name, test.Description, test.Valid, text, group.Schema)
							}
							break
						}
					}
				}
				if ok {
					right++
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(refused)
	t.Logf("%d groups: %d right, %d refused, %d otherwise", groups, right, len(refused), groups-right-len(refused))
	compareRefused(t, refused)
}

// compareRefused holds the table of what is refused: it may only become shorter, and each change of it is looked at.
func compareRefused(t *testing.T, refused []string) {
	t.Helper()
	const path = "testdata/suite_refused.txt"
	text := strings.Join(refused, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, line := range refused {
		if !slices.Contains(known, line) {
			t.Errorf("refused now: %s", line)
		}
	}
	for _, line := range known {
		if !slices.Contains(refused, line) {
			t.Errorf("no longer refused, so take it out with -update: %s", line)
		}
	}
}

func compileDraft(schema []byte, draft Draft) (*Compiled, error) {
	return Compile(context.Background(), schema, Options{Strict: true, Draft: draft})
}
