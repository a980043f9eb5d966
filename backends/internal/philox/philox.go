// Package philox is the counter-based random generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011). A value depends on its key and counter only, never on what was drawn before, so that initial weights do not depend on the order of
// loading and sampled tokens do not depend on who else is in the batch. It knows neither.
package philox

import "math/bits"

// The multipliers and Weyl increments of the paper.
const (
	multiplier0 = 0xD2511F53
	multiplier1 = 0xCD9E8D57
	weyl0       = 0x9E3779B9
	weyl1       = 0xBB67AE85
	rounds      = 10
)

// Block gives the four words of one counter under a key, whose low half is the first key word of the paper.
func Block(key uint64, counter [4]uint32) [4]uint32 {
	k0, k1 := uint32(key), uint32(key>>32)
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3] // an array would go through memory in every round
	for range rounds {
		h0, l0 := bits.Mul32(multiplier0, c0)
		h1, l1 := bits.Mul32(multiplier1, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += weyl0
		k1 += weyl1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Uniform gives a number in [0, 1) with 53 random bits from the first two words of a block.
func Uniform(key uint64, counter [4]uint32) float64 {
	b := Block(key, counter)
	return float64((uint64(b[0])<<32|uint64(b[1]))>>11) * 0x1p-53
}
