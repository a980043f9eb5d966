package transformers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	maxConfigBytes = 4 << 20
	maxIndexBytes  = 64 << 20
	maxFiles       = 1024
)

// examine checks that a model directory has what is read of it, config.json and weights as safetensors, and gives its identity: SHA-256 over all of them. Files of weights in other forms,
// which can run code when they are read, are not looked at.
func examine(ctx context.Context, dir string, progress func(done, total int64)) (hash string, size int64, err error) {
	raw, err := safetensors.ReadBounded(filepath.Join(dir, "config.json"), maxConfigBytes)
	if err != nil {
		return "", 0, plugins.Invalidf("model_dir", "config.json: %v", err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return "", 0, plugins.Invalidf("model_dir", "config.json is no JSON object: %v", err)
	}
	if _, ok := object["transformers_weights"]; ok {
		return "", 0, plugins.Invalidf("model_dir", "config.json names its weights by transformers_weights, which is not supported: name the file model.safetensors")
	}
	if _, err := os.Lstat(filepath.Join(dir, "adapter_config.json")); !errors.Is(err, fs.ErrNotExist) {
		return "", 0, plugins.Invalidf("model_dir", "there is an adapter_config.json, and transformers would load the adapter with the model: import it instead, with `tinsmith import`")
	}
	if err := checkIndex(filepath.Join(dir, "model.safetensors.index.json")); err != nil {
		return "", 0, plugins.Invalidf("model_dir", "model.safetensors.index.json: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(filepath.Clean(dir), "*.safetensors"))
	if err != nil || len(names) == 0 || len(names) > maxFiles {
		return "", 0, plugins.Invalidf("model_dir", "%d files of weights in safetensors are not allowed: 1 to %d", len(names), maxFiles)
	}
	slices.Sort(names)
	for _, name := range names {
		i, err := os.Stat(name)
		if err != nil || !i.Mode().IsRegular() {
			return "", 0, plugins.Invalidf("model_dir", "%s is no file that can be read: %v", filepath.Base(name), err)
		}
		size += i.Size()
	}
	h, done := sha256.New(), int64(0)
	_, _ = fmt.Fprintf(h, "transformers\n%d\n", len(raw))
	_, _ = h.Write(raw)
	buffer := make([]byte, 8<<20)
	for _, name := range names {
		if err := hashFile(ctx, h, name, buffer, func(n int64) {
			if done += n; done%(1<<30) < n {
				progress(done, size)
			}
		}); err != nil {
			return "", 0, err
		}
	}
	progress(size, size)
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// checkIndex refuses an index that names files outside of its directory. There need be none.
func checkIndex(path string) error {
	raw, err := safetensors.ReadBounded(path, maxIndexBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return err
	}
	for tensor, file := range index.Files {
		if file != filepath.Base(file) || !strings.HasSuffix(file, ".safetensors") {
			return fmt.Errorf("tensor %.200q is in %.200q, which is no safetensors file of this directory", tensor, file)
		}
	}
	return nil
}

func hashFile(ctx context.Context, h io.Writer, path string, buffer []byte, count func(n int64)) error {
	f, err := os.Open(path)
	if err != nil {
		return plugins.Invalidf("model_dir", "%v", err)
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(h, "\n%s\n", filepath.Base(path))
	for {
		if err := ctx.Err(); err != nil {
			return plugins.Cancelled(err)
		}
		n, err := f.Read(buffer)
		_, _ = h.Write(buffer[:n])
		count(int64(n))
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return plugins.Invalidf("model_dir", "%v", err)
		}
	}
}
