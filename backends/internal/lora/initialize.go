package lora

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
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
			block = philox(uint64(e)/4, hash, seed)
		}
		u := float64(block[e%4]>>8) / (1 << 23) // 24 bits, exact, in [0, 2)
		values[e] = float32((u - 1) * bound)
	}
}

// philox is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
func philox(counterLow, counterHigh, key uint64) [4]uint32 {
	c := [4]uint32{uint32(counterLow), uint32(counterLow >> 32), uint32(counterHigh), uint32(counterHigh >> 32)}
	k0, k1 := uint32(key), uint32(key>>32)
	for round := 0; round < 10; round++ {
		p0, p1 := uint64(c[0])*0xD2511F53, uint64(c[2])*0xCD9E8D57
		c = [4]uint32{uint32(p1>>32) ^ c[1] ^ k0, uint32(p1), uint32(p0>>32) ^ c[3] ^ k1, uint32(p0)}
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return c
}
