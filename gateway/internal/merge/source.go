// Package merge puts a PEFT LoRA adapter into its base model: W + scale · B·A, tensor by tensor, so that what it takes of memory is bounded by a few rows of one matrix and by the adapter of one
// module. The result is a Hugging Face model directory. It knows safetensors files and PEFT's names, and no server, no architecture and no device: what a module is follows from the names of tensors. The
// adapter, the index and the headers are checked before anything is written.
package merge

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// File is a file of a model directory.
type File struct {
	Name string
	Size int64
}

// Source gives the files of a base model.
type Source interface {
	// Files lists them.
	Files(ctx context.Context) ([]File, error)
	// Open reads length bytes of a file from offset on. Fewer are an error of the reader.
	Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)
}

// Directory is a model directory on this machine.
type Directory string

// Files implements Source: the regular files, links followed.
func (d Directory) Files(context.Context) ([]File, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(string(d), e.Name()))
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			files = append(files, File{e.Name(), info.Size()})
		}
	}
	return files, nil
}

// Open implements Source.
func (d Directory) Open(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("%.200q is not the name of a file in the model's directory", name)
	}
	f, err := os.Open(filepath.Join(string(d), name))
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, nil
}

// read gives a whole file of at most limit bytes.
func read(ctx context.Context, s Source, f File, limit int64) ([]byte, error) {
	if f.Size > limit {
		return nil, fmt.Errorf("%s: has %d bytes, more than %d", f.Name, f.Size, limit)
	}
	return readPart(ctx, s, f.Name, 0, f.Size)
}

func readPart(ctx context.Context, s Source, name string, offset, length int64) ([]byte, error) {
	r, err := s.Open(ctx, name, offset, length)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}
