package tokenizer

import "math/bits"

// pairTable is a fixed map from a pair of ids to a value, open addressed: BPE
// looks up each neighbouring pair of a word, so this is its innermost loop.
// It is filled once and read-only afterwards.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key   uint64 // pair key + 1; 0 marks a free slot
	value uint64
}

// newPairTable returns a table with room for n pairs at half load.
func newPairTable(n int) *pairTable {
	size := bits.Len(uint(max(2*n, 2) - 1))
	return &pairTable{slots: make([]pairSlot, 1<<size), shift: uint(64 - size)}
}

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

func (t *pairTable) start(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> t.shift }

// put stores value under the pair, over any earlier value. Ids are below 2^31,
// so key + 1 never wraps to the free mark.
func (t *pairTable) put(a, b int32, value uint64) {
	key := pairKey(a, b)
	for i := t.start(key); ; i = (i + 1) & uint64(len(t.slots)-1) {
		if k := t.slots[i].key; k == 0 || k == key+1 {
			t.slots[i] = pairSlot{key + 1, value}
			return
		}
	}
}

func (t *pairTable) get(a, b int32) (uint64, bool) {
	key := pairKey(a, b)
	for i := t.start(key); ; i = (i + 1) & uint64(len(t.slots)-1) {
		switch t.slots[i].key {
		case key + 1:
			return t.slots[i].value, true
		case 0:
			return 0, false
		}
	}
}
