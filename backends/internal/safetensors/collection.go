package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	// maxIndex bounds the index file.
	maxIndex = 64 << 20
	// maxFiles bounds the shards of a model.
	maxFiles = 4096
)

// Collection is all tensors of a model directory: one model.safetensors, or the shards that model.safetensors.index.json names.
type Collection struct {
	tensors map[string]Tensor
	files   []*File
}

// OpenModel opens the tensor files of a model directory. With an index every tensor is taken from the shard that the index names and must be there; others are not seen. Links are followed (the Hugging Face cache is made of
// them), but the index can name only files that lie in the directory itself.
func OpenModel(dir string) (*Collection, error) {
	c := &Collection{tensors: map[string]Tensor{}}
	raw, err := readBounded(filepath.Join(dir, indexFile), maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		if err := c.add(filepath.Join(dir, singleFile), nil); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s has neither %s nor %s", dir, singleFile, indexFile)
			}
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	shards, err := parseIndex(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	names := make([]string, 0, len(shards))
	for n := range shards {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := c.add(filepath.Join(dir, n), shards[n]); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, nil
}

// parseIndex gives the tensors of each shard.
func parseIndex(raw []byte) (map[string]map[string]bool, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, err
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("weight_map is empty")
	}
	shards := map[string]map[string]bool{}
	for tensor, file := range index.WeightMap {
		if !strings.HasSuffix(file, ".safetensors") || strings.ContainsAny(file, "/\\\x00") || strings.HasPrefix(file, ".") {
			return nil, fmt.Errorf("weight_map[%.200q] is %.200q: it must be the plain name of a .safetensors file in the same directory", tensor, file)
		}
		if shards[file] == nil {
			if len(shards) == maxFiles {
				return nil, fmt.Errorf("more than %d files", maxFiles)
			}
			shards[file] = map[string]bool{}
		}
		shards[file][tensor] = true
	}
	return shards, nil
}

// add opens one file; want, when not nil, is what is taken from it.
func (c *Collection) add(path string, want map[string]bool) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	for name := range want {
		if _, ok := f.tensors[name]; !ok {
			return fmt.Errorf("%s has no tensor %.200q, which the index places there", path, name)
		}
	}
	for name, t := range f.tensors {
		if want == nil || want[name] {
			c.tensors[name] = t
		}
	}
	return nil
}

// Close closes all files.
func (c *Collection) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.tensors = nil, nil
	return errors.Join(errs...)
}

// Tensor finds a tensor.
func (c *Collection) Tensor(name string) (Tensor, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Names lists all tensors, sorted.
func (c *Collection) Names() []string { return sortedNames(c.tensors) }
