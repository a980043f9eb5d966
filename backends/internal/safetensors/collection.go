package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins/modelfile"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	// maxIndex bounds the index file.
	maxIndex = 64 << 20
	// maxFiles bounds the shards of a model.
	maxFiles = 4096
)

// Collection is all tensors of a model directory: model.safetensors, or else the shards that model.safetensors.index.json names.
type Collection struct {
	tensors map[string]Tensor
	from    map[string]string // the file of each tensor, where there are several files
	files   []*File
	// Unused names the index of a directory whose model.safetensors holds the whole model; "" elsewhere.
	Unused string
}

// OpenModel opens the tensor files of a model directory as transformers 5 does: model.safetensors, whatever index lies beside it; else every tensor of all shards that the index names, wherever among them it says that they are.
// A tensor that the index names must be in one of them, and one that several hold must be the same in all (transformers would take the last). Links are followed (the Hugging Face cache is made of
// them), but the index can name only files that lie in the directory itself.
func OpenModel(dir string) (*Collection, error) {
	c := &Collection{tensors: map[string]Tensor{}, from: map[string]string{}}
	err := c.add(dir, singleFile)
	if err == nil {
		if _, err := os.Stat(filepath.Join(dir, indexFile)); err == nil {
			c.Unused = indexFile
		}
		return c, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	raw, err := ReadBounded(filepath.Join(dir, indexFile), maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noWeights(dir)
	}
	if err != nil {
		return nil, err
	}
	index, err := parseIndex(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	for _, file := range index.files {
		err := c.add(dir, file)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s names %s, which is not in %s: download the missing file again, or the index if it is of another version", indexFile, file, dir)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index.place)) {
		if _, ok := c.tensors[name]; !ok {
			err := fmt.Errorf("%s has no tensor %.200q, nor has another shard, but %s places it there: one of the files is of another version; download them again",
				index.place[name], name, indexFile)
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// ModelTensors tells, before any of them is opened, whether all files of a model's weights are there; where they are not, which tensors the index names, nil if there is none.
func ModelTensors(dir string) (names map[string]bool, there bool, err error) {
	exists := func(file string) bool {
		_, err := os.Stat(filepath.Join(dir, file))
		return !errors.Is(err, fs.ErrNotExist) // what else is wrong is found out when it is opened
	}
	if exists(singleFile) {
		return nil, true, nil
	}
	raw, err := ReadBounded(filepath.Join(dir, indexFile), maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	index, err := parseIndex(raw)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", indexFile, err)
	}
	if there = !slices.ContainsFunc(index.files, func(file string) bool { return !exists(file) }); there {
		return nil, true, nil
	}
	names = make(map[string]bool, len(index.place))
	for name := range index.place {
		names[name] = true
	}
	return names, false, nil
}

// otherWeights are files that hold weights in forms that are not read, and how to make those of them that are.
var otherWeights = []struct{ pattern, way string }{
	{"pytorch_model*.bin*", "load it once with transformers and write it with save_pretrained"},
	{"consolidated*", "convert it with transformers' script for the model"},
	{"*.gguf", "take the model's original directory: quantized files are not served"},
	{"tf_model.h5", "load it once with transformers 4 and write it with save_pretrained"},
	{"flax_model.msgpack", "load it once with transformers 4 and write it with save_pretrained"},
	{"model-*.safetensors", "download " + indexFile + ", which names the shards"},
	{"*.safetensors", "the file is expected as " + singleFile},
}

// noWeights says that a directory has no weights, and what it has in their place.
func noWeights(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, singleFile)); err == nil {
		return fmt.Errorf("%s in %s is a link to a file that is not there: download it again", singleFile, dir)
	}
	text := fmt.Sprintf("%s has neither %s nor %s", dir, singleFile, indexFile)
	for _, o := range otherWeights {
		if found, err := filepath.Glob(filepath.Join(globbed(dir), o.pattern)); err == nil && len(found) > 0 {
			return fmt.Errorf("%s; it has %s: %s", text, filepath.Base(found[0]), o.way)
		}
	}
	return errors.New(text)
}

// globbed has a directory mean itself in a pattern.
func globbed(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// ReadBounded reads a whole regular file of at most limit bytes.
func ReadBounded(path string, limit int64) ([]byte, error) {
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

// index is what a model.safetensors.index.json says.
type index struct {
	files []string          // sorted
	place map[string]string // the file that holds each tensor
}

func parseIndex(raw []byte) (index, error) {
	if err := modelfile.Placeholder(raw); err != nil {
		return index{}, err
	}
	var in struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return index{}, err
	}
	if len(in.WeightMap) == 0 {
		return index{}, errors.New("weight_map is empty")
	}
	files := map[string]bool{}
	for tensor, file := range in.WeightMap {
		if !strings.HasSuffix(file, ".safetensors") || strings.ContainsAny(file, "/\\\x00") || strings.HasPrefix(file, ".") {
			return index{}, fmt.Errorf("weight_map[%.200q] is %.200q: it must be the plain name of a .safetensors file in the same directory", tensor, file)
		}
		if files[file] = true; len(files) > maxFiles {
			return index{}, fmt.Errorf("more than %d files", maxFiles)
		}
	}
	return index{slices.Sorted(maps.Keys(files)), in.WeightMap}, nil
}

// add opens one file.
func (c *Collection) add(dir, name string) error {
	f, err := Open(filepath.Join(dir, name))
	if errors.Is(err, errFormat) {
		return fmt.Errorf("%w; the file is damaged or was not downloaded as a whole: download it again", err)
	}
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	for _, n := range f.Names() {
		t := f.tensors[n]
		if other, ok := c.tensors[n]; ok && (other.DType != t.DType || !slices.Equal(other.Shape, t.Shape) || !bytes.Equal(other.Data, t.Data)) {
			return fmt.Errorf("tensor %.200q is in %s and, with other values, in %s: shards of two versions are mixed; download them again", n, c.from[n], name)
		}
		c.tensors[n], c.from[n] = t, name
	}
	return nil
}

// Close closes all files.
func (c *Collection) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.tensors, c.from = nil, nil, nil
	return errors.Join(errs...)
}

// Tensor finds a tensor.
func (c *Collection) Tensor(name string) (Tensor, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Names lists all tensors, sorted.
func (c *Collection) Names() []string { return sortedNames(c.tensors) }
