// Package transfer moves the files of a checkpoint directory between machines: it lists a directory, cuts its files into pieces, and puts pieces that come from outside together again, with every name, size and
// hash checked. It knows directories and bytes, and neither the transport nor what is in the files. What is written to stay on disk is here too
// (durable.go), for the contract and for backends.
package transfer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of a directory that is moved.
const (
	MaxFiles     = 256
	MaxNameBytes = 255
	MaxBytes     = 1 << 40 // of all files together
	ChunkBytes   = 1 << 20 // of one piece, at most
)

// File is one file of a directory.
type File struct {
	Name   string
	Size   int64
	SHA256 [sha256.Size]byte
}

// CheckName refuses what is not the name of a file within a directory: a path, a hidden file, a name with bytes that no checkpoint has. The same rule holds for names of directories.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > MaxNameBytes:
		return fmt.Errorf("a name of %d bytes is not allowed: 1 to %d", len(name), MaxNameBytes)
	case name[0] == '.':
		return fmt.Errorf("the name %.100q is not allowed: it begins with a dot", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '/' || r == '\\' || r == 0x7f || r == '\uFFFD' }):
		return fmt.Errorf("the name %.100q is not allowed: it has a separator, a control character or bytes that are no UTF-8", name)
	}
	return nil
}

// Check refuses a list that is more than a checkpoint can be, or has a name twice.
func Check(files []File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("%d files are too many: at most %d", len(files), MaxFiles)
	}
	names := map[string]bool{}
	left := int64(MaxBytes)
	for _, f := range files {
		if err := CheckName(f.Name); err != nil {
			return err
		}
		if names[f.Name] {
			return fmt.Errorf("the name %q is there twice", f.Name)
		}
		names[f.Name] = true
		if f.Size < 0 || f.Size > left {
			return fmt.Errorf("%s: a size of %d bytes is not allowed: the files have at most %d together", f.Name, f.Size, int64(MaxBytes))
		}
		left -= f.Size
	}
	return nil
}

// List gives the files of a directory in the order of their names, with their hashes. Folders, hidden files and what is no regular file are left out: no checkpoint has any. A link is followed within the directory only.
func List(dir string) ([]File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		if CheckName(e.Name()) != nil {
			continue
		}
		if info, err := root.Stat(e.Name()); err != nil || !info.Mode().IsRegular() { // before it is opened: opening a pipe would wait
			continue
		}
		if len(files) == MaxFiles {
			return nil, fmt.Errorf("more than %d files", MaxFiles)
		}
		f, err := hashed(root, e.Name())
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, Check(files)
}

func hashed(root *os.Root, name string) (File, error) {
	in, err := root.Open(name)
	if err != nil {
		return File{}, err
	}
	defer in.Close()
	h := sha256.New()
	n, err := io.Copy(h, in)
	if err != nil {
		return File{}, err
	}
	f := File{Name: name, Size: n}
	h.Sum(f.SHA256[:0])
	return f, nil
}

// Stat gives one regular file with its hash.
func Stat(path string) (File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is not a regular file", path)
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return File{}, err
	}
	defer root.Close()
	return hashed(root, filepath.Base(path))
}

// ErrChanged says that a file is no longer what it was when it was listed.
var ErrChanged = errors.New("the file has changed since it was listed")

// Send gives the pieces of the files with these indices, in the order of the indices, to send, which must not keep them.
func Send(dir string, files []File, wanted []int, send func(file int, data []byte) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	buffer := make([]byte, ChunkBytes)
	for _, i := range wanted {
		if err := sendFile(root, files[i], buffer, func(data []byte) error { return send(i, data) }); err != nil {
			return fmt.Errorf("%s: %w", files[i].Name, err)
		}
	}
	return nil
}

func sendFile(root *os.Root, f File, buffer []byte, send func([]byte) error) error {
	in, err := root.Open(f.Name)
	if err != nil {
		return err
	}
	defer in.Close()
	for left := f.Size; left > 0; {
		n, err := io.ReadFull(in, buffer[:min(left, int64(len(buffer)))])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrChanged
		}
		if err != nil {
			return err
		}
		if err := send(buffer[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// All are the indices of all files.
func All(files []File) []int {
	all := make([]int, len(files))
	for i := range all {
		all[i] = i
	}
	return all
}

// CheckWanted refuses indices that are not of the list, or not ascending.
func CheckWanted(files []File, wanted []int) error {
	for i, w := range wanted {
		if w < 0 || w >= len(files) || i > 0 && w <= wanted[i-1] {
			return fmt.Errorf("the wanted files %.100v are not ascending indices of %d files", wanted, len(files))
		}
	}
	return nil
}
