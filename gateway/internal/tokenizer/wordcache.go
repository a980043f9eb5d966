package tokenizer

import (
	"hash/maphash"
	"sync/atomic"
)

const (
	wordCacheSlots  = 1 << 15
	wordCacheLength = 64 // longest word, in bytes, that is kept
)

// wordCache remembers the ids of recently seen words. Every word has one slot
// that it shares with others, so the size is bounded (about 8 MiB when full)
// and nothing is ever searched or locked: a reader sees a whole entry or none.
// Safe for concurrent use.
type wordCache struct {
	seed  maphash.Seed
	slots [wordCacheSlots]atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	return &c.slots[maphash.String(c.seed, word)%wordCacheSlots]
}

// get returns the ids of word, read-only, if they are remembered.
func (c *wordCache) get(slot *atomic.Pointer[cachedWord], word string) ([]int32, bool) {
	if e := slot.Load(); e != nil && e.word == word {
		return e.ids, true
	}
	return nil, false
}

// put remembers a copy of ids for word.
func (c *wordCache) put(slot *atomic.Pointer[cachedWord], word string, ids []int32) {
	slot.Store(&cachedWord{word: string([]byte(word)), ids: append([]int32(nil), ids...)})
}
