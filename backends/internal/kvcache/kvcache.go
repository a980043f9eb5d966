// Package kvcache decides which page of keys and values belongs to whom. Sequences hold pages by reference; full pages of a prompt are shared between all sequences
// that begin with the same tokens under the same adapter version, and stay as a cache until their place is needed. It only counts page numbers: the memory behind
// them, and clearing a page before its first use, are the caller's.
package kvcache

import "container/list"

// PageSize is the number of positions in a page.
const PageSize = 64

// Key names the weights that keys and values were computed with; sequences under different keys never share a page.
type Key struct {
	Adapter int64 // number of the adapter in this process, 0 = the base model; never used twice
	Version int64
}

// Cache hands out the pages 0 … n-1. It is used by one goroutine at a time.
type Cache struct {
	free  []int32
	owner []*entry // of each page: nil while it is free or held by one sequence only
	roots map[Key]*entry
	idle  *list.List // of *entry without a holder, the next one to go first; an entry stands before its parent
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
}

// New makes a cache of n pages.
func New(n int) *Cache {
	c := &Cache{owner: make([]*entry, n), roots: map[Key]*entry{}, idle: list.New()}
	for i := n - 1; i >= 0; i-- {
		c.free = append(c.free, int32(i))
	}
	return c
}

// Available is the number of pages that Allocate can give: free ones and those kept for nobody but as a cache.
func (c *Cache) Available() int { return len(c.free) + c.idle.Len() }

// Pages is the number of all pages.
func (c *Cache) Pages() int { return len(c.owner) }

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

// Allocate gives n pages to the caller alone, or none and false if there are not so many. Cached pages go in the order in which they became idle. The content of a page is whatever
// it was before.
func (c *Cache) Allocate(n int) ([]int32, bool) {
	if n > c.Available() {
		return nil, false
	}
	for len(c.free) < n {
		c.evict(c.idle.Front().Value.(*entry))
	}
	pages := make([]int32, n)
	for i := range pages {
		pages[i] = c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
	}
	return pages, true
}

// evict forgets an idle entry. Its children have gone before: whoever holds a page holds all pages before it, and Release puts later pages first.
func (c *Cache) evict(e *entry) {
	c.idle.Remove(e.idle)
	e.idle = nil
	delete(e.parent.children, e.tokens)
	if e.parent.parent == nil && len(e.parent.children) == 0 {
		delete(c.roots, e.key)
	}
	c.owner[e.page] = nil
	c.free = append(c.free, e.page)
}

// Share offers the full pages at the beginning of a sequence to others: tokens are what they hold, pages the sequence's pages in order, all held by the caller. Pages that are shared
// already are passed over. Where another sequence has shared an equal page meanwhile, the pages from there on stay the caller's alone.
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
			return
		}
		at = next
	}
}

// Release gives up the caller's hold on the pages of one sequence, in the order of the sequence. Shared ones stay as a cache.
func (c *Cache) Release(pages []int32) {
	for i := len(pages) - 1; i >= 0; i-- {
		e := c.owner[pages[i]]
		if e == nil {
			c.free = append(c.free, pages[i])
			continue
		}
		e.holders--
		switch {
		case e.holders > 0:
		case e.dropped:
			c.owner[e.page] = nil
			c.free = append(c.free, e.page)
		default:
			e.idle = c.idle.PushBack(e)
		}
	}
}

// Drop forgets what is cached under a key, because its weights are gone. Pages that are still held stay with their holders and are no longer shared.
func (c *Cache) Drop(key Key) {
	root := c.roots[key]
	if root == nil {
		return
	}
	delete(c.roots, key)
	var walk func(e *entry)
	walk = func(e *entry) {
		for _, child := range e.children {
			walk(child)
		}
		e.children, e.dropped = nil, true
		if e.idle != nil {
			c.idle.Remove(e.idle)
			e.idle = nil
			c.owner[e.page] = nil
			c.free = append(c.free, e.page)
		}
	}
	walk(root)
}
