package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// A dump is the rows of a database in a form that belongs to no engine: a line that says so, and then frames of 4-byte length, 4-byte checksum over the frame's number and its content, and the content. A
// frame's content is rows one behind the other; the last frame has the manifest instead, which says how many rows there are and which segments of the journal belong to them. Integers of frames are
// little-endian, the rest is package pack's.
const (
	dumpLine     = "tinsmith backup 1\n"
	dumpFrame    = 1 << 20 // bytes after which a frame ends
	longestFrame = 1 << 30 // a row is never cut

	dumpedRecord   = 1
	dumpedBlock    = 2
	dumpedManifest = 3
)

// manifest is the end of a dump.
type manifest struct {
	rows     int64
	segments map[int64]int64 // their sizes by number; -1 for one that was missing already
}

// dumpWriter writes a dump; the first error stays.
type dumpWriter struct {
	w     *bufio.Writer
	frame pack.Encoder
	n     uint64 // frames written
	rows  int64
	err   error
}

func newDumpWriter(w io.Writer) *dumpWriter {
	d := &dumpWriter{w: bufio.NewWriterSize(w, 256<<10)}
	_, d.err = d.w.WriteString(dumpLine)
	return d
}

func (d *dumpWriter) row(r tableRow) error {
	kind := uint64(dumpedRecord)
	if _, ok := r.(*blockRow); ok {
		kind = dumpedBlock
	}
	d.frame.Uint(kind)
	for _, v := range r.columns() {
		switch v := v.(type) {
		case *string:
			d.frame.Text(*v)
		case *int64:
			d.frame.Int(*v)
		case *[]byte:
			d.frame.Bytes(*v)
		case *sum:
			d.frame.Bool(v.known)
			d.frame.Int(v.value)
		}
	}
	d.rows++
	if len(d.frame.B) >= dumpFrame {
		d.flush()
	}
	return d.err
}

// flush ends a frame.
func (d *dumpWriter) flush() {
	if len(d.frame.B) == 0 || d.err != nil {
		return
	}
	var header [8]byte
	binary.LittleEndian.PutUint32(header[0:], uint32(len(d.frame.B)))
	binary.LittleEndian.PutUint32(header[4:], frameSum(d.n, d.frame.B))
	_, err := d.w.Write(header[:])
	if err == nil {
		_, err = d.w.Write(d.frame.B)
	}
	d.err = err
	d.n++
	d.frame.B = d.frame.B[:0]
}

// end writes the manifest.
func (d *dumpWriter) end(segments map[int64]int64) error {
	d.flush()
	d.frame.Uint(dumpedManifest)
	d.frame.Int(d.rows)
	d.frame.Uint(uint64(len(segments)))
	for n, size := range segments {
		d.frame.Int(n)
		d.frame.Int(size)
	}
	d.flush()
	if d.err == nil {
		d.err = d.w.Flush()
	}
	return d.err
}

func frameSum(n uint64, content []byte) uint32 {
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], n)
	return crc32.Update(crc32.Checksum(number[:], castagnoli), castagnoli, content)
}

// readDump yields the rows of a dump, each valid for good, and gives its manifest. ErrCorrupt if it is not whole; then what was yielded is worth nothing.
func readDump(from io.Reader, yield func(tableRow) error) (manifest, error) {
	damaged := func(n uint64, what string) error {
		return fmt.Errorf("%w: frame %d of the backup: %s", ErrCorrupt, n, what)
	}
	r := bufio.NewReaderSize(from, 256<<10)
	line := make([]byte, len(dumpLine))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != dumpLine {
		return manifest{}, fmt.Errorf("%w: the file is not a backup of this form", ErrCorrupt)
	}
	rows := int64(0)
	for n := uint64(0); ; n++ {
		var header [8]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return manifest{}, cutOff(err, damaged(n, "the file ends before it"))
		}
		length := binary.LittleEndian.Uint32(header[0:])
		if length == 0 || length > longestFrame {
			return manifest{}, damaged(n, "it has no length that can be")
		}
		content, err := io.ReadAll(io.LimitReader(r, int64(length))) // no more memory than there are bytes
		if err != nil {
			return manifest{}, err
		}
		if len(content) < int(length) || frameSum(n, content) != binary.LittleEndian.Uint32(header[4:]) {
			return manifest{}, damaged(n, "the checksum does not fit")
		}
		d := pack.NewDecoder(content)
		for d.More() {
			var row tableRow
			switch d.Uint() {
			case dumpedRecord:
				row = &recordRow{}
			case dumpedBlock:
				row = &blockRow{}
			case dumpedManifest:
				m := manifest{rows: d.Int(), segments: map[int64]int64{}}
				for range d.Count() {
					number := d.Int()
					m.segments[number] = d.Int()
				}
				if d.End() != nil || m.rows != rows {
					return manifest{}, damaged(n, fmt.Sprintf("it speaks of %d rows, and %d came before", m.rows, rows))
				}
				if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
					return manifest{}, cutOff(err, damaged(n, "something follows the last one"))
				}
				return m, nil
			default:
				return manifest{}, damaged(n, "it has something else than rows")
			}
			for _, v := range row.columns() {
				switch v := v.(type) {
				case *string:
					*v = d.Text()
				case *int64:
					*v = d.Int()
				case *[]byte:
					*v = d.Bytes()
				case *sum:
					v.known = d.Bool()
					v.value = d.Int()
				}
			}
			if d.Err() != nil {
				return manifest{}, damaged(n, "a row cannot be decoded")
			}
			rows++
			if err := yield(row); err != nil {
				return manifest{}, err
			}
		}
	}
}

// cutOff is damaged where a file ends too early, else the error of reading it.
func cutOff(err, damaged error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged
	}
	return err
}
