package runs

import (
	"cmp"
	"slices"
	"strings"
)

// checkpointLists are the checkpoints by what they belong to, each list oldest first: nobody who asks for some looks at all. mu of the core guards them.
type checkpointLists struct {
	byRun     map[string][]*checkpoint
	bySession map[string][]*checkpoint
	byOwner   map[string][]*checkpoint
	texts     map[string]int64 // bytes of the user metadata, by owner
	bytes     map[string]int64 // of the files, by owner
}

func newCheckpointLists() checkpointLists {
	return checkpointLists{byRun: map[string][]*checkpoint{}, bySession: map[string][]*checkpoint{}, byOwner: map[string][]*checkpoint{}, texts: map[string]int64{}, bytes: map[string]int64{}}
}

// compareAge orders checkpoints, the oldest first.
func compareAge(a, b *checkpoint) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.Path, b.Path))
}

// add takes a checkpoint in. Its path is in no list.
func (l *checkpointLists) add(cp *checkpoint) {
	for _, list := range l.of(cp) {
		at, _ := slices.BinarySearchFunc(list.in[list.key], cp, compareAge)
		list.in[list.key] = slices.Insert(list.in[list.key], at, cp)
	}
	l.texts[cp.Owner] += cp.textBytes()
	l.bytes[cp.Owner] += cp.Size
}

// remove takes it out.
func (l *checkpointLists) remove(cp *checkpoint) {
	for _, list := range l.of(cp) {
		at, found := slices.BinarySearchFunc(list.in[list.key], cp, compareAge)
		if !found {
			continue
		}
		if list.in[list.key] = slices.Delete(list.in[list.key], at, at+1); len(list.in[list.key]) == 0 {
			delete(list.in, list.key)
		}
	}
	if l.texts[cp.Owner] -= cp.textBytes(); l.texts[cp.Owner] == 0 {
		delete(l.texts, cp.Owner)
	}
	if l.bytes[cp.Owner] -= cp.Size; l.bytes[cp.Owner] == 0 {
		delete(l.bytes, cp.Owner)
	}
}

type checkpointList struct {
	in  map[string][]*checkpoint
	key string
}

func (l *checkpointLists) of(cp *checkpoint) [3]checkpointList {
	return [3]checkpointList{{l.byRun, cp.RunID}, {l.bySession, sessionOf(cp.RunID)}, {l.byOwner, cp.Owner}}
}

// textBytes is what its user metadata take.
func (cp *checkpoint) textBytes() int64 {
	n := int64(0)
	for k, v := range cp.UserMetadata {
		n += int64(len(k) + len(v))
	}
	return n
}

// mayKeep tells whether an owner may have further checkpoints with so many bytes of user metadata. mu is held.
func (c *Core) mayKeep(owner string, more int, bytes int64) error {
	if n := len(c.lists.byOwner[owner]); n+more > c.cfg.MaxCheckpoints {
		return refusef(KindForbidden, "you have %d checkpoints, and no more than %d are kept: delete those that are not needed, or give them a ttl_seconds", n, c.cfg.MaxCheckpoints)
	}
	if have := c.lists.texts[owner]; bytes > 0 && have+bytes > c.cfg.MaxTextBytes {
		return refusef(KindForbidden, "user_metadata: those of your checkpoints have %d KiB, %d KiB more are over the limit of %d MiB: keep less with each, or delete checkpoints that are not needed", have>>10, (bytes+1023)>>10, c.cfg.MaxTextBytes>>20)
	}
	return nil
}
