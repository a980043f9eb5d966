package philox

import "testing"

// The known answers published with the authors' library Random123 for philox4x32-10.
func TestBlockKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		name          string
		key           uint64
		counter, want [4]uint32
	}{
		{"zeros", 0, [4]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{"ones", ^uint64(0), [4]uint32{^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0)}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{"digits of pi", 0x299f31d0_a4093822, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Block(c.key, c.counter); got != c.want {
				t.Errorf("got %08x, want %08x", got, c.want)
			}
		})
	}
}

func TestUniformStaysInRangeAndIsCentred(t *testing.T) {
	const n = 20000
	sum := 0.0
	for i := range uint32(n) {
		u := Uniform(42, [4]uint32{i, 0, 0, 0})
		if u < 0 || u >= 1 {
			t.Fatalf("draw %d is %v", i, u)
		}
		sum += u
	}
	// The mean of n draws has a standard deviation of 1/√(12n), 0.002 here: five of them.
	if mean := sum / n; mean < 0.49 || mean > 0.51 {
		t.Errorf("mean %v", mean)
	}
}
