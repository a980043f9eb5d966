package kvcache

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func tokens(n int, first int32) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = first + int32(i)
	}
	return t
}

func TestSharingAPrefix(t *testing.T) {
	c := New(10)
	key := Key{1, 3, "a"}
	prompt := tokens(3*PageSize+5, 0)
	pages, ok := c.Allocate(4)
	if !ok {
		t.Fatal("no pages")
	}
	if got := c.Match(key, prompt); got != nil {
		t.Fatalf("matched %v before anything was shared", got)
	}
	c.Share(key, prompt[:3*PageSize], pages)
	if got := c.Match(key, prompt); !slices.Equal(got, pages[:3]) {
		t.Fatalf("matched %v, want %v", got, pages[:3])
	} else {
		c.Release(got)
	}
	if got := c.Match(Key{1, 4, "a"}, prompt); got != nil {
		t.Fatalf("another version matched %v", got)
	}
	if got := c.Match(Key{2, 3, "a"}, prompt); got != nil {
		t.Fatalf("another adapter matched %v", got)
	}
	if got := c.Match(Key{1, 3, "b"}, prompt); got != nil {
		t.Fatalf("another scope matched %v", got)
	}
	other := slices.Clone(prompt)
	other[PageSize]++
	if got := c.Match(key, other); !slices.Equal(got, pages[:1]) {
		t.Fatalf("half a prefix matched %v, want %v", got, pages[:1])
	} else {
		c.Release(got)
	}
	if got := c.Match(key, prompt[:PageSize-1]); got != nil {
		t.Fatalf("less than a page matched %v", got)
	}
	if c.Available() != 6 {
		t.Fatalf("%d available while four are held", c.Available())
	}
	c.Release(pages)
	if c.Available() != 10 {
		t.Fatalf("%d available after the release", c.Available())
	}
	if got := c.Match(key, prompt); len(got) != 3 {
		t.Fatalf("the cache kept %d pages, want 3", len(got))
	} else {
		c.Release(got)
	}
	// Nine of ten pages: the later pages of the prefix go first, its first one stays.
	nine, ok := c.Allocate(9)
	if !ok {
		t.Fatal("cached pages were not given up")
	}
	if got := c.Match(key, prompt); !slices.Equal(got, pages[:1]) {
		t.Fatalf("after eviction %v is left, want %v", got, pages[:1])
	} else {
		c.Release(got)
	}
	if _, ok := c.Allocate(2); ok {
		t.Fatal("two pages where one is")
	}
	c.Release(nine)
}

func TestTwoSequencesShareTheSamePage(t *testing.T) {
	c := New(4)
	key := Key{}
	prompt := tokens(2*PageSize, 0)
	a, _ := c.Allocate(2)
	b, _ := c.Allocate(2)
	c.Share(key, prompt, a)
	c.Share(key, prompt, b) // b computed the same at the same time and keeps its own
	c.Release(b)
	if c.free != 2 {
		t.Fatalf("%d free, want the two of b", c.free)
	}
	c.Release(a)
	if got := c.Match(key, prompt); !slices.Equal(got, a) {
		t.Fatalf("matched %v, want %v", got, a)
	}
}

// TestAnIdlePageIsReplaced: whoever has computed again what nobody holds any more has it shared, and what comes behind it.
func TestAnIdlePageIsReplaced(t *testing.T) {
	c := New(8)
	key := Key{}
	prompt := append(tokens(2*PageSize, 0), tokens(PageSize, 1)...)
	a, _ := c.Allocate(2)
	c.Share(key, prompt[:2*PageSize], a)
	c.Release(a)
	b, _ := c.Allocate(3)
	c.Share(key, prompt, b)
	if c.Free() != 5 || c.Available() != 5 {
		t.Errorf("%d are free and %d available, want the 5 that nobody holds", c.Free(), c.Available())
	}
	c.Release(b)
	if got := c.Match(key, prompt); !slices.Equal(got, b) {
		t.Errorf("matched %v, want %v", got, b)
	} else {
		c.Release(got)
	}
	if all, ok := c.Allocate(8); !ok || len(all) != 8 {
		t.Errorf("%d of 8 pages can be had", len(all))
	}
}

func TestIfReleased(t *testing.T) {
	c := New(6)
	key := Key{}
	prompt := tokens(2*PageSize, 0)
	a, _ := c.Allocate(3)
	c.Share(key, prompt, a)
	b := c.Match(key, prompt)
	more, _ := c.Allocate(1)
	b = append(b, more...)
	for _, test := range []struct {
		sequences [][]int32
		want      int
	}{{nil, 0}, {[][]int32{a}, 1}, {[][]int32{b}, 1}, {[][]int32{a, b}, 4}} {
		r := c.IfReleased()
		for _, pages := range test.sequences {
			r.Add(pages)
		}
		if r.Pages() != test.want {
			t.Errorf("%d pages with %d sequences, want %d", r.Pages(), len(test.sequences), test.want)
		}
	}
	before := c.Available()
	c.Release(a)
	c.Release(b)
	if got := c.Available() - before; got != 4 {
		t.Errorf("%d pages are available that were not", got)
	}
}

func TestGiveBack(t *testing.T) {
	c := New(2*BlockPages + 3)
	key := Key{1, 1, "a"}
	prompt := tokens(2*PageSize, 0)
	held, _ := c.Allocate(1)
	pages, _ := c.Allocate(2)
	c.Share(key, prompt, pages)
	c.Release(pages)
	for _, want := range []Block{{2 * BlockPages, 3}, {BlockPages, BlockPages}} {
		if b, ok := c.GiveBack(0, true); !ok || b != want {
			t.Fatalf("gave back %v, %v; want %v", b, ok, want)
		}
	}
	if _, ok := c.GiveBack(0, true); ok {
		t.Fatal("a block was given back of which a page is held")
	}
	if c.Available() != BlockPages-1 || c.Absent() != BlockPages+3 {
		t.Fatalf("%d available, %d absent", c.Available(), c.Absent())
	}
	if _, ok := c.Allocate(BlockPages); ok {
		t.Fatal("pages were allocated that are not there")
	}
	c.Release(held)
	if _, ok := c.GiveBack(0, false); ok {
		t.Fatal("what is cached was forgotten")
	}
	if got := c.Match(key, prompt); !slices.Equal(got, pages) {
		t.Fatalf("matched %v, want %v", got, pages)
	}
	c.Release(pages)
	if _, ok := c.GiveBack(1, true); ok {
		t.Fatal("more was given back than may be")
	}
	if b, ok := c.GiveBack(0, true); !ok || b != (Block{0, BlockPages}) || c.Available() != 0 {
		t.Fatalf("gave back %v, %v; %d are left", b, ok, c.Available())
	}
	if got := c.Match(key, prompt); got != nil {
		t.Fatalf("matched %v that were given back", got)
	}
	for range 3 {
		b, ok := c.Missing()
		if !ok {
			t.Fatal("not all came back")
		}
		c.TakeBack(b)
	}
	if _, ok := c.Missing(); ok || c.Available() != c.Pages() {
		t.Fatalf("%d of %d available", c.Available(), c.Pages())
	}
}

func TestDrop(t *testing.T) {
	c := New(4)
	key := Key{1, 1, "a"}
	prompt := tokens(2*PageSize, 0)
	pages, _ := c.Allocate(3)
	c.Share(key, prompt, pages)
	c.Drop(1, 1)
	if got := c.Match(key, prompt); got != nil {
		t.Fatalf("matched %v after the drop", got)
	}
	c.Release(pages)
	if c.Available() != 4 {
		t.Fatalf("%d available, want all", c.Available())
	}
	all, ok := c.Allocate(4)
	if !ok {
		t.Fatal("dropped pages cannot be allocated")
	}
	c.Release(all)

	pages, _ = c.Allocate(2)
	c.Share(key, prompt, pages)
	c.Release(pages)
	c.Drop(1, 1)
	if c.free != 4 {
		t.Fatalf("%d free after dropping an idle prefix", c.free)
	}
}

// A random schedule keeps the books: no page is given to two owners, shared content is what Match promised, and everything comes back.
func TestRandomSchedule(t *testing.T) {
	type sequence struct {
		key           Key
		tokens, pages []int32
	}
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := New(24)
		content := make([][]int32, 24) // what each page holds, as its sequence wrote it
		var live []*sequence
		for range 2000 {
			switch random.IntN(4) {
			case 0, 1:
				s := &sequence{key: Key{int64(random.IntN(2)), 0, "a"}}
				for range random.IntN(5) {
					s.tokens = append(s.tokens, tokens(PageSize, int32(random.IntN(3)))...)
				}
				s.tokens = append(s.tokens, tokens(random.IntN(PageSize), 0)...)
				if random.IntN(3) > 0 { // else it computes all again, as where there is no state to go on from
					s.pages = c.Match(s.key, s.tokens)
				}
				for i, p := range s.pages {
					if !slices.Equal(content[p], append([]int32{int32(s.key.Adapter)}, s.tokens[i*PageSize:(i+1)*PageSize]...)) {
						t.Fatal("a matched page holds other tokens")
					}
				}
				matched := len(s.pages)
				more, ok := c.Allocate((len(s.tokens)+PageSize-1)/PageSize - matched)
				if !ok {
					c.Release(s.pages)
					continue
				}
				for _, p := range more {
					for _, other := range live {
						if slices.Contains(other.pages, p) {
							t.Fatal("a page was given out twice")
						}
					}
				}
				s.pages = append(s.pages, more...)
				for i := matched; i < len(s.pages); i++ {
					content[s.pages[i]] = append([]int32{int32(s.key.Adapter)}, s.tokens[i*PageSize:min((i+1)*PageSize, len(s.tokens))]...)
				}
				c.Share(s.key, s.tokens, s.pages)
				got := c.Match(s.key, s.tokens)
				for i := range len(s.tokens) / PageSize { // what it has is shared, up to the first page for which somebody holds another one
					if i < len(got) && got[i] == s.pages[i] {
						continue
					}
					if i >= len(got) || !slices.ContainsFunc(live, func(other *sequence) bool { return slices.Contains(other.pages, got[i]) }) {
						t.Fatalf("page %d of %v is not shared, but %v", i, s.pages, got)
					}
					break
				}
				c.Release(got)
				live = append(live, s)
			case 2:
				if len(live) > 0 {
					i := random.IntN(len(live))
					c.Release(live[i].pages)
					live = slices.Delete(live, i, i+1)
				}
			case 3:
				switch random.IntN(20) {
				case 0:
					c.Drop(int64(random.IntN(2)), 0)
				case 1, 2:
					before := c.Available()
					b, ok := c.GiveBack(random.IntN(24), random.IntN(2) == 0)
					for page := b.First; ok && page < b.First+b.Count; page++ {
						content[page] = nil
						for _, s := range live {
							if slices.Contains(s.pages, page) {
								t.Fatal("a page that is held was given back")
							}
						}
					}
					if after := c.Available(); after > before-int(b.Count) {
						t.Fatalf("%d pages of %d are available without %d", after, before, b.Count)
					}
				case 3, 4:
					if b, ok := c.Missing(); ok {
						c.TakeBack(b)
					}
				}
			}
		}
		for _, s := range live {
			c.Release(s.pages)
		}
		for b, ok := c.Missing(); ok; b, ok = c.Missing() {
			c.TakeBack(b)
		}
		if all, ok := c.Allocate(24); !ok || len(all) != 24 || c.Absent() != 0 {
			t.Fatalf("seed %d: pages were lost: %d available", seed, c.Available())
		}
	}
}
