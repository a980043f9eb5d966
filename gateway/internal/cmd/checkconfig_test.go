package cmd

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

// A misspelled name would have no limits: check-config says so where it can know.
func TestLimitsOfUnknownNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Add(file, "ann"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file string
		limits     map[string]config.Limit
		want       string
	}{
		{"known", file, map[string]config.Limit{"ann": {}}, ""},
		{"misspelled", file, map[string]config.Limit{"ann": {}, "anm": {}}, "limits.keys.anm"},
		{"no keys file", "", map[string]config.Limit{"anm": {}}, ""},
	} {
		faults := unknownNames("x.yaml", config.Config{Auth: config.Auth{KeysFile: c.file}, Limits: config.Limits{Keys: c.limits}})
		if (c.want == "") != (len(faults) == 0) || len(faults) > 0 && !strings.Contains(faults[0].Error(), c.want) {
			t.Errorf("%s: %v", c.name, faults)
		}
	}
}
