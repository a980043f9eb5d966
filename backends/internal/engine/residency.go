package engine

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// residency keeps what adapters hold of device memory below a limit: weights, optimizer states, accumulated gradients, and the buffers that gradients are summed in. What no device step needs goes to files
// when its place is needed, the one that was needed longest ago first, and comes back when a step needs it, with the same bits. It belongs to the device goroutine, but for the two figures.
type residency struct {
	device    tensor.Device
	shape     weightShape
	directory string // for files; "" = nothing can be moved out
	reserve   int64  // bytes of its file system that stay free
	space     func(directory string) (free int64, err error)
	limit     int64                // bytes, of all homes
	most      func(home int) int64 // bytes that there can be at a home, when everything that can be given up is

	used     int64      // bytes of device memory, at all homes
	freed    time.Time  // when some of it was last freed
	resident *list.List // of *spillable in memory, the one whose need ended longest ago at the front; those that a step needs again stay where they are
	needed   int        // blocks that a step needs
	named    int64      // files made so far
	weights  map[shapeKey]byHome
	floats   []float32 // for copies between device and file
	bytes    []byte

	memory  []*budget            // of the homes
	relieve func(last bool) bool // frees memory that no step needs and that is not of adapters, with last even what is worth more than an idle adapter; false if there is none

	inMemory, inFiles atomic.Int64                // bytes, for Status: of everything, and of blocks that are in files alone
	trouble           atomic.Pointer[diskTrouble] // of the last attempt to move something out; nil if it went well
}

// byHome is bytes of device memory at each home.
type byHome []int64

func (b byHome) total() int64 {
	var n int64
	for _, bytes := range b {
		n += bytes
	}
	return n
}

// weightShape is where an adapter's packed matrices are, and of which type.
type weightShape struct {
	dtype  tensor.DType
	places []lora.Place
	homes  []int // of the places, by number
	count  int   // of all homes
}

// estimate is the memory of a version's weights before there was one of its shape: an upper bound.
func (s *weightShape) estimate(layout *lora.Layout) byHome {
	all := make(byHome, s.count)
	all[0] = lora.ParameterBytes(layout)
	for p, place := range s.places {
		for i, module := range layout.Modules {
			if layout.Has(i) {
				all[s.homes[p]] += int64(module.MatrixBytes(s.dtype, layout.Rank, place.Part(i, module)))
			}
		}
	}
	return all
}

// weightShape is that of the adapters of a model that has been loaded.
func (l *loaded) weightShape() weightShape {
	s := weightShape{dtype: l.model.DType, places: l.places, count: len(l.homes.devices)}
	for _, place := range l.places {
		s.homes = append(s.homes, l.homes.index(place.Device))
	}
	return s
}

// newResidency makes an empty one. Nothing is written before the limit is reached; what an earlier process left in the directory is removed.
func newResidency(device tensor.Device, shape weightShape, scratch string, reserve, limit int64, memory []*budget) (*residency, error) {
	m := &residency{device: device, shape: shape, reserve: reserve, space: freeSpace, limit: limit, resident: list.New(), weights: map[shapeKey]byHome{}, memory: memory, relieve: func(bool) bool { return false }, most: func(int) int64 { return unlimited }}
	if scratch == "" {
		return m, nil
	}
	m.directory = filepath.Join(scratch, "adapters")
	if err := os.RemoveAll(m.directory); err != nil {
		return nil, internal("clear the directory of spilled adapters", err)
	}
	if err := os.MkdirAll(m.directory, 0o700); err != nil {
		return nil, internal("make the directory of spilled adapters", err)
	}
	return m, nil
}

// close removes the files. All blocks have been dropped.
func (m *residency) close() error {
	if m.directory == "" {
		return nil
	}
	return os.RemoveAll(m.directory)
}

// content is what a block has in memory: *lora.Weights, *optim.State or *lora.Gradient.
type content interface {
	Bytes() int64
	Free()
}

// spillable is a part of an adapter that is in memory as a whole or not at all; below it is called a block.
type spillable struct {
	what    string // for messages
	layout  *lora.Layout
	kind    contentKind
	step    int64 // of an optimizer state
	bytes   int64 // of device memory, when it is there, at all homes
	at      byHome
	content content
	needed  int                 // steps that need it: it stays in memory
	place   *list.Element       // in residency.resident
	file    string              // that holds the content as well; "" = none
	sum     uint32              // CRC-32C of the file
	again   func(content) error // computes the content, of a block that has never had another one: it needs no file; nil for others
}

type contentKind uint8

const (
	weightsContent contentKind = iota + 1
	stateContent
	gradientContent
)

func (b *spillable) weights() *lora.Weights   { return b.content.(*lora.Weights) }
func (b *spillable) state() *optim.State      { return b.content.(*optim.State) }
func (b *spillable) gradient() *lora.Gradient { return b.content.(*lora.Gradient) }

// shapeKey tells adapters of one model apart as far as their sizes go.
type shapeKey struct{ rank, parameters int }

// weightBytes is the memory of a version's weights: exact once there was one of its shape, before that an upper estimate.
func (m *residency) weightBytes(layout *lora.Layout) int64 { return m.weightsAt(layout).total() }

// weightsAt is the same by home.
func (m *residency) weightsAt(layout *lora.Layout) byHome {
	if n, ok := m.weights[shapeKey{layout.Rank, layout.Size}]; ok {
		return n
	}
	return m.shape.estimate(layout)
}

// first is bytes that are all on the home device.
func (m *residency) first(bytes int64) byHome {
	at := make(byHome, len(m.memory))
	at[0] = bytes
	return at
}

func (m *residency) size(kind contentKind, layout *lora.Layout) byHome {
	switch kind {
	case weightsContent:
		return m.weightsAt(layout)
	case stateContent:
		return m.first(2 * lora.ParameterBytes(layout))
	}
	return m.first(lora.ParameterBytes(layout))
}

// stepBytes is the most that training one adapter needs in memory at once: an optimizer step has the old and the new weights and moments, and the gradient, its buffer of zeros included.
func (m *residency) stepBytes(layout *lora.Layout) int64 {
	return 2*m.weightBytes(layout) + 5*lora.ParameterBytes(layout)
}

// aloneBytes is the most that an adapter needs in memory at once.
func (m *residency) aloneBytes(layout *lora.Layout, frozen bool) int64 {
	if frozen {
		return m.weightBytes(layout)
	}
	return m.stepBytes(layout)
}

// admit tells whether an adapter can be had at all.
func (m *residency) admit(layout *lora.Layout, frozen bool) error {
	need := m.aloneBytes(layout, frozen)
	if need <= m.limit {
		return nil
	}
	purpose := "to be trained"
	if frozen {
		purpose = "to be sampled"
	}
	return m.beyondLimit(fmt.Sprintf("an adapter of rank %d with %d parameters takes %s of memory %s", layout.Rank, layout.Size, mebibytes(need), purpose))
}

// beyondLimit is the error about something that takes more than the limit of adapters.
func (m *residency) beyondLimit(what string) error {
	return &plugins.Error{Kind: plugins.KindTooLarge, Message: fmt.Sprintf("%s, and all adapters together may take %s: that needs a larger backend.adapter_memory_mib, or a larger backend.memory_mib where that is not set", what, mebibytes(m.limit))}
}

// possible tells whether so many bytes could be had if nobody else had any.
func (m *residency) possible(what string, size byHome) error {
	if size.total() > m.limit {
		return m.beyondLimit(fmt.Sprintf("the %s take %s of memory", what, mebibytes(size.total())))
	}
	for home, bytes := range size {
		if most := m.most(home); bytes > most {
			return &plugins.Error{Kind: plugins.KindTooLarge, Message: fmt.Sprintf("the %s take %s of memory, and beside the model's weights and the sampler there are %s%s: that needs a larger backend.memory_mib", what, mebibytes(bytes), mebibytes(max(most, 0)), m.memory[home].on())}
		}
	}
	return nil
}

// make gives a new block, needed by the caller, who says done: to be filled.
func (m *residency) make(what string, kind contentKind, layout *lora.Layout) (*spillable, error) {
	b := &spillable{what: what, layout: layout, kind: kind}
	if err := m.allocate(b); err != nil {
		return nil, err
	}
	b.needed = 1
	m.needed++
	return b, nil
}

// unmade gives a block that takes no memory before it is needed, and whose content is computed then.
func (m *residency) unmade(what string, kind contentKind, layout *lora.Layout, again func(content) error) (*spillable, error) {
	at := m.size(kind, layout)
	if err := m.possible(what, at); err != nil {
		return nil, err
	}
	return &spillable{what: what, layout: layout, kind: kind, bytes: at.total(), at: at, again: again}, nil
}

// need has a block in memory until done is called as often.
func (m *residency) need(b *spillable) error {
	if b.content == nil {
		if err := m.allocate(b); err != nil {
			return err
		}
		if err := m.refill(b); err != nil {
			m.forget(b)
			return internal("bring back the "+b.what, err)
		}
	}
	if b.needed++; b.needed == 1 {
		m.needed++
	}
	return nil
}

// refill gives a block that has memory its content again.
func (m *residency) refill(b *spillable) error {
	if b.again != nil {
		return b.again(b.content)
	}
	if err := m.read(b); err != nil {
		return err
	}
	m.inFiles.Add(-b.bytes)
	return nil
}

// done ends a need.
func (m *residency) done(b *spillable) {
	if b.needed--; b.needed == 0 {
		m.needed--
		if b.place == nil {
			b.place = m.resident.PushBack(b)
		} else {
			m.resident.MoveToBack(b.place)
		}
	}
}

// changed says that the content of a block, which is needed, is no longer that of its file.
func (m *residency) changed(b *spillable) {
	m.remove(b)
	b.again = nil
}

// drop frees a block for good, needed or not. A second drop, and one of nil, do nothing.
func (m *residency) drop(b *spillable) {
	if b == nil {
		return
	}
	if b.content != nil {
		if b.needed > 0 {
			b.needed = 0
			m.needed--
		}
		m.forget(b)
	} else if b.file != "" {
		m.inFiles.Add(-b.bytes)
	}
	m.remove(b)
}

// gradient gives an unset buffer that stays in memory until it is given back by giveGradient, or becomes a block by adopt.
func (m *residency) gradient(layout *lora.Layout) (g *lora.Gradient, err error) {
	err = m.withRoom("gradients", m.first(lora.ParameterBytes(layout)), func() (byHome, error) {
		if g, err = lora.NewUnsetGradient(m.device, layout); err != nil {
			return nil, err
		}
		return m.first(g.Bytes()), nil
	})
	return g, err
}

func (m *residency) giveGradient(g *lora.Gradient) {
	m.given(m.first(g.Bytes()))
	g.Free()
}

// adopt makes a buffer of gradient into a block that nobody needs now.
func (m *residency) adopt(what string, g *lora.Gradient) *spillable {
	b := &spillable{what: what, layout: g.Layout, kind: gradientContent, bytes: g.Bytes(), at: m.first(g.Bytes()), content: g}
	b.place = m.resident.PushBack(b)
	return b
}

// allocate gives a block its memory, as make does.
func (m *residency) allocate(b *spillable) error {
	return m.withRoom(b.what, m.size(b.kind, b.layout), func() (byHome, error) {
		var c content
		var err error
		switch b.kind {
		case weightsContent:
			c, err = lora.NewWeights(m.device, b.layout, m.shape.dtype, m.shape.places...)
		case stateContent:
			c, err = optim.NewState(m.device, b.layout)
		case gradientContent:
			c, err = lora.NewUnsetGradient(m.device, b.layout)
		}
		if err != nil {
			return nil, err
		}
		b.content, b.bytes, b.at = c, c.Bytes(), m.first(c.Bytes())
		if b.kind == weightsContent {
			for place, home := range m.shape.homes {
				if n := b.weights().PlaceBytes(place); home > 0 {
					b.at[0], b.at[home] = b.at[0]-n, b.at[home]+n
				}
			}
			m.weights[shapeKey{b.layout.Rank, b.layout.Size}] = b.at
		}
		return b.at, nil
	})
}

// withRoom frees memory until size bytes are below the limits, and then calls allocate, again and again while the devices have no memory and there is something to free. allocate gives what it took.
func (m *residency) withRoom(what string, size byHome, allocate func() (byHome, error)) error {
	for {
		if err := m.take(what, size); err != nil {
			return err
		}
		taken, err := allocate()
		m.give(size)
		if err == nil {
			m.took(taken)
			return nil
		}
		if !errors.Is(err, tensor.ErrMemory) {
			return internal("memory for "+what, err)
		}
		if m.relieve(false) {
			continue
		}
		moved, failed := m.moveOut(0)
		if moved || m.relieve(true) {
			continue
		}
		if refused := noRoom("memory for "+what, errors.Join(err, failed)); isStuck(refused) {
			return refused
		}
		return crowdedError{capacity("memory for "+what, err)}
	}
}

// take counts size bytes in the budgets of the homes when they are below those and the limit of adapters. What could not be had if nothing else were in memory is KindTooLarge, and nothing is moved out for it.
func (m *residency) take(what string, size byHome) error {
	if err := m.possible(what, size); err != nil {
		return err
	}
	for {
		crowded := m.used+size.total() > m.limit
		short := 0
		if !crowded {
			if short = m.fit(size); short < 0 {
				return nil
			}
			if m.relieve(false) {
				continue
			}
		}
		moved, err := m.moveOut(short)
		switch {
		case !moved && !crowded && m.relieve(true):
		case err != nil:
			return noRoom("memory for "+what, err)
		case moved:
		case crowded:
			return crowdedError{&plugins.Error{Kind: plugins.KindCapacity, Message: fmt.Sprintf("memory for %s: %s are needed; of the %s for adapters (backend.adapter_memory_mib) %s are taken by what runs", what, mebibytes(size.total()), mebibytes(m.limit), mebibytes(m.used))}}
		default:
			return crowdedError{&plugins.Error{Kind: plugins.KindCapacity, Message: fmt.Sprintf("memory for %s: %s are needed; %s", what, mebibytes(size[short]), m.memory[short].bounds())}}
		}
	}
}

// fit counts size bytes in the budgets of the homes, or, where one of them has less, none; then it gives that one's number, else -1.
func (m *residency) fit(size byHome) int {
	for i, bytes := range size {
		if bytes > 0 && !m.memory[i].take(bytes) { // nothing is taken of one that has more than its limit since that was changed
			m.give(size[:i])
			return i
		}
	}
	return -1
}

// give counts bytes less in the budgets of the homes.
func (m *residency) give(size byHome) {
	for i, bytes := range size {
		m.memory[i].give(bytes)
	}
}

// took counts what has been allocated, and given what has been freed.
func (m *residency) took(size byHome) {
	for i, bytes := range size {
		m.memory[i].give(-bytes)
	}
	m.used += size.total()
	m.inMemory.Store(m.used)
}

func (m *residency) given(size byHome) {
	m.give(size)
	m.used -= size.total()
	m.freed = time.Now()
	m.inMemory.Store(m.used)
}

// moveOut frees the memory of the block that was needed longest ago of those that have some at a home, and tells whether there was one. Where its file cannot be written the error has a diskError, and nothing has changed.
func (m *residency) moveOut(home int) (bool, error) {
	first := m.resident.Front()
	for first != nil && (first.Value.(*spillable).needed > 0 || first.Value.(*spillable).at[home] == 0) {
		first = first.Next()
	}
	if first == nil {
		return false, nil
	}
	b := first.Value.(*spillable)
	if b.again != nil {
		m.forget(b)
		return true, nil
	}
	if b.file == "" {
		err := m.write(b)
		if err != nil {
			err = fmt.Errorf("move out the %s: %w", b.what, err)
		}
		var disk diskError
		switch {
		case errors.As(err, &disk):
			m.trouble.Store(&diskTrouble{time.Now(), err.Error()})
		case err == nil:
			m.trouble.Store(nil)
		}
		if err != nil {
			return false, err
		}
	}
	m.forget(b)
	m.inFiles.Add(b.bytes)
	return true, nil
}

// trim moves blocks out until the limit is kept.
func (m *residency) trim() error {
	for m.used > m.limit {
		if moved, err := m.moveOut(0); err != nil || !moved {
			return err
		}
	}
	return nil
}

// forget frees the memory of a block that no step needs.
func (m *residency) forget(b *spillable) {
	if b.place != nil {
		m.resident.Remove(b.place)
		b.place = nil
	}
	m.given(b.at)
	b.content.Free()
	b.content = nil
}

// remove deletes a block's file. A file that stays is emptied when the next process starts.
func (m *residency) remove(b *spillable) {
	if b.file != "" {
		_ = os.Remove(b.file)
		b.file = ""
	}
}

// parameters is what a file of a block holds, in order.
func (b *spillable) parameters() []*lora.Parameters {
	switch c := b.content.(type) {
	case *lora.Weights:
		return []*lora.Parameters{c.Masters} // the packed matrices follow from them
	case *optim.State:
		return []*lora.Parameters{c.M, c.V}
	case *lora.Gradient:
		return []*lora.Parameters{c.Parameters}
	}
	return nil
}

// pieceElements is what is copied between device and file at once (1 MiB).
const pieceElements = 1 << 18

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// eachPiece visits the parameters of a block in pieces of rows, with buffers of their size in Go memory.
func (m *residency) eachPiece(b *spillable, visit func(t tensor.Tensor, floats []float32, bytes []byte) error) error {
	if m.floats == nil {
		m.floats, m.bytes = make([]float32, pieceElements), make([]byte, 4*pieceElements)
	}
	for _, p := range b.parameters() {
		rows := max(1, pieceElements/p.Flat.Cols)
		for from := 0; from < p.Flat.Rows; from += rows {
			t := p.Flat.Slice(from, min(from+rows, p.Flat.Rows))
			n := t.Rows * t.Cols
			if err := visit(t, m.floats[:n], m.bytes[:4*n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// write makes the block's file: the parameters as little-endian float32. It need not outlive the process, so it is not synced. What goes wrong with the file is a diskError.
func (m *residency) write(b *spillable) (err error) {
	if m.directory == "" {
		return errors.New("the backend was given no directory for that")
	}
	var bytes int64
	for _, p := range b.parameters() {
		bytes += 4 * int64(p.Flat.Rows) * int64(p.Flat.Cols)
	}
	if err := m.hasSpace(bytes); err != nil {
		return diskError{err}
	}
	m.named++
	path := filepath.Join(m.directory, fmt.Sprint(m.named))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return diskError{err}
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	var sum uint32
	err = m.eachPiece(b, func(t tensor.Tensor, floats []float32, bytes []byte) error {
		if err := m.device.Download(floats, t); err != nil {
			return err
		}
		for i, v := range floats {
			binary.LittleEndian.PutUint32(bytes[4*i:], math.Float32bits(v))
		}
		sum = crc32.Update(sum, castagnoli, bytes)
		if _, err := f.Write(bytes); err != nil {
			return diskError{err}
		}
		return nil
	})
	if closed := f.Close(); err == nil && closed != nil {
		err = diskError{closed}
	}
	if err != nil {
		return err
	}
	b.file, b.sum = path, sum
	return nil
}

// read fills a block from its file and makes it ready for use.
func (m *residency) read(b *spillable) (err error) {
	f, err := os.Open(b.file)
	if err != nil {
		return err
	}
	defer f.Close()
	var sum uint32
	if err := m.eachPiece(b, func(t tensor.Tensor, floats []float32, bytes []byte) error {
		if _, err := io.ReadFull(f, bytes); err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, bytes)
		for i := range floats {
			floats[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
		}
		return m.device.Upload(t, floats)
	}); err != nil {
		return fmt.Errorf("%s: %w", b.file, err)
	}
	if sum != b.sum {
		return fmt.Errorf("%s is not what was written: the disk has changed it", b.file)
	}
	switch c := b.content.(type) {
	case *lora.Weights:
		return c.Pack()
	case *optim.State:
		c.Step = b.step
	}
	return nil
}

// mebibytes writes a size for messages.
func mebibytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d MiB", (n+(1<<19))>>20)
}
