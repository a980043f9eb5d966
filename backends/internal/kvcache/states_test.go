package kvcache

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// page is the tokens of a page, all the same.
func page(id int32) []int32 { return slices.Repeat([]int32{id}, PageSize) }

// put shares a sequence's pages and releases them, and gives their numbers.
func put(t *testing.T, c *Cache, key Key, tokens []int32) []int32 {
	t.Helper()
	pages, ok := c.Allocate(len(tokens) / PageSize)
	if !ok {
		t.Fatal("no pages")
	}
	c.Share(key, tokens, pages)
	return pages
}

func TestSnapshots(t *testing.T) {
	key := Key{Adapter: 1, Version: 1}
	c := NewWithStates(8, 3)
	tokens := slices.Concat(page(1), page(2), page(3))
	pages := put(t, c, key, tokens)
	if got, slot := c.MatchState(key, tokens); got != nil || slot != -1 {
		t.Errorf("without a snapshot: pages %v, slot %d", got, slot)
	}
	own, ok := c.TakeSlot()
	if !ok {
		t.Fatal("no slot")
	}
	slot, ok := c.Snapshot(key, tokens[:2*PageSize])
	if !ok || slot == own {
		t.Fatalf("slot %d, %v", slot, ok)
	}
	if _, ok := c.Snapshot(key, tokens[:2*PageSize]); ok {
		t.Error("a second snapshot at the same place")
	}
	if _, ok := c.Snapshot(key, slices.Concat(page(1), page(9))); ok {
		t.Error("a snapshot behind pages that are not shared")
	}
	if _, ok := c.Snapshot(Key{Adapter: 2}, tokens[:PageSize]); ok {
		t.Error("a snapshot under another key")
	}
	got, from := c.MatchState(key, append(slices.Clone(tokens), 1, 2))
	if !slices.Equal(got, pages[:2]) || from != slot {
		t.Errorf("pages %v, slot %d; want %v, %d", got, from, pages[:2], slot)
	}
	c.Release(got)
	if got, _ := c.MatchState(key, tokens[:2*PageSize-1]); got != nil {
		t.Errorf("pages %v of tokens that end before the snapshot", got)
	}
	// The one that was used longest ago goes first.
	third, ok := c.Snapshot(key, tokens)
	if !ok {
		t.Fatal("no third slot")
	}
	got, from = c.MatchState(key, tokens[:2*PageSize])
	c.Release(got)
	if from != slot {
		t.Fatalf("slot %d", from)
	}
	if taken, ok := c.TakeSlot(); !ok || taken != third {
		t.Errorf("took slot %d, want %d, which was used longest ago", taken, third)
	}
	c.GiveSlot(own)
	c.DropSnapshot(key, tokens[:2*PageSize])
	if got, _ := c.MatchState(key, tokens); got != nil {
		t.Errorf("pages %v after the snapshots are gone", got)
	}
	if n := len(c.states.free); n != 2 {
		t.Errorf("%d slots are free, want 2", n)
	}
}

// TestSnapshotsGoWithTheirPages: evicting, dropping and giving back pages has their slots free again, and no slot is anybody's twice.
func TestSnapshotsGoWithTheirPages(t *testing.T) {
	const slots = 5
	r := rand.New(rand.NewPCG(1, 2))
	c := NewWithStates(12, slots)
	owned := map[int]bool{}
	check := func(what string) {
		t.Helper()
		seen := map[int]bool{}
		count := func(slot int) {
			if seen[slot] || slot < 0 || slot >= slots {
				t.Fatalf("%s: slot %d is there twice, or none", what, slot)
			}
			seen[slot] = true
		}
		for _, slot := range c.states.free {
			count(slot)
		}
		for e := c.states.snapshots.Front(); e != nil; e = e.Next() {
			count(e.Value.(*entry).slot)
		}
		for slot := range owned {
			count(slot)
		}
		if len(seen) != slots {
			t.Fatalf("%s: %d slots of %d", what, len(seen), slots)
		}
	}
	for range 5000 {
		key := Key{Adapter: int64(r.IntN(2)), Version: int64(r.IntN(2))}
		var tokens []int32
		for range 1 + r.IntN(4) {
			tokens = append(tokens, page(int32(r.IntN(3)))...)
		}
		switch r.IntN(6) {
		case 0:
			c.Drop(key.Adapter, key.Version)
			check("drop")
		case 1:
			if b, ok := c.GiveBack(0, true); ok {
				c.TakeBack(b)
			}
			check("give back")
		case 2:
			if slot, ok := c.TakeSlot(); ok {
				owned[slot] = true
			}
			check("take")
		case 3:
			for slot := range owned {
				c.GiveSlot(slot)
				delete(owned, slot)
				break
			}
			check("give")
		default:
			held, slot := c.MatchState(key, tokens)
			if (slot < 0) != (len(held) == 0) {
				t.Fatalf("slot %d for %d pages", slot, len(held))
			}
			more, ok := c.Allocate(len(tokens)/PageSize - len(held))
			if ok {
				all := append(held, more...)
				c.Share(key, tokens, all)
				c.Snapshot(key, tokens[:PageSize*(1+r.IntN(len(tokens)/PageSize))])
				held = all
			}
			c.Release(held)
			check("sequence")
		}
	}
	c.DropSnapshots()
	check("all dropped")
	if c.states.snapshots.Len() != 0 {
		t.Error("there are snapshots")
	}
}
