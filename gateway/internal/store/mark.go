package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// The generation mark is a file of the data directory that says what the database and the commit log must at least have, and to which database the directory belongs. SQLite drops the end
// of a damaged write-ahead log without a word, and a database that is removed or replaced is as good as any other to it: only from outside can such a loss be seen.
//
// The file has four sectors of markSector bytes. The first two are written in turn, with a sync, whenever the database has more: before a file of the commit log is given up, because from then on only
// the database has those changes. The other two are written in turn with every group of the commit log, after its sync and before anybody is told of it, without a sync: a killed process
// leaves the newest, a power cut perhaps an older one. What is in the file may be too low, but never too high. Each sector is whole or not, by its checksum.
const (
	markName   = "generation"
	markSector = 512
	markMagic  = "TSM1" // and a checksum (4 bytes) over the rest of the sector: the length (2) and the fields
	ackMagic   = "TSA1" // and a checksum (4) over the rest: the number of the group (8) and the identity (16)
	ackSize    = 32
	markSize   = 4 * markSector
)

// identity names a store; it is new when a state was accepted or restored.
type identity [16]byte

func newIdentity() (id identity) {
	_, _ = rand.Read(id[:]) // it never fails
	return id
}

func (id identity) String() string { return hex.EncodeToString(id[:4]) + "…" }

// generation is what a mark says.
type generation struct {
	Sequence int64 // of the writing
	Identity identity
	Place    string // the database, for people
	Applied  int64  // number of the last group that the database has
	Last     int64  // number of the last group that somebody was told of
	Epoch    int64  // how often the database's own log was copied into it, see epoch.go
}

// mark is the open file.
type mark struct {
	file     *os.File
	identity identity
	syncFile func(*os.File) error // tests cut the power around it

	now generation    // of settle only
	ack [ackSize]byte // of acknowledged only

	mu    sync.Mutex
	acked int64 // the last that acknowledged wrote
}

// readMark reads the mark of a data directory. There is none (nil) where no file is. damaged says what of it cannot be read; nil and damaged if nothing can.
func readMark(dir string) (g *generation, damaged string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the generation mark: %w", err)
	}
	g, damaged = parseMark(b)
	return g, damaged, nil
}

// parseMark finds the newest of what a file holds. A sector that was never written is zero.
func parseMark(b []byte) (g *generation, damaged string) {
	if len(b) != markSize {
		damaged = fmt.Sprintf("the file has %d bytes instead of %d", len(b), markSize)
	}
	b = append(b[:len(b):len(b)], make([]byte, max(0, markSize-len(b)))...)
	for i := range 2 {
		sector := b[i*markSector:][:markSector]
		slot, ok := parseSlot(sector)
		switch {
		case ok && (g == nil || slot.Sequence > g.Sequence):
			g = slot
		case !ok && !zero(sector) && damaged == "":
			damaged = fmt.Sprintf("sector %d does not have its checksum", i)
		}
	}
	if g == nil {
		if damaged == "" {
			damaged = "nothing is written there"
		}
		return nil, damaged
	}
	for i := range 2 {
		sector := b[(2+i)*markSector:][:markSector]
		last, id, ok := parseAck(sector[:ackSize])
		switch {
		case ok && id == g.Identity:
			g.Last = max(g.Last, last)
		case (!ok && !zero(sector) || !zero(sector[ackSize:])) && damaged == "":
			damaged = fmt.Sprintf("sector %d does not have its checksum", 2+i)
		}
	}
	return g, damaged
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

func parseSlot(sector []byte) (*generation, bool) {
	if string(sector[:4]) != markMagic || binary.LittleEndian.Uint32(sector[4:]) != crc32.Checksum(sector[8:], castagnoli) {
		return nil, false
	}
	length := int(binary.LittleEndian.Uint16(sector[8:]))
	if length > len(sector)-10 {
		return nil, false
	}
	d := pack.NewDecoder(sector[10 : 10+length])
	g := &generation{Sequence: d.Int()}
	id := d.Bytes()
	g.Place, g.Applied, g.Last, g.Epoch = d.Text(), d.Int(), d.Int(), d.Int()
	if d.End() != nil || len(id) != len(g.Identity) {
		return nil, false
	}
	copy(g.Identity[:], id)
	return g, true
}

// slot is the content of a sector.
func (g *generation) slot() []byte {
	const longest = 200
	place := g.Place
	if len(place) > longest {
		place = place[:longest]
	}
	e := pack.Encoder{B: make([]byte, 10, markSector)}
	e.Int(g.Sequence)
	e.Bytes(g.Identity[:])
	e.Text(place)
	e.Int(g.Applied)
	e.Int(g.Last)
	e.Int(g.Epoch)
	binary.LittleEndian.PutUint16(e.B[8:], uint16(len(e.B)-10))
	sector := append(e.B, make([]byte, markSector-len(e.B))...)
	copy(sector, markMagic)
	binary.LittleEndian.PutUint32(sector[4:], crc32.Checksum(sector[8:], castagnoli))
	return sector
}

func parseAck(b []byte) (last int64, id identity, ok bool) {
	if string(b[:4]) != ackMagic || binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return 0, id, false
	}
	copy(id[:], b[16:])
	return int64(binary.LittleEndian.Uint64(b[8:])), id, true
}

// openMark opens the mark for writing, a new one if it does not say the same already. In a file that is there nothing but a slot is written, so that no moment is without a mark.
func openMark(dir string, g generation, disk Disk) (*mark, error) {
	path := filepath.Join(dir, markName)
	before, damaged, err := readMark(dir)
	if err != nil {
		return nil, err
	}
	if before == nil || damaged != "" || before.Identity != g.Identity {
		g.Sequence = 2 // the next one goes to the other sector
		if err := durable.WriteFile(path, append(g.slot(), make([]byte, markSize-markSector)...), 0o600); err != nil {
			return nil, fmt.Errorf("make the generation mark: %w", err)
		}
	} else {
		g.Sequence = before.Sequence
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the generation mark: %w", err)
	}
	m := &mark{file: f, identity: g.Identity, now: g, acked: g.Last, syncFile: disk.SyncFile}
	if before != nil && *before != g {
		err = m.settle(g.Applied, g.Epoch)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

// acknowledged notes that somebody is about to be told of a group, which is durable. Only the writer goroutine calls it. What cannot be written leaves an older number, which is allowed: the next
// settle meets the same disk, and says so.
func (m *mark) acknowledged(group int64) {
	b := m.ack[:]
	copy(b, ackMagic)
	binary.LittleEndian.PutUint64(b[8:], uint64(group))
	copy(b[16:], m.identity[:])
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	if _, err := m.file.WriteAt(b, (2+group%2)*markSector); err != nil {
		return
	}
	m.mu.Lock()
	m.acked = group
	m.mu.Unlock()
}

// settle makes durable that the database has a group, and how often its log was copied into it. One goroutine at a time calls it; nobody is kept from acknowledging meanwhile.
func (m *mark) settle(applied, epoch int64) error {
	m.mu.Lock()
	acked := m.acked
	m.mu.Unlock()
	g := m.now
	g.Sequence++
	g.Applied, g.Epoch, g.Last = max(g.Applied, applied), max(g.Epoch, epoch), max(g.Last, acked, applied)
	if _, err := m.file.WriteAt(g.slot(), g.Sequence%2*markSector); err != nil {
		return fmt.Errorf("write the generation mark: %w", err)
	}
	if err := m.syncFile(m.file); err != nil {
		return fmt.Errorf("sync the generation mark: %w", err)
	}
	m.now = g
	return nil
}

func (m *mark) close() error { return m.file.Close() }
