package hostile

import (
	"io/fs"
	"path/filepath"
	"testing"
)

// TestFilesAreTheOwners has the server and its plugin write one of everything, and looks for what other users of the machine could read.
func TestFilesAreTheOwners(t *testing.T) {
	s := start(t)
	ann := s.as("ann")
	run := ann.create(t)
	run.good(t, 1)
	for _, kind := range []string{"save_weights", "save_weights_for_sampler", "save_weights_external"} {
		run.finish(t, run.post(t, "/api/v1/"+kind, object{"model_id": run.id, "path": "mine", "seq_id": run.next()}))
	}
	run.finish(t, run.post(t, "/api/v1/save_weights_for_sampler", object{"model_id": run.id, "sampling_session_seq_id": 5, "seq_id": run.next()}))
	data := filepath.Join(s.Dir, "data")
	seen := map[string]bool{}
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 && info.Mode().Type()&fs.ModeSymlink == 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		seen[filepath.Base(path)] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tinsmith.db", "token-secret", "address", "lock", "adapter_model.safetensors"} {
		if !seen[name] {
			t.Errorf("there is no %s: the test looks in the wrong place", name)
		}
	}
}
