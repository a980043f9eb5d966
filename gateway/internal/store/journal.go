package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The form of a segment file: the magic, then entries of a header and a payload, back to back. An entry's header is, little-endian, its own magic (4 bytes), the
// CRC-32C of segment number, offset, length and payload (4), and the payload's length (8). Number and offset are under the checksum so that an entry found in the wrong
// place does not pass.
const (
	segmentMagic  = "tinsmith journal"
	entryMagic    = uint32(0x31454a54) // "TJE1"
	entryHeader   = 16
	segmentSuffix = ".seg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// journal appends payloads to segment files, each collection to segments of its own: they become needless at different times. Only the writer goroutine appends; read may be called
// by anyone.
type journal struct {
	dir      string
	limit    int64 // bytes after which the next segment begins
	disk     Disk
	syncFile func(*os.File) error // the disk's; tests cut the power around it

	number int64               // the highest of all segments
	open   map[string]*segment // by collection
	dirty  []*segment          // of them, in the order in which they became so
}

// segment is a file that is appended to.
type segment struct {
	number int64
	file   *os.File
	size   int64
	dirty  bool
}

// openJournal prepares a folder of segments. It never appends to a segment of an earlier process: what a crash left at its end stays unreferenced.
func openJournal(dir string, limit int64, disk Disk) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's folder: %w", err)
	}
	j := &journal{dir: dir, limit: limit, open: map[string]*segment{}, disk: disk, syncFile: disk.SyncFile}
	numbers, err := j.segments()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		j.number = max(j.number, n)
	}
	return j, nil
}

func (j *journal) path(segment int64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%010d%s", segment, segmentSuffix))
}

// segments lists the numbers of the files that exist.
func (j *journal) segments() ([]int64, error) {
	return numberedFiles(j.dir, segmentSuffix)
}

// append writes a payload; it is durable after the next sync.
func (j *journal) append(collection string, payload []byte) (Ref, error) {
	s := j.open[collection]
	if s == nil || s.size > int64(len(segmentMagic)) && s.size+entryHeader+int64(len(payload)) > j.limit {
		var err error
		if s, err = j.rotate(collection); err != nil {
			return Ref{}, err
		}
	}
	ref := Ref{Segment: s.number, Offset: s.size, Length: int64(len(payload))}
	var header [entryHeader]byte
	putEntryHeader(header[:], ref, payload)
	if _, err := s.file.WriteAt(header[:], s.size); err != nil {
		return Ref{}, fmt.Errorf("append to journal segment %d: %w", s.number, err)
	}
	if _, err := s.file.WriteAt(payload, s.size+entryHeader); err != nil {
		return Ref{}, fmt.Errorf("append to journal segment %d: %w", s.number, err)
	}
	s.size += entryHeader + int64(len(payload))
	j.soil(s)
	return ref, nil
}

// putEntryHeader writes the header of an entry.
func putEntryHeader(header []byte, ref Ref, payload []byte) {
	binary.LittleEndian.PutUint32(header[0:], entryMagic)
	binary.LittleEndian.PutUint32(header[4:], entrySum(ref, payload))
	binary.LittleEndian.PutUint64(header[8:], uint64(len(payload)))
}

// sync makes everything appended durable, in the order in which it came.
func (j *journal) sync() error {
	for len(j.dirty) > 0 {
		if err := j.syncSegment(j.dirty[0]); err != nil {
			return err
		}
	}
	return nil
}

// soil notes that a segment has to be synced.
func (j *journal) soil(s *segment) {
	if !s.dirty {
		s.dirty, j.dirty = true, append(j.dirty, s)
	}
}

func (j *journal) syncSegment(s *segment) error {
	if !s.dirty {
		return nil
	}
	if err := j.syncFile(s.file); err != nil {
		return fmt.Errorf("sync journal segment %d: %w", s.number, err)
	}
	s.dirty = false
	j.dirty = slices.DeleteFunc(j.dirty, func(other *segment) bool { return other == s })
	return nil
}

// rotate begins the next segment of a collection.
func (j *journal) rotate(collection string) (*segment, error) {
	if err := j.closeSegment(collection); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(j.path(j.number+1), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin journal segment: %w", err)
	}
	j.number++ // the name is taken, also if what follows fails
	if _, err := f.WriteString(segmentMagic); err != nil {
		return nil, errors.Join(fmt.Errorf("begin journal segment: %w", err), f.Close())
	}
	if err := j.disk.SyncFolder(j.dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s := &segment{number: j.number, file: f, size: int64(len(segmentMagic))}
	j.open[collection] = s
	j.soil(s)
	return s, nil
}

func (j *journal) closeSegment(collection string) error {
	s := j.open[collection]
	if s == nil {
		return nil
	}
	delete(j.open, collection)
	return errors.Join(j.syncSegment(s), s.file.Close())
}

func (j *journal) close() error {
	var err error
	for collection := range j.open {
		err = errors.Join(err, j.closeSegment(collection))
	}
	return err
}

func (j *journal) folder() string { return j.dir }

// abandon lets go of the open segments without a sync: after a failed one nobody knows which of their bytes are on the disk, and a second sync would not tell. What
// was synced before stays; whatever is appended next begins a segment.
func (j *journal) abandon() {
	for _, s := range j.open {
		_ = s.file.Close()
	}
	clear(j.open)
	clear(j.dirty)
	j.dirty = j.dirty[:0]
}

// remove deletes the closed segments that keep does not name.
func (j *journal) remove(keep map[int64]bool) error {
	numbers, err := j.segments()
	if err != nil {
		return err
	}
	open := map[int64]bool{}
	for _, s := range j.open {
		open[s.number] = true
	}
	for _, n := range numbers {
		if keep[n] || open[n] {
			continue
		}
		if err := os.Remove(j.path(n)); err != nil {
			return fmt.Errorf("remove journal segment %d: %w", n, err)
		}
	}
	return nil
}

// read gives a payload after checking everything about it.
func (j *journal) read(ref Ref) ([]byte, error) {
	f, err := os.Open(j.path(ref.Segment))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: segment %d: the file is missing", ErrCorrupt, ref.Segment)
	}
	if err != nil {
		return nil, fmt.Errorf("read journal segment %d: %w", ref.Segment, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read journal segment %d: %w", ref.Segment, err)
	}
	return readEntry(f, info.Size(), ref)
}

// readEntry reads and verifies one entry of a segment of the given size.
func readEntry(r io.ReaderAt, size int64, ref Ref) ([]byte, error) {
	damaged := damagedEntry(ref)
	if ref.Offset < int64(len(segmentMagic)) || ref.Length < 0 || ref.Offset > size-entryHeader || ref.Length > size-entryHeader-ref.Offset {
		return nil, damaged("the segment has only " + strconv.FormatInt(size, 10) + " bytes")
	}
	var magic [len(segmentMagic)]byte
	if _, err := r.ReadAt(magic[:], 0); err != nil || string(magic[:]) != segmentMagic {
		return nil, damaged("the file is not a journal segment")
	}
	buf := make([]byte, entryHeader+ref.Length)
	if _, err := r.ReadAt(buf, ref.Offset); err != nil {
		return nil, damaged(err.Error())
	}
	return checkEntry(buf, ref)
}

// damagedEntry makes errors about an entry.
func damagedEntry(ref Ref) func(what string) error {
	return func(what string) error {
		return fmt.Errorf("%w: segment %d, offset %d, length %d: %s", ErrCorrupt, ref.Segment, ref.Offset, ref.Length, what)
	}
}

// checkEntry gives the payload of an entry whose bytes were read.
func checkEntry(entry []byte, ref Ref) ([]byte, error) {
	damaged := damagedEntry(ref)
	if int64(len(entry)) != entryHeader+ref.Length {
		return nil, damaged(fmt.Sprintf("the entry has %d bytes", len(entry)))
	}
	payload := entry[entryHeader:]
	switch {
	case binary.LittleEndian.Uint32(entry) != entryMagic:
		return nil, damaged("no entry begins there")
	case binary.LittleEndian.Uint64(entry[8:]) != uint64(ref.Length):
		return nil, damaged("the entry has another length")
	case binary.LittleEndian.Uint32(entry[4:]) != entrySum(ref, payload):
		return nil, damaged("the checksum does not fit")
	}
	return payload, nil
}

func entrySum(ref Ref, payload []byte) uint32 {
	var place [24]byte
	binary.LittleEndian.PutUint64(place[0:], uint64(ref.Segment))
	binary.LittleEndian.PutUint64(place[8:], uint64(ref.Offset))
	binary.LittleEndian.PutUint64(place[16:], uint64(ref.Length))
	return crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, payload)
}
