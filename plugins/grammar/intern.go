package grammar

// hash is a running hash of what makes a thing of a table.
type hash uint64

func newHash() hash { return 0x9e3779b97f4a7c15 }

func (h *hash) add(v uint64) {
	x := (uint64(*h) ^ v) * 0xff51afd7ed558ccd
	*h = hash(x ^ x>>32)
}

// intern finds things of a table by their hash. The zero value is empty.
type intern struct {
	slots []internSlot
	used  int
}

type internSlot struct {
	hash uint32
	at   int32 // number + 1; 0 is free
}

// find gives the number of the thing for which equal holds, -1 if there is none.
func (t *intern) find(h hash, equal func(int32) bool) int32 {
	if len(t.slots) == 0 {
		return -1
	}
	key := uint32(h >> 16)
	mask := uint32(len(t.slots) - 1)
	for i := key & mask; t.slots[i].at != 0; i = (i + 1) & mask {
		if s := t.slots[i]; s.hash == key && equal(s.at-1) {
			return s.at - 1
		}
	}
	return -1
}

// put adds a thing that is not there.
func (t *intern) put(h hash, number int32) {
	if 4*(t.used+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]internSlot, max(16, 2*len(old)))
		for _, s := range old {
			if s.at != 0 {
				t.place(s)
			}
		}
	}
	t.place(internSlot{uint32(h >> 16), number + 1})
	t.used++
}

func (t *intern) place(s internSlot) {
	mask := uint32(len(t.slots) - 1)
	i := s.hash & mask
	for t.slots[i].at != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

func (t *intern) size() int { return 8 * len(t.slots) }
