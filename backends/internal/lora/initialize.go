package lora

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/philox"
)

// Initialize fills the masters of a fresh adapter and packs them: A uniform in ±1/√in (the default of Hugging Face PEFT), B zero. Element e of a tensor is lane e mod 4 of
// Philox4x32-10 with the seed as key and the counter (e / 4, hash of the tensor's name in a PEFT file), so neither order nor sharding of the tensors matters.
func (w *Weights) Initialize(seed uint64) error {
	if err := w.Masters.Zero(); err != nil {
		return err
	}
	l := w.Layout()
	for i, m := range l.Modules {
		if !l.Has(i) {
			continue
		}
		values := make([]float32, l.Rank*m.In)
		uniform(values, seed, TensorName(m.Name, "A", PEFT), 1/math.Sqrt(float64(m.In)))
		if err := w.Masters.device.Upload(w.Masters.A(i), values); err != nil {
			return err
		}
	}
	return w.Pack()
}

// uniform fills values uniformly in [-bound, bound).
func uniform(values []float32, seed uint64, name string, bound float64) {
	sum := sha256.Sum256([]byte(name))
	hash := binary.LittleEndian.Uint64(sum[:8])
	var block [4]uint32
	for e := range values {
		if e%4 == 0 {
			n := uint64(e) / 4
			block = philox.Block(seed, [4]uint32{uint32(n), uint32(n >> 32), uint32(hash), uint32(hash >> 32)})
		}
		u := float64(block[e%4]>>8) / (1 << 23) // 24 bits, exact, in [0, 2)
		values[e] = float32((u - 1) * bound)
	}
}
