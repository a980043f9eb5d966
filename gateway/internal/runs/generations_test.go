package runs

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// Who comes late gets its part of the places although another one has them all, and no more than that.
func TestGenerations(t *testing.T) {
	g := newGenerations()
	weights := map[string]float64{"ann": 1, "bob": 1, "eve": 2}
	share := func(owner string) plugins.Share { return plugins.Share{Key: owner, Weight: weights[owner]} }
	for _, c := range []struct {
		owner string
		want  int // places of 100 that it gets at once
	}{{"ann", 100}, {"bob", 50}, {"eve", 50}, {"ann", 0}, {"bob", 0}} {
		n := 0
		for g.begin(c.owner, 100, share) {
			n++
		}
		if n != c.want {
			t.Errorf("%s got %d, want %d", c.owner, n, c.want)
		}
	}
	if g.total != 200 {
		t.Errorf("%d run", g.total)
	}
	for range 150 {
		for _, owner := range []string{"ann", "bob", "eve"} {
			if g.owners[owner] > 0 {
				g.end(owner)
			}
		}
	}
	if g.total != 0 || len(g.owners) != 0 {
		t.Errorf("%d are left, %v", g.total, g.owners)
	}
	// However many owners there are, each has one.
	for i := range 20 {
		if owner := string(rune('a' + i)); !g.begin(owner, 4, func(string) plugins.Share { return plugins.Share{Weight: 1} }) {
			t.Errorf("owner %s of 20 got no place", owner)
		}
	}
}
