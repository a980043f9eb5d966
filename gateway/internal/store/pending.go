package store

import (
	"math"
	"slices"
)

// pending is what is durable in the commit log and not in the database yet: the last change of every record, and what was done to all records of a parent. Changes of one record are
// folded into one, so that a sum that grows with every operation is written once.
type pending struct {
	last     int64 // number of the last group in it
	bytes    int   // about what it takes in memory
	entries  map[RecordKey]*change
	parents  map[ParentKey][]RecordKey // of the entries that write a record; a key may have come to another parent since
	under    map[ParentKey]bool        // parents whose older records are gone
	released map[ParentKey][]Range     // ranks of older records whose payloads are given up
}

// change is what becomes of one record.
type change struct {
	kind   changeKind
	record Record
}

type changeKind int

const (
	replaced changeKind = iota // by record
	removed
	added // record.Count is added to the older one; there is none: record
)

// newPending makes one with room for some entries.
func newPending(entries int) *pending {
	return &pending{entries: make(map[RecordKey]*change, entries), parents: map[ParentKey][]RecordKey{}, under: map[ParentKey]bool{}, released: map[ParentKey][]Range{}}
}

// changeBytes is what an entry takes besides its record.
const changeBytes = 300

// take folds a batch in.
func (p *pending) take(b Batch) {
	for _, k := range b.DeleteUnder {
		p.under[k] = true
		for _, key := range p.parents[k] {
			if e := p.entries[key]; e.kind != removed && e.record.Parent == k.Parent {
				*e = change{kind: removed}
			}
		}
		delete(p.parents, k)
	}
	for _, k := range b.Delete {
		p.set(k, change{kind: removed})
	}
	for _, r := range b.Put {
		p.set(RecordKey{r.Collection, r.Key}, change{replaced, r})
	}
	for _, s := range b.Release {
		for _, key := range p.parents[ParentKey{s.Collection, s.Parent}] {
			if e := p.entries[key]; e.kind == replaced && e.record.Parent == s.Parent && s.Range.holds(e.record.Rank) {
				e.record.Payload, e.record.Ref = nil, Ref{}
			}
		}
		parent := ParentKey{s.Collection, s.Parent}
		p.released[parent] = append(p.released[parent], s.Range)
	}
	for _, r := range b.Add {
		k := RecordKey{r.Collection, r.Key}
		switch e := p.entries[k]; {
		case e == nil:
			p.set(k, change{added, r})
		case e.kind == removed:
			p.set(k, change{replaced, r})
		default:
			e.record.Count += r.Count
		}
	}
}

func (p *pending) set(k RecordKey, c change) {
	e := p.entries[k]
	listed := e != nil && e.kind != removed && e.record.Parent == c.record.Parent
	if e == nil {
		e = &change{}
		p.entries[k] = e
		p.bytes += changeBytes + 2*(len(k.Collection)+len(k.Key))
	}
	*e = c
	p.bytes += len(c.record.Value) + len(c.record.Payload)
	if c.kind != removed && !listed {
		parent := ParentKey{k.Collection, c.record.Parent}
		p.parents[parent] = append(p.parents[parent], k)
	}
}

// holds tells whether a rank is in the range; the zero Range holds all.
func (r Range) holds(rank int64) bool { return r == Range{} || rank >= r.From && rank < r.To }

// bounds are the range's, also of the one that selects all.
func (r Range) bounds() (from, to int64) {
	if r == (Range{}) {
		return math.MinInt64, math.MaxInt64
	}
	return r.From, r.To
}

// decides tells whether the record's older state does not matter.
func (p *pending) decides(k RecordKey) bool {
	e := p.entries[k]
	return e != nil && e.kind != added
}

// over gives a record as it is after the changes, from the older one; nil is no record. The older one is not changed.
func (p *pending) over(k RecordKey, older *Record) *Record {
	e := p.entries[k]
	if e != nil && e.kind == removed {
		return nil
	}
	if e != nil && e.kind == replaced {
		r := e.record
		return &r
	}
	if older != nil && p.under[ParentKey{k.Collection, older.Parent}] {
		older = nil
	}
	if older != nil {
		r := *older
		if slices.ContainsFunc(p.released[ParentKey{k.Collection, r.Parent}], func(x Range) bool { return x.holds(r.Rank) }) {
			r.Payload, r.Ref = nil, Ref{}
		}
		if e != nil {
			r.Count += e.record.Count
		}
		return &r
	}
	if e != nil {
		r := e.record
		return &r
	}
	return nil
}

// pendings are what the database does not have, the oldest first; either may be nil.
type pendings [2]*pending

// after leaves out what the database has up to a group.
func (ps pendings) after(applied int64) pendings {
	for i, p := range ps {
		if p != nil && p.last <= applied {
			ps[i] = nil
		}
	}
	return ps
}

func (ps pendings) over(k RecordKey, r *Record) *Record {
	for _, p := range ps {
		if p != nil {
			r = p.over(k, r)
		}
	}
	return r
}

func (ps pendings) decide(k RecordKey) bool {
	for _, p := range ps {
		if p != nil && p.decides(k) {
			return true
		}
	}
	return false
}
