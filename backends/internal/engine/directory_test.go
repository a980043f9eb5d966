package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// A file that the system does not give is no damaged one: the checkpoint may be as it should.
func TestUnreadableIsNotDamaged(t *testing.T) {
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "mem"), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{"mem": "another"}
	for _, c := range []struct {
		name string
		path string
		want plugins.Kind
	}{
		{"damaged", damaged, plugins.KindInvalid},
		{"not there", t.TempDir(), plugins.KindInvalid},
		{"unreadable", "/proc/self", plugins.KindInternal}, // its first page is not mapped, which reads as an error of input and output
	} {
		t.Run(c.name, func(t *testing.T) {
			d := directory{c.path, sums}
			_, text := d.text("mem")
			_, tensors := d.tensors("mem", maxText)
			for what, err := range map[string]error{"text": text, "tensors": tensors} {
				if err == nil || plugins.KindOf(err) != c.want {
					t.Errorf("%s: %v (%v), want %v", what, err, plugins.KindOf(err), c.want)
				}
			}
		})
	}
}
