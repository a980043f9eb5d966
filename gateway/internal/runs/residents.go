package runs

import (
	"cmp"
	"container/list"
	"maps"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Which runs are in which of a model's backends. It is counted whenever a run changes, so that to choose a backend, or to share one fairly, costs the same however many runs there are.

// activeFor is how long a run counts as active after its last request.
const activeFor = 30 * time.Second

// active tells whether a run has work, or had some a moment ago. mu is held.
func (c *Core) active(r *run) bool {
	return r.usable() && (r.queue.unfinished > 0 || c.cfg.now().Sub(r.LastRequest) < activeFor)
}

// residents are the runs of a model that can train, by backend. mu of the core guards it.
type residents struct {
	places     []population       // by the index of the backend
	owners     map[string]*spread // of those who have active runs
	rebuilding int                // of all of them: whose adapter is on its way into a process
	recent     list.List          // of *run: those that had a request a moment ago, by its time
}

// population is what one backend has of them.
type population struct {
	homes   map[*run]struct{} // whose home it is
	leaving int               // of them: that are moving elsewhere
	runs    int               // whose home it is, or will be when they have moved there
	active  int               // of them: with work, or with some a moment ago
}

// spread is where the active runs of an owner are.
type spread struct {
	all    int
	homes  map[*slot]int // by their homes
	placed map[*slot]int // by their homes, or where they are moving to
}

// residence is how a run is counted: not at all without a home.
type residence struct {
	home, at *slot
	active   bool
	rebuilt  bool // its adapter is on its way into a process
	recent   *list.Element
	request  time.Time // the last one, by which recent has its place
}

func newResidents(backends int) residents {
	r := residents{places: make([]population, backends), owners: map[string]*spread{}}
	for i := range r.places {
		r.places[i].homes = map[*run]struct{}{}
	}
	return r
}

// recount counts a run as it is now. It is called after everything on which that depends: whether the core knows it and it can train, its home and its move, its unfinished operations, its last request. mu is held.
func (c *Core) recount(r *run) {
	if r.model == nil {
		return
	}
	all, now := &r.model.residents, residence{}
	if r.home != nil && r.usable() && c.runs[r.ID] == r {
		now = residence{home: r.home, at: r.home, rebuilt: r.rebuild != nil, recent: r.resident.recent, request: r.LastRequest}
		if r.moving != nil {
			now.at = r.moving.to
		}
		recent := c.cfg.now().Sub(r.LastRequest) < activeFor
		now.active = recent || r.queue.unfinished > 0
		if recent && (now.recent == nil || now.request != r.resident.request) {
			now.recent = all.follow(now.recent, r)
		}
	}
	if now.recent == nil && r.resident.recent != nil {
		all.recent.Remove(r.resident.recent)
	}
	if was := r.resident; was.home == now.home && was.at == now.at && was.active == now.active && was.rebuilt == now.rebuilt {
		r.resident = now
		return
	}
	all.add(r, -1)
	r.resident = now
	all.add(r, 1)
}

// follow keeps the runs that had a request a moment ago in the order of those requests; at is the place of this one, nil if it has none.
func (all *residents) follow(at *list.Element, r *run) *list.Element {
	if at == nil {
		at = all.recent.PushBack(r)
	} else {
		all.recent.MoveToBack(at)
	}
	for before := at.Prev(); before != nil && before.Value.(*run).LastRequest.After(r.LastRequest); before = at.Prev() {
		all.recent.MoveBefore(at, before)
	}
	return at
}

// add counts a run n times more.
func (all *residents) add(r *run, n int) {
	is := r.resident
	if is.home == nil {
		return
	}
	home, at := &all.places[is.home.index], &all.places[is.at.index]
	if home.homes[r] = struct{}{}; n < 0 {
		delete(home.homes, r)
	}
	if home != at {
		home.leaving += n
	}
	if is.rebuilt {
		all.rebuilding += n
	}
	at.runs += n
	if !is.active {
		return
	}
	at.active += n
	of := all.owners[r.Owner]
	if of == nil {
		of = &spread{homes: map[*slot]int{}, placed: map[*slot]int{}}
		all.owners[r.Owner] = of
	}
	of.all += n
	of.homes[is.home] += n
	of.placed[is.at] += n
	if of.homes[is.home] == 0 {
		delete(of.homes, is.home)
	}
	if of.placed[is.at] == 0 {
		delete(of.placed, is.at)
	}
	if of.all == 0 {
		delete(all.owners, r.Owner)
	}
}

// residents gives the count of a model's runs, after those are not active any more that had nothing to do for long enough. mu is held.
func (c *Core) residents(m *model) *residents {
	all, now := &m.residents, c.cfg.now()
	for e := all.recent.Front(); e != nil; e = all.recent.Front() {
		r := e.Value.(*run)
		if now.Sub(r.LastRequest) < activeFor {
			break
		}
		all.recent.Remove(e)
		r.resident.recent = nil
		c.recount(r)
	}
	return all
}

// homed gives the runs whose home a backend is, by their names. mu is held.
func (s *slot) homed() []*run {
	return slices.SortedFunc(maps.Keys(s.model.residents.places[s.index].homes), byID)
}

// byID orders runs by their names.
func byID(a, b *run) int { return cmp.Compare(a.ID, b.ID) }

// chooseHome gives the backend where a run fits best: one that runs before one that does not, with memory before one without, then the one with the fewest active runs, then with the fewest of its owner's. Nil: none is allowed.
// mu is held.
func (c *Core) chooseHome(r *run, allowed func(*slot) bool) *slot {
	all := c.residents(r.model)
	own := map[*slot]int{}
	if of := all.owners[r.Owner]; of != nil {
		own = of.placed
	}
	need := int64(0)
	free := make([]int64, len(r.model.slots)) // as the backends say; -1 = not known
	for i, s := range r.model.slots {
		free[i] = -1
		st := c.status(s)
		if st.MemoryLimit > 0 {
			free[i] = max(st.MemoryLimit-st.MemoryBytes, 0)
		}
		if st.Adapters > 0 { // about what an adapter takes: as those that are there
			need = max(need, st.AdapterBytes/int64(st.Adapters))
		}
	}
	var found *slot
	var least [6]int
	for i, s := range r.model.slots {
		if s.failed != nil || !allowed(s) {
			continue
		}
		rank := [6]int{2: all.places[i].active, own[s], all.places[i].runs, i}
		if !s.running {
			rank[0] = 1
		}
		if free[i] >= 0 && free[i] < need {
			rank[1] = 1
		}
		if found == nil || slices.Compare(rank[:], least[:]) < 0 {
			found, least = s, rank
		}
	}
	return found
}

// settleIn gives a run its first home. mu is held.
func (c *Core) settleIn(r *run) {
	if r.model == nil || r.home != nil {
		return
	}
	r.home, r.adapter = r.model.slots[0], r.ID
	if r.model.pooled() {
		if s := c.chooseHome(r, func(s *slot) bool { return !s.drained && !s.odd }); s != nil {
			r.home = s
		}
	}
	c.recount(r)
}

// shareOf says for whom a run's work is done. Over several backends an owner's weight is spread as its active runs are: so one with runs everywhere has in each only a part of it, and one with a run in one place all of it there.
func (c *Core) shareOf(r *run) plugins.Share {
	share := c.share(r.Owner)
	if !r.model.pooled() {
		return share
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.residents(r.model).owners[r.Owner]
	if of != nil && of.homes[r.home] > 0 {
		share.Weight = min(cmp.Or(share.Weight, 1)*float64(of.homes[r.home])/float64(of.all), plugins.MaxWeight)
	}
	return share
}
