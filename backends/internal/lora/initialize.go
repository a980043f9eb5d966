package lora

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/philox"
)

// drawnBytes bounds the tensors that are drawn at once, if they are more than one.
const drawnBytes = 256 << 20

// Initialize fills the masters of a fresh adapter and packs them: A uniform in ±1/√in (the default of Hugging Face PEFT), B zero. Element e of a tensor, with all its copies, is lane e mod 4 of
// Philox4x32-10 with the seed as key and the counter (e / 4, hash of the tensor's name in a PEFT file), so neither order nor sharding of the tensors matters.
func (w *Weights) Initialize(seed uint64) error {
	err := w.Masters.Zero()
	l := w.Layout()
	var modules []int
	largest := 1 // bytes of a tensor
	for i, m := range l.Modules {
		if l.Has(i) {
			modules, largest = append(modules, i), max(largest, 4*l.Rank*m.In*max(m.CopiesA, 1))
		}
	}
	// The numbers of a large adapter take a second of one processor: they are drawn on all of them, while the caller, on whose goroutine the device is, copies those that are there.
	type tensorA struct {
		module int
		values []float32
	}
	drawn := make(chan tensorA)
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(modules), max(1, drawnBytes/largest)) {
		go func() {
			for {
				k := int(next.Add(1)) - 1
				if k >= len(modules) {
					return
				}
				i := modules[k]
				m := l.Modules[i]
				copies, _ := m.Copies()
				values := make([]float32, copies*l.Rank*m.In)
				uniform(values, seed, TensorName(m.Name, "A", PEFT), 1/math.Sqrt(float64(m.In)))
				drawn <- tensorA{i, values}
			}
		}()
	}
	for range modules {
		a := <-drawn
		if err == nil {
			err = w.Masters.device.Upload(w.Masters.A(a.module), a.values)
		}
	}
	if err != nil {
		return err
	}
	return w.Pack()
}

// uniform fills values uniformly in [-bound, bound).
func uniform(values []float32, seed uint64, name string, bound float64) {
	sum := sha256.Sum256([]byte(name))
	hash := binary.LittleEndian.Uint64(sum[:8])
	for n := range (len(values) + 3) / 4 {
		block := philox.Block(seed, [4]uint32{uint32(n), uint32(uint64(n) >> 32), uint32(hash), uint32(hash >> 32)})
		for lane, word := range block[:min(4, len(values)-4*n)] {
			u := float64(word>>8) / (1 << 23) // 24 bits, exact, in [0, 2)
			values[4*n+lane] = float32((u - 1) * bound)
		}
	}
}
