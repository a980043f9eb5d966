package grammar

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"
)

// Cache keeps compiled grammars, so that sequences under the same grammar share what is found out about it. It is safe for concurrent use.
type Cache struct {
	tokens *TokenIndex
	limits Limits
	bytes  int

	mu      sync.Mutex
	entries map[[sha256.Size]byte]*list.Element
	recent  list.List // of *cacheEntry, those asked for last first
	asked   int
}

type cacheEntry struct {
	hash     [sha256.Size]byte
	compiled *Compiled
}

// CacheBytes is how much compiled grammars may hold together by default.
const CacheBytes = 256 << 20

// shrinkEvery is after how many questions all grammars are counted again, as every new one has them counted.
const shrinkEvery = 64

// NewCache gives a cache of grammars compiled for one vocabulary that holds about so many bytes. What sequences still use stays as long as they do.
func NewCache(tokens *TokenIndex, limits Limits, bytes int) *Cache {
	return &Cache{tokens: tokens, limits: limits, bytes: bytes, entries: make(map[[sha256.Size]byte]*list.Element)}
}

// Compile is Compile for the cache's vocabulary.
func (c *Cache) Compile(ctx context.Context, g *Grammar) (*Compiled, error) {
	if found := c.find(g.hash); found != nil {
		return found, nil
	}
	compiled, err := Compile(ctx, g, c.tokens, c.limits)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[g.hash]; ok {
		return e.Value.(*cacheEntry).compiled, nil
	}
	c.entries[g.hash] = c.recent.PushFront(&cacheEntry{g.hash, compiled})
	c.shrink()
	return compiled, nil
}

// Decode is Decode and Compile of bytes that may be compiled already.
func (c *Cache) Decode(ctx context.Context, data []byte) (*Compiled, error) {
	if found := c.find(sha256.Sum256(data)); found != nil {
		return found, nil
	}
	g, err := Decode(data, c.limits)
	if err != nil {
		return nil, err
	}
	return c.Compile(ctx, g)
}

// Known gives what Decode gives for bytes that are compiled already, and nil for others.
func (c *Cache) Known(data []byte) *Compiled { return c.find(sha256.Sum256(data)) }

func (c *Cache) find(hash [sha256.Size]byte) *Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[hash]
	if !ok {
		return nil
	}
	c.recent.MoveToFront(e)
	if c.asked++; c.asked%shrinkEvery == 0 {
		c.shrink() // grammars grow while they are used
	}
	return e.Value.(*cacheEntry).compiled
}

// shrink lets go of the grammars that were not asked for longest until the others have room; the last one asked for stays.
func (c *Cache) shrink() {
	total := 0
	for e := c.recent.Front(); e != nil; {
		next := e.Next()
		entry := e.Value.(*cacheEntry)
		if total += entry.compiled.Size(); total > c.bytes && e != c.recent.Front() {
			total -= entry.compiled.Size()
			c.recent.Remove(e)
			delete(c.entries, entry.hash)
		}
		e = next
	}
}

// Len is how many grammars are kept.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len()
}
