package runs

import "github.com/tinsmith/tinsmith/plugins"

// generations counts the direct requests of one model that run, by owner.
type generations struct {
	total  int
	owners map[string]int
}

func newGenerations() generations { return generations{owners: map[string]int{}} }

// begin counts one more, unless all places are taken. Nobody keeps others out by being first: an owner who has less than its part of the places, by weight among those who have
// any, and at least one, gets one all the same. So at most twice as many run, and one for each owner.
func (g *generations) begin(owner string, places int, share func(owner string) plugins.Share) bool {
	if g.total >= places {
		weight := share(owner).Weight
		all := weight
		for name := range g.owners {
			if name != owner {
				all += share(name).Weight
			}
		}
		if g.owners[owner] >= max(1, int(float64(places)*weight/all)) {
			return false
		}
	}
	g.total++
	g.owners[owner]++
	return true
}

// end takes one out of the count.
func (g *generations) end(owner string) {
	g.total--
	if g.owners[owner]--; g.owners[owner] == 0 {
		delete(g.owners, owner)
	}
}
