// Package kvcache decides which page of keys and values belongs to whom. Sequences hold pages by reference; full pages of a prompt are shared between all sequences
// that begin with the same tokens under the same adapter version, and stay as a cache until their place is needed. Pages are in blocks, and a block of which nobody holds a page can be
// given back. It only counts page numbers: the memory behind them, and clearing a page before its first use, are the caller's.
package kvcache

import "container/list"

// PageSize is the number of positions in a page.
const PageSize = 64

// BlockPages is the number of pages in a block; the last one may have fewer.
const BlockPages = 16

// Key names the weights that keys and values were computed with, and for whom; sequences under different keys never share a page.
type Key struct {
	Adapter int64 // number of the adapter in this process, 0 = the base model; never used twice
	Version int64
	Scope   string // of those who may share
}

// Cache hands out the pages 0 … n-1. It is used by one goroutine at a time.
type Cache struct {
	blocks []block
	free   int      // pages of all blocks that nothing is on
	absent int      // pages that were given back
	owner  []*entry // of each page: nil while it is free or held by one sequence only
	roots  map[Key]*entry
	idle   *list.List // of *entry without a holder, the next one to go first; an entry stands before its parent
	states *states    // nil: there are no slots
}

// block is BlockPages pages with consecutive numbers.
type block struct {
	free   []int32 // those that nothing is on, the next one to be used last
	absent bool    // they were given back
}

// entry is one full page in the tree of shared prefixes; the root of a key has no page.
type entry struct {
	page     int32
	key      Key
	tokens   [PageSize]int32
	parent   *entry
	children map[[PageSize]int32]*entry // nil until there is one
	holders  int
	dropped  bool          // no longer found by Match; freed by its last holder
	idle     *list.Element // its place in Cache.idle while holders is 0
	snapshot *list.Element // its place among the snapshots; nil: it has none
	slot     int           // of its snapshot
}

// New makes a cache of n pages.
func New(n int) *Cache {
	c := &Cache{owner: make([]*entry, n), roots: map[Key]*entry{}, idle: list.New()}
	c.blocks = make([]block, (n+BlockPages-1)/BlockPages)
	for i := n - 1; i >= 0; i-- {
		c.release(int32(i))
	}
	return c
}

// release notes that nothing is on a page any more.
func (c *Cache) release(page int32) {
	b := &c.blocks[page/BlockPages]
	b.free = append(b.free, page)
	c.free++
}

// Available is the number of pages that Allocate can give: free ones and those kept for nobody but as a cache.
func (c *Cache) Available() int { return c.free + c.idle.Len() }

// Free is the number of pages that nothing is on.
func (c *Cache) Free() int { return c.free }

// Pages is the number of all pages, whether they are there or were given back.
func (c *Cache) Pages() int { return len(c.owner) }

// Absent is the number of pages that were given back.
func (c *Cache) Absent() int { return c.absent }

// Block is a run of pages.
type Block struct{ First, Count int32 }

// GiveBack takes a block out of use of which nobody holds a page, unless fewer than keep pages would be left. With cached it may be one on which something is kept as a cache, that is forgotten then.
func (c *Cache) GiveBack(keep int, cached bool) (Block, bool) {
	for i := len(c.blocks) - 1; i >= 0; i-- { // Allocate uses the first ones first
		b := &c.blocks[i]
		pages := Block{int32(i * BlockPages), int32(min(BlockPages, len(c.owner)-i*BlockPages))}
		if b.absent || len(c.owner)-c.absent-int(pages.Count) < keep || len(b.free)+c.idleOn(pages) < int(pages.Count) || !cached && len(b.free) < int(pages.Count) {
			continue
		}
		for page := pages.First; page < pages.First+pages.Count; page++ {
			if e := c.owner[page]; e != nil {
				c.evictAll(e)
			}
		}
		b.absent = true
		c.absent += int(pages.Count)
		c.free -= len(b.free)
		return pages, true
	}
	return Block{}, false
}

// idleOn counts the pages of a block that are kept as a cache only.
func (c *Cache) idleOn(b Block) int {
	n := 0
	for _, e := range c.owner[b.First : b.First+b.Count] {
		if e != nil && e.idle != nil {
			n++
		}
	}
	return n
}

// evictAll forgets an idle entry and those behind it, which are idle as well.
func (c *Cache) evictAll(e *entry) {
	for _, child := range e.children {
		c.evictAll(child)
	}
	c.evict(e)
}

// Missing gives a block that was given back, if there is one.
func (c *Cache) Missing() (Block, bool) {
	for i := range c.blocks {
		if b := &c.blocks[i]; b.absent {
			return Block{int32(i * BlockPages), int32(len(b.free))}, true
		}
	}
	return Block{}, false
}

// TakeBack has a block in use again that was given back.
func (c *Cache) TakeBack(b Block) {
	c.blocks[b.First/BlockPages].absent = false
	c.free += int(b.Count)
	c.absent -= int(b.Count)
}

// Match gives the pages that hold the longest shared beginning of tokens, and holds them for the caller, who gives them back with Release. They cover
// PageSize·len(pages) tokens.
func (c *Cache) Match(key Key, tokens []int32) []int32 {
	at := c.roots[key]
	var pages []int32
	for at != nil && len(tokens) >= PageSize {
		if at = at.children[[PageSize]int32(tokens)]; at == nil {
			break
		}
		c.hold(at)
		pages = append(pages, at.page)
		tokens = tokens[PageSize:]
	}
	return pages
}

func (c *Cache) hold(e *entry) {
	if e.holders++; e.idle != nil {
		c.idle.Remove(e.idle)
		e.idle = nil
	}
}

// Allocate gives n pages to the caller alone, of the first blocks that have some, or none and false if there are not so many. Cached pages go in the order in which they became idle. The content of a page is whatever
// it was before.
func (c *Cache) Allocate(n int) ([]int32, bool) {
	if n > c.Available() {
		return nil, false
	}
	for c.free < n {
		c.evict(c.idle.Front().Value.(*entry))
	}
	c.free -= n
	pages := make([]int32, 0, n)
	for i := range c.blocks {
		b := &c.blocks[i]
		for ; len(pages) < n && !b.absent && len(b.free) > 0; b.free = b.free[:len(b.free)-1] {
			pages = append(pages, b.free[len(b.free)-1])
		}
		if len(pages) == n {
			break
		}
	}
	return pages, true
}

// evict forgets an idle entry. Its children have gone before: whoever holds a page holds all pages before it, and Release puts later pages first.
func (c *Cache) evict(e *entry) {
	c.forgetSnapshot(e)
	c.idle.Remove(e.idle)
	e.idle = nil
	delete(e.parent.children, e.tokens)
	if e.parent.parent == nil && len(e.parent.children) == 0 {
		delete(c.roots, e.key)
	}
	c.owner[e.page] = nil
	c.release(e.page)
}

// Share offers the full pages at the beginning of a sequence to others: tokens are what they hold, pages the sequence's pages in order, all held by the caller. Pages that are shared
// already are passed over. Where an equal page was shared that nobody holds, the caller's takes its place; where somebody holds it, the pages from there on stay the caller's alone.
func (c *Cache) Share(key Key, tokens, pages []int32) {
	at := c.roots[key]
	if at == nil {
		at = &entry{key: key, page: -1}
	}
	for i := 0; i < len(pages) && len(tokens) >= PageSize; i, tokens = i+1, tokens[PageSize:] {
		block := [PageSize]int32(tokens)
		next := at.children[block]
		if next == nil {
			next = &entry{page: pages[i], key: key, tokens: block, parent: at, holders: 1}
			if at.children == nil {
				at.children = map[[PageSize]int32]*entry{}
			}
			at.children[block] = next
			c.owner[pages[i]] = next
			if at.parent == nil {
				c.roots[key] = at
			}
		}
		if next.page != pages[i] {
			if next.idle == nil || c.owner[pages[i]] != nil {
				return
			}
			c.replace(next, pages[i])
		}
		at = next
	}
}

// replace has an idle entry on a page that its caller holds alone, in place of its own. Its snapshot stays: it is the state behind the same tokens. What is behind it is idle as well.
func (c *Cache) replace(e *entry, page int32) {
	c.owner[e.page] = nil
	c.release(e.page)
	e.page = page
	c.owner[page] = e
	c.hold(e)
}

// Release gives up the caller's hold on the pages of one sequence, in the order of the sequence. Shared ones stay as a cache.
func (c *Cache) Release(pages []int32) {
	for i := len(pages) - 1; i >= 0; i-- {
		e := c.owner[pages[i]]
		if e == nil {
			c.release(pages[i])
			continue
		}
		e.holders--
		switch {
		case e.holders > 0:
		case e.dropped:
			c.owner[e.page] = nil
			c.release(e.page)
		default:
			e.idle = c.idle.PushBack(e)
		}
	}
}

// Released tells how many pages would be available if some sequences gave theirs up.
type Released struct {
	cache *Cache
	holds map[*entry]int // that would be given up of shared pages
	pages int
}

// IfReleased counts from no sequence on. Nothing may be held or given up while it is used.
func (c *Cache) IfReleased() *Released { return &Released{cache: c, holds: map[*entry]int{}} }

// Add counts another sequence's pages in. A page that several hold counts when all of these have been added.
func (r *Released) Add(pages []int32) {
	for _, page := range pages {
		e := r.cache.owner[page]
		if e == nil {
			r.pages++
			continue
		}
		if r.holds[e]++; r.holds[e] == e.holders {
			r.pages++
		}
	}
}

// Pages is how many they are.
func (r *Released) Pages() int { return r.pages }

// Drop forgets what is cached of a version in all scopes, because its weights are gone. Pages that are still held stay with their holders and are no
// longer shared.
func (c *Cache) Drop(adapter, version int64) {
	for key := range c.roots {
		if key.Adapter == adapter && key.Version == version {
			c.drop(key)
		}
	}
}

func (c *Cache) drop(key Key) {
	root := c.roots[key]
	delete(c.roots, key)
	var walk func(e *entry)
	walk = func(e *entry) {
		for _, child := range e.children {
			walk(child)
		}
		c.forgetSnapshot(e)
		e.children, e.dropped = nil, true
		if e.idle != nil {
			c.idle.Remove(e.idle)
			e.idle = nil
			c.owner[e.page] = nil
			c.release(e.page)
		}
	}
	walk(root)
}
