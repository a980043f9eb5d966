package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A file of the commit log is its header and then groups. The header is 4-byte magic, 4-byte checksum over the file's number and what follows, and the 8-byte number of the file's first group.
// A group is a header of 4-byte magic, 4-byte checksum over everything else and the place, 8-byte length of the content, 8-byte number of the group, and the content. All integers are
// little-endian. Behind the last group are zeros as long as a group's header, or the end of the file; then there may be anything: what the file held in an earlier life has a lower number under its
// checksums. So a group that was not written whole is seen, and nothing else can be taken for one.
const (
	logMagic      = "TSL3"
	logHeader     = 16
	groupMagic    = "TSG1"
	groupHeader   = 24
	logFileSuffix = ".log"

	// Files of format 2 had this magic alone for a header, and nothing behind their last group.
	oldLogMagic = "TSL1"
	// Files of formats 3 to 5 had no zeros behind their last group.
	unendedLogMagic = "TSL2"

	spareSuffix = ".spare"
	maxSpares   = 2        // one file is written while another goes to the database
	maxSpare    = 64 << 20 // bytes of a file that is kept
)

// commitLog is where groups of batches become durable before anything else knows of them: one append and one sync per group. Groups are numbered without gaps. A file is begun with every
// set of changes that goes to the database. When the database has it, it is used again under the next number: to write over what is there takes the file system half the time of making a
// file longer, since nothing but the bytes has to become durable. Only one goroutine uses a log at a time.
type commitLog struct {
	dir      string
	disk     Disk
	syncFile func(*os.File) error // the disk's; tests cut the power around it
	remove   func(string) error   // takes away a file that the database has; tests note what the database holds then
	spares   []string             // files to be used again

	last    int64    // number of the last durable group
	number  int64    // the highest of all files, spare ones too
	file    *os.File // the open file, nil before the first group goes there
	size    int64    // bytes of the open file that are durable
	older   []logFile
	damaged []logFile // files with something behind their last durable group, after a failure
	tails   []Finding // what opening found behind the last group of a file that is not how a group ends
}

// logFile is a file that is not appended to any more.
type logFile struct {
	number int64
	last   int64 // number of the last group in it
	size   int64 // up to which it holds what was acknowledged
}

// openCommitLog gives every group after the one numbered applied to yield, in order. What a crash left of a last group that nobody was told of is passed over; ErrCorrupt if anything else is missing:
// then the log ends with the last group that yield was given, and begin must not be called. Nothing is changed or removed.
func openCommitLog(dir string, applied int64, disk Disk, yield func(content []byte) error) (*commitLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the commit log: %w", err)
	}
	l := &commitLog{dir: dir, last: applied, disk: disk, syncFile: disk.SyncFile}
	l.remove = l.spare
	numbers, err := numberedFiles(dir, logFileSuffix)
	if err != nil {
		return nil, err
	}
	if err := l.findSpares(); err != nil {
		return nil, err
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		l.number = max(l.number, n)
	}
	for i, n := range numbers {
		content, err := os.ReadFile(l.path(n))
		if err != nil {
			return l, fmt.Errorf("read the commit log: %w", err)
		}
		first, begin := readLogHeader(n, content)
		if first > l.last+1 {
			return l, fmt.Errorf("%w: file %s begins with group %d, before it the commit log ends with group %d", ErrCorrupt, l.name(n), first, l.last)
		}
		groups, end := readGroups(n, content, begin)
		for _, g := range groups {
			if g.number <= l.last {
				continue
			}
			if g.number != l.last+1 {
				return l, fmt.Errorf("%w: file %s has group %d behind group %d", ErrCorrupt, l.name(n), g.number, l.last)
			}
			if err := yield(g.content); err != nil {
				return l, fmt.Errorf("file %s, group %d: %w", l.name(n), g.number, err)
			}
			l.last = g.number
		}
		// A file of the old format that was followed by another one ended with a durable group. In the new one the next file's header tells.
		cutOff := bytes.HasPrefix(content, []byte(oldLogMagic)) && i < len(numbers)-1
		if end < len(content) && (cutOff || laterGroup(n, content, end)) {
			return l, fmt.Errorf("%w: file %s at byte %d of %d", ErrCorrupt, l.name(n), end, len(content))
		}
		if what := torn(content, begin, end); what != "" {
			l.tails = append(l.tails, Finding{Where: filepath.Join(filepath.Base(dir), l.name(n)), What: what})
		}
		l.older = append(l.older, logFile{number: n, last: l.last})
	}
	return l, nil
}

func (l *commitLog) path(number int64) string { return filepath.Join(l.dir, l.name(number)) }

func (l *commitLog) name(number int64) string { return fmt.Sprintf("%010d%s", number, logFileSuffix) }

// torn says what is wrong with the place behind the last group of a file: "" if a group ended there. Before format 6 there could be anything.
func torn(content []byte, begin, end int) string {
	if !bytes.HasPrefix(content, []byte(logMagic)) {
		if len(content) == 0 || string(content[:min(len(content), len(oldLogMagic))]) == oldLogMagic || bytes.HasPrefix(content, []byte(unendedLogMagic)) {
			return ""
		}
		return "the file has no header of the commit log: it was begun and nothing was written to it, or it is damaged"
	}
	if begin > 0 && zero(content[end:min(len(content), end+groupHeader)]) {
		return ""
	}
	return fmt.Sprintf("a group from byte %d of %d on is not whole: it was being written when the server or the machine ended, before anybody was told of it, or it is damaged", end, len(content))
}

// numberedFiles lists the numbers of the files of a folder that have a suffix.
func numberedFiles(dir, suffix string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var numbers []int64
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(base, 10, 64); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// group is one entry of a file.
type group struct {
	number  int64
	content []byte
}

// readLogHeader gives the number of a file's first group, 0 if it is not known, and where that begins; 0 for a file that was not begun.
func readLogHeader(file int64, b []byte) (first int64, begin int) {
	if bytes.HasPrefix(b, []byte(oldLogMagic)) {
		return 0, len(oldLogMagic)
	}
	if len(b) < logHeader {
		return 0, 0
	}
	h := newLogHeader(file, int64(binary.LittleEndian.Uint64(b[8:])))
	if bytes.HasPrefix(b, []byte(unendedLogMagic)) {
		copy(h[:], unendedLogMagic) // it is not under the checksum
	}
	if [logHeader]byte(b) != h {
		return 0, 0
	}
	return int64(binary.LittleEndian.Uint64(b[8:])), logHeader
}

func newLogHeader(file, first int64) (h [logHeader]byte) {
	copy(h[:], logMagic)
	binary.LittleEndian.PutUint64(h[8:], uint64(first))
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(file))
	binary.LittleEndian.PutUint32(h[4:], crc32.Update(crc32.Checksum(number[:], castagnoli), castagnoli, h[8:]))
	return h
}

// readGroups gives the whole groups of a file from the place where the first begins, and where they end; a file that was not begun has none.
func readGroups(file int64, b []byte, begin int) (groups []group, end int) {
	if begin == 0 {
		return nil, 0
	}
	for end = begin; ; {
		g, ok := groupAt(file, b, end)
		if !ok {
			return groups, end
		}
		groups = append(groups, g)
		end += groupHeader + len(g.content)
	}
}

// groupAt reads the group that begins at a place, if a whole one does.
func groupAt(file int64, b []byte, at int) (group, bool) {
	if len(b)-at < groupHeader || string(b[at:at+4]) != groupMagic {
		return group{}, false
	}
	length := binary.LittleEndian.Uint64(b[at+8:])
	if length > uint64(len(b)-at-groupHeader) {
		return group{}, false
	}
	whole := b[at : at+groupHeader+int(length)]
	if groupSum(file, int64(at), whole) != binary.LittleEndian.Uint32(whole[4:]) {
		return group{}, false
	}
	return group{number: int64(binary.LittleEndian.Uint64(whole[16:])), content: whole[groupHeader:]}, true
}

// laterGroup tells whether a whole group lies anywhere behind a place: then what is broken there was durable once.
func laterGroup(file int64, b []byte, from int) bool {
	for at := from; ; at++ {
		next := bytes.Index(b[at:], []byte(groupMagic))
		if next < 0 {
			return false
		}
		at += next
		if _, ok := groupAt(file, b, at); ok {
			return true
		}
	}
}

// groupSum is over the place and everything of a group but its magic and the sum itself. The place goes where the magic and the sum are, and they are put back: room of its own would be an allocation
// for every group.
func groupSum(file, at int64, whole []byte) uint32 {
	before := [8]byte(whole)
	binary.LittleEndian.PutUint64(whole, uint64(file))
	sum := crc32.Update(0, castagnoli, whole[:8])
	binary.LittleEndian.PutUint64(whole, uint64(at))
	sum = crc32.Update(sum, castagnoli, whole[:8])
	copy(whole, before[:])
	return crc32.Update(sum, castagnoli, whole[8:])
}

// append makes a group durable. whole begins with groupHeader bytes of room for the header; the content is behind them.
func (l *commitLog) append(whole []byte) error {
	if l.file == nil {
		if err := l.begin(); err != nil {
			return err
		}
	}
	copy(whole, groupMagic)
	binary.LittleEndian.PutUint64(whole[8:], uint64(len(whole)-groupHeader))
	binary.LittleEndian.PutUint64(whole[16:], uint64(l.last+1))
	binary.LittleEndian.PutUint32(whole[4:], groupSum(l.number, l.size, whole))
	ended := append(whole, make([]byte, groupHeader)...) // the zeros behind it go where the next one will be
	if _, err := l.file.WriteAt(ended, l.size); err != nil {
		return fmt.Errorf("append to the commit log: %w", err)
	}
	if err := l.syncFile(l.file); err != nil {
		return fmt.Errorf("sync the commit log: %w", err)
	}
	l.size += int64(len(whole))
	l.last++
	return nil
}

// begin opens the next file. Its name is durable before anything in it is: under the name that a spare file had, its old groups would be behind a header that is not theirs.
func (l *commitLog) begin() error {
	l.number++ // the name is taken, also if what follows fails
	path := l.path(l.number)
	flags := os.O_CREATE | os.O_EXCL | os.O_WRONLY
	if n := len(l.spares); n > 0 {
		spare := l.spares[n-1]
		l.spares = l.spares[:n-1]
		if err := os.Rename(spare, path); err != nil {
			return fmt.Errorf("begin a file of the commit log: %w", err)
		}
		flags = os.O_WRONLY
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return fmt.Errorf("begin a file of the commit log: %w", err)
	}
	l.file, l.size = f, 0
	if err := l.disk.SyncFolder(l.dir); err != nil {
		return err
	}
	header := newLogHeader(l.number, l.last+1)
	if _, err := f.WriteAt(header[:], 0); err != nil {
		return fmt.Errorf("begin a file of the commit log: %w", err)
	}
	l.size = logHeader
	return nil
}

// spare keeps a file to be used again, or removes it if there are enough of them.
func (l *commitLog) spare(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if len(l.spares) >= maxSpares || info.Size() > maxSpare {
		return os.Remove(path)
	}
	spare := strings.TrimSuffix(path, logFileSuffix) + spareSuffix
	if err := os.Rename(path, spare); err != nil {
		return err
	}
	l.spares = append(l.spares, spare)
	return nil
}

// findSpares takes over the spare files of an earlier process.
func (l *commitLog) findSpares() error {
	numbers, err := numberedFiles(l.dir, spareSuffix)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		l.number = max(l.number, n) // what it holds must stay of another file
		l.spares = append(l.spares, strings.TrimSuffix(l.path(n), logFileSuffix)+spareSuffix)
	}
	return nil
}

// limitSpares removes the spare files that are too many.
func (l *commitLog) limitSpares() error {
	for len(l.spares) > maxSpares {
		if err := os.Remove(l.spares[len(l.spares)-1]); err != nil {
			return fmt.Errorf("remove a spare file of the commit log: %w", err)
		}
		l.spares = l.spares[:len(l.spares)-1]
	}
	return nil
}

// rotate ends the open file: what comes next begins another one.
func (l *commitLog) rotate() error {
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	l.older = append(l.older, logFile{l.number, l.last, l.size})
	return f.Close()
}

// applied takes away the files that the database has up to a group.
func (l *commitLog) applied(last int64) error {
	for len(l.older) > 0 && l.older[0].last <= last {
		if err := l.remove(l.path(l.older[0].number)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a file of the commit log: %w", err)
		}
		l.older = l.older[1:]
	}
	return nil
}

// abandon lets go of the open file after a failure: nobody knows what of the last group is on the disk. repair has to come before the next append.
func (l *commitLog) abandon() {
	if l.file == nil {
		return
	}
	_ = l.file.Close()
	l.file = nil
	file := logFile{l.number, l.last, l.size}
	l.older, l.damaged = append(l.older, file), append(l.damaged, file)
}

// repair cuts off what failed groups left, so that what was refused does not come to light.
func (l *commitLog) repair() error {
	for len(l.damaged) > 0 {
		d := l.damaged[0]
		f, err := os.OpenFile(l.path(d.number), os.O_WRONLY, 0)
		if errors.Is(err, os.ErrNotExist) {
			l.damaged = l.damaged[1:]
			continue
		}
		if err == nil {
			err = f.Truncate(d.size)
			if err == nil {
				err = f.Sync()
			}
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("repair the commit log: %w", err)
		}
		l.damaged = l.damaged[1:]
	}
	return nil
}

// opened implements groupLog.
func (l *commitLog) opened(inDatabase int64) error {
	return errors.Join(l.applied(inDatabase), l.limitSpares())
}

func (l *commitLog) newest() int64  { return l.last }
func (l *commitLog) folder() string { return l.dir }

func (l *commitLog) close() error {
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}
