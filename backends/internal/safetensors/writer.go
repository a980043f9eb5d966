package safetensors

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"math"
	"sort"
)

// Source is a tensor to be written. Write is called once, in the order of the file, and must write exactly the tensor's bytes, so nothing need be in memory at once.
type Source struct {
	Name  string
	DType string
	Shape []int
	Write func(io.Writer) error
}

// Float32Source is a tensor of float32 values in Go memory, which are read when it is written.
func Float32Source(name string, shape []int, values func() ([]float32, error)) Source {
	return Source{Name: name, DType: "F32", Shape: shape, Write: func(w io.Writer) error {
		v, err := values()
		if err != nil {
			return err
		}
		return WriteFloat32s(w, v)
	}}
}

// WriteFloat32s writes values as a file has them, little-endian.
func WriteFloat32s(w io.Writer, values []float32) error {
	var buf [16 << 10]byte
	for len(values) > 0 {
		n := min(len(values), len(buf)/4)
		for i, v := range values[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
		}
		if _, err := w.Write(buf[:4*n]); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}

// Write writes a file of tensors sorted by name (after the size of their type, larger first, so that all data is aligned), and gives the file's size and SHA-256. The same content gives the same bytes.
func Write(w io.Writer, metadata map[string]string, tensors []Source) (size int64, sum [sha256.Size]byte, err error) {
	sorted := append([]Source(nil), tensors...)
	sort.Slice(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		if x, y := dtypeSizes[a.DType], dtypeSizes[b.DType]; x != y {
			return x > y
		}
		return a.Name < b.Name
	})
	head, sizes, err := encodeHeader(metadata, sorted)
	if err != nil {
		return 0, sum, err
	}
	c := &counter{w: bufio.NewWriterSize(w, 1<<20), sum: sha256.New()}
	if _, err := c.Write(head); err != nil {
		return 0, sum, err
	}
	for i, t := range sorted {
		before := c.n
		if err := t.Write(c); err != nil {
			return 0, sum, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if got := uint64(c.n - before); got != sizes[i] {
			return 0, sum, fmt.Errorf("tensor %q: %d bytes written, %s of shape %v is %d", t.Name, got, t.DType, t.Shape, sizes[i])
		}
	}
	if err := c.w.Flush(); err != nil {
		return 0, sum, err
	}
	return c.n, [sha256.Size]byte(c.sum.Sum(nil)), nil
}

func encodeHeader(metadata map[string]string, sorted []Source) (head []byte, sizes []uint64, err error) {
	var b bytes.Buffer
	b.WriteByte('{')
	member := func(name string, value any) error {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		text, err := json.Marshal(value) // keys of maps come sorted
		if err != nil {
			return err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(text)
		return nil
	}
	if metadata != nil {
		if err := member("__metadata__", metadata); err != nil {
			return nil, nil, err
		}
	}
	var offset uint64
	for i, t := range sorted {
		if t.Name == "__metadata__" || (i > 0 && t.Name == sorted[i-1].Name) {
			return nil, nil, fmt.Errorf("tensor name %q is taken", t.Name)
		}
		shape := make([]int64, len(t.Shape))
		for j, s := range t.Shape {
			shape[j] = int64(s)
		}
		size, err := byteSize(t.DType, shape)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		sizes = append(sizes, size)
		if err := member(t.Name, entry{DType: t.DType, Shape: shape, Offsets: []uint64{offset, offset + size}}); err != nil {
			return nil, nil, err
		}
		offset += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes is larger than %d", b.Len(), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(b.Len())), b.Bytes()...), sizes, nil
}

// counter passes on what is written, counts it and sums it.
type counter struct {
	w   *bufio.Writer
	sum hash.Hash
	n   int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.sum.Write(p[:n])
	c.n += int64(n)
	return n, err
}
