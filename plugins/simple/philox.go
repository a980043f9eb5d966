package simple

import "math/bits"

// philox is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words from a 128-bit counter and a 64-bit key.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, counter[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return counter
}

// Uniform gives the number in [0, 1) with 53 random bits that belongs to a seed and a place.
func Uniform(seed uint64, a, b, c, d uint32) float64 {
	r := philox([4]uint32{a, b, c, d}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64((uint64(r[0])<<32|uint64(r[1]))>>11) / (1 << 53)
}
