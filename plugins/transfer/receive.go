package transfer

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
)

// Receiver puts files together from pieces that come from outside. It is used by one goroutine.
type Receiver struct {
	dir    string
	files  []File
	wanted []int // what is still to come, the present one first

	out  *os.File // of wanted[0]; nil before its first piece
	left int64    // of it
	sum  hash.Hash
}

// NewReceiver makes a receiver of the files with these indices into a directory that exists. The list and the indices have been checked with Check and CheckWanted.
func NewReceiver(dir string, files []File, wanted []int) *Receiver {
	return &Receiver{dir: dir, files: files, wanted: wanted, sum: sha256.New()}
}

// Write takes the next piece. Pieces come in the order of the indices, none is empty, and none is of a file that has none left. Whoever gets an error removes the directory.
func (r *Receiver) Write(file int, data []byte) error {
	if err := r.empty(); err != nil {
		return err
	}
	if len(r.wanted) == 0 {
		return errors.New("a piece came after the last file's end")
	}
	if file != r.wanted[0] {
		return fmt.Errorf("a piece of file %d came where one of file %d was expected", file, r.wanted[0])
	}
	if r.out == nil {
		if err := r.open(); err != nil {
			return err
		}
	}
	if len(data) == 0 || len(data) > ChunkBytes || int64(len(data)) > r.left {
		return fmt.Errorf("%s: a piece of %d bytes is not allowed: 1 to %d, and %d are left", r.files[file].Name, len(data), ChunkBytes, r.left)
	}
	if _, err := r.out.Write(data); err != nil {
		return err
	}
	_, _ = r.sum.Write(data) // a hash takes everything
	if r.left -= int64(len(data)); r.left > 0 {
		return nil
	}
	return r.finish()
}

// empty makes the files that are next and have no bytes.
func (r *Receiver) empty() error {
	for r.out == nil && len(r.wanted) > 0 && r.files[r.wanted[0]].Size == 0 {
		if err := r.open(); err != nil {
			return err
		}
		if err := r.finish(); err != nil {
			return err
		}
	}
	return nil
}

// open makes the present file, which must not be there.
func (r *Receiver) open() (err error) {
	f := r.files[r.wanted[0]]
	r.out, err = os.OpenFile(filepath.Join(r.dir, f.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	r.left = f.Size
	r.sum.Reset()
	return err
}

// finish checks and syncs the present file.
func (r *Receiver) finish() error {
	f := r.files[r.wanted[0]]
	if sum := r.sum.Sum(nil); !bytes.Equal(sum, f.SHA256[:]) {
		return fmt.Errorf("%s has SHA-256 %x and not %x, as was said", f.Name, sum, f.SHA256)
	}
	if err := r.out.Sync(); err != nil {
		return err
	}
	err := r.out.Close()
	r.out, r.wanted = nil, r.wanted[1:]
	return err
}

// Finished tells that all pieces are there; an error says that some are missing.
func (r *Receiver) Finished() error {
	if err := r.empty(); err != nil {
		return err
	}
	if len(r.wanted) > 0 {
		return fmt.Errorf("%s is not whole: %d files are missing", r.files[r.wanted[0]].Name, len(r.wanted))
	}
	return nil
}

// Close lets go of a file that is not whole. It is called in any case, and may be called again.
func (r *Receiver) Close() error {
	if r.out == nil {
		return nil
	}
	err := r.out.Close()
	r.out = nil
	return err
}
