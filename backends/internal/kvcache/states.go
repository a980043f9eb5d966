package kvcache

import "container/list"

// Models with recurrent layers keep a state of fixed size for a sequence, in a slot. A sequence can go on from shared pages only where somebody has kept the state behind them: a snapshot, a slot that lies at the end of a full page
// and belongs to the cache until its place is needed. As with pages, only numbers are counted here. Slots may change hands at once, before anything has been copied: whoever fills and copies them does so in the order in which
// they were handed out.

// states are the slots of a cache.
type states struct {
	free      []int
	snapshots *list.List // of *entry that have one, the next one to go first
}

// NewWithStates makes a cache of n pages and so many slots, 0 … slots-1.
func NewWithStates(n, slots int) *Cache {
	c := New(n)
	c.states = &states{snapshots: list.New()}
	for i := slots - 1; i >= 0; i-- {
		c.states.free = append(c.states.free, i)
	}
	return c
}

// TakeSlot gives the caller a slot, that of the snapshot that was used longest ago if none is free; false if all are others'.
func (c *Cache) TakeSlot() (int, bool) {
	s := c.states
	if len(s.free) == 0 {
		if s.snapshots.Len() == 0 {
			return 0, false
		}
		c.forgetSnapshot(s.snapshots.Front().Value.(*entry))
	}
	slot := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return slot, true
}

// GiveSlot gives back what TakeSlot gave.
func (c *Cache) GiveSlot(slot int) { c.states.free = append(c.states.free, slot) }

// forgetSnapshot has an entry's slot free again, if it has one.
func (c *Cache) forgetSnapshot(e *entry) {
	if e.snapshot == nil {
		return
	}
	c.states.snapshots.Remove(e.snapshot)
	e.snapshot = nil
	c.states.free = append(c.states.free, e.slot)
}

// MatchState is Match for models with states: the pages end where there is a snapshot, whose slot it gives; without any there are no pages, and the slot is -1.
func (c *Cache) MatchState(key Key, tokens []int32) (pages []int32, slot int) {
	at := c.roots[key]
	var path []*entry
	best := 0 // entries of the path up to the last snapshot
	for at != nil && len(tokens) >= PageSize {
		if at = at.children[[PageSize]int32(tokens)]; at == nil {
			break
		}
		path = append(path, at)
		if at.snapshot != nil {
			best = len(path)
		}
		tokens = tokens[PageSize:]
	}
	if best == 0 {
		return nil, -1
	}
	for _, e := range path[:best] {
		c.hold(e)
		pages = append(pages, e.page)
	}
	last := path[best-1]
	c.states.snapshots.MoveToBack(last.snapshot)
	return pages, last.slot
}

// find gives the entry at the end of tokens, whole pages that are shared.
func (c *Cache) find(key Key, tokens []int32) *entry {
	at := c.roots[key]
	for ; at != nil && len(tokens) >= PageSize; tokens = tokens[PageSize:] {
		at = at.children[[PageSize]int32(tokens)]
	}
	if at == nil || at.parent == nil {
		return nil
	}
	return at
}

// Snapshot gives the slot that the caller is to copy the state behind tokens to, whole pages that are shared; it is the cache's. False if there is one already, if the pages are not shared, or if no slot can be had.
func (c *Cache) Snapshot(key Key, tokens []int32) (slot int, ok bool) {
	e := c.find(key, tokens)
	if e == nil {
		return 0, false
	}
	if e.snapshot != nil {
		c.states.snapshots.MoveToBack(e.snapshot)
		return 0, false
	}
	if slot, ok = c.TakeSlot(); ok {
		e.slot = slot
		e.snapshot = c.states.snapshots.PushBack(e)
	}
	return slot, ok
}

// DropSnapshot forgets the snapshot behind tokens, if there is one.
func (c *Cache) DropSnapshot(key Key, tokens []int32) {
	if e := c.find(key, tokens); e != nil {
		c.forgetSnapshot(e)
	}
}

// DropSnapshots forgets all of them.
func (c *Cache) DropSnapshots() {
	for c.states.snapshots.Len() > 0 {
		c.forgetSnapshot(c.states.snapshots.Front().Value.(*entry))
	}
}
