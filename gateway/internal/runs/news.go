package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Who watches runs is told what changes, in place of asking again and again. Whoever changes something under mu marks it with those who listen for it,
// which costs nothing where nobody does; a listener takes what was marked since it looked last, however often that changed meanwhile. What it has become
// is read then.

// Topics are what a listener is told of.
type Topics struct {
	Runs     bool   // runs of the viewer's that come, change or go
	Everyone bool   // those of everybody; for viewers who may see them
	Run      string // one run, with its points, checkpoints and operations; "" = none
	Usage    bool   // what the viewer has used, or anybody where the viewer sees everybody's
	Devices  bool   // what the models' backends do
}

// News is what has changed since a listener looked last.
type News struct {
	Runs        []string // ids of runs, in no order
	More        bool     // further runs have changed than are remembered: whoever wants to know reads the whole list
	Checkpoints bool     // of Topics.Run came, changed or went
	Operations  bool     // of Topics.Run were finished
	Usage       bool
	Devices     bool
}

// Bounds of listeners, and of what one of them is told at a time.
const (
	maxListeners      = 512
	maxOwnListeners   = 32
	maxListenerRuns   = 2000
	maxListenerAnswer = 100
)

// Listener is told of changes. Its methods are for one goroutine, but Close may come from any.
type Listener struct {
	core   *Core
	viewer Viewer
	topics Topics
	woken  chan struct{} // has a value when something is marked

	// Guarded by core.mu.
	runs map[string]bool
	news News // without Runs

	known [tables]lastTold // of the one run's points
}

// listeners are those who listen now.
type listeners struct {
	all map[*Listener]bool
	own map[string]int // by owner
}

// Listen begins to listen: every change that is made after it is told. KindNotFound for a run that the viewer may not see, KindBusy where too many
// listen. The caller must Close the listener.
func (c *Core) Listen(ctx context.Context, v Viewer, t Topics) (*Listener, error) {
	l := &Listener{core: c, viewer: v, topics: t, woken: make(chan struct{}, 1), runs: map[string]bool{}}
	if t.Run != "" {
		if err := c.recall(ctx, t.Run); err != nil {
			return nil, err
		}
		if _, err := c.visible(v, t.Run); err != nil {
			return nil, err
		}
		heads, err := c.heads(ctx, t.Run)
		if err != nil {
			return nil, err
		}
		for i, h := range heads {
			l.known[i].from = max(h.LastStep(), 0) // more may come for that step
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing:
		return nil, errClosing
	case c.listening.own[v.Owner] >= maxOwnListeners:
		return nil, refusef(KindBusy, "%d streams of events of yours are open already, and more are not kept: close some", maxOwnListeners)
	case len(c.listening.all) >= maxListeners:
		return nil, refusef(KindBusy, "%d streams of events are open already, and more are not kept", maxListeners)
	}
	if c.listening.all == nil {
		c.listening = listeners{map[*Listener]bool{}, map[string]int{}}
	}
	c.listening.all[l] = true
	c.listening.own[v.Owner]++
	return l, nil
}

// Close ends it. It may be called twice.
func (l *Listener) Close() {
	c := l.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listening.all[l] {
		return
	}
	delete(c.listening.all, l)
	if c.listening.own[l.viewer.Owner]--; c.listening.own[l.viewer.Owner] == 0 {
		delete(c.listening.own, l.viewer.Owner)
	}
}

// Next waits until something has changed, and gives it. Of many runs that have changed it gives some, the others next time. Its error is ctx's, or that
// the server stops.
func (l *Listener) Next(ctx context.Context) (News, error) {
	select {
	case <-l.woken:
	case <-l.core.closed:
		return News{}, errClosing
	case <-ctx.Done():
		return News{}, ctx.Err()
	}
	c := l.core
	c.mu.Lock()
	defer c.mu.Unlock()
	news := l.news
	l.news = News{}
	for id := range l.runs {
		if len(news.Runs) == maxListenerAnswer {
			l.wake()
			break
		}
		news.Runs = append(news.Runs, id)
		delete(l.runs, id)
	}
	return news, nil
}

// Rest waits a while, so that what changes meanwhile is told at once. Its errors are those of Next.
func (l *Listener) Rest(ctx context.Context, pause time.Duration) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-l.core.closed:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Listener) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// sees tells whether a listener is told of a run of an owner's.
func (l *Listener) sees(owner, runID string) bool {
	if owner != l.viewer.Owner && !l.viewer.Everyone {
		return false
	}
	return runID == l.topics.Run || l.topics.Runs && (owner == l.viewer.Owner || l.topics.Everyone)
}

// change is what of a run has changed.
type change int

// The changes.
const (
	changedRun         change = iota // how it stands
	changedCheckpoints               // and which checkpoints it has
	changedOperations                // and which operations are finished
)

// changed tells that a run has changed. mu is held.
func (c *Core) changed(r *run, what change) {
	if len(c.listening.all) > 0 {
		c.changedOf(r.Owner, r.ID, what)
	}
}

// changedOf is changed for a run that may not be in memory. mu is held.
func (c *Core) changedOf(owner, runID string, what change) {
	for l := range c.listening.all {
		if l.sees(owner, runID) {
			if len(l.runs) < maxListenerRuns {
				l.runs[runID] = true
			} else if !l.runs[runID] {
				l.news.More = true
			}
			if runID == l.topics.Run {
				l.news.Checkpoints = l.news.Checkpoints || what == changedCheckpoints
				l.news.Operations = l.news.Operations || what == changedOperations
			}
			l.wake()
		}
	}
	c.used(owner)
}

// used tells that an owner has used something. mu is held.
func (c *Core) used(owner string) {
	for l := range c.listening.all {
		if l.topics.Usage && (owner == l.viewer.Owner || l.viewer.Everyone) {
			l.news.Usage = true
			l.wake()
		}
	}
}

// changedRebuild tells that a run has come nearer to the process that serves its model. mu is held.
func (c *Core) changedRebuild(r *run) {
	c.changed(r, changedRun)
	c.changedDevices()
}

// DevicesChanged tells listeners that a model's backend is in another state.
func (c *Core) DevicesChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedDevices()
}

func (c *Core) changedDevices() {
	for l := range c.listening.all {
		if l.topics.Devices {
			l.news.Devices = true
			l.wake()
		}
	}
}

// Overviews describes the runs of News.Runs, and tells which of them are gone. That of Topics.Run has all of its metadata, others have what a list has.
func (l *Listener) Overviews(ctx context.Context, ids []string) (list []RunOverview, gone []string, err error) {
	c := l.core
	sessions, bytes := map[string]*session{}, int64(0)
	for _, id := range ids {
		o, err := c.overview(ctx, id, sessions)
		if errors.Is(err, store.ErrNotFound) {
			gone = append(gone, id)
			continue
		}
		if err == nil && id == l.topics.Run {
			_, err = c.wholeRun(ctx, &o.RunInfo)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("describe changed runs: %w", err)
		}
		if len(o.UserMetadata) > maxInline && id != l.topics.Run {
			o.UserMetadata = nil
		}
		if bytes += int64(len(o.UserMetadata) + len(o.SessionMetadata) + 100*len(o.Series)); bytes > maxListBytes {
			return nil, nil, tooLarge("runs", len(ids), bytes)
		}
		list = append(list, o)
	}
	return list, gone, nil
}

// Points gives the points of Topics.Run that came since it was called last, or since Listen; those of the last step before may come again, with more in it.
func (l *Listener) Points(ctx context.Context) ([]Point, error) {
	if err := l.core.recall(ctx, l.topics.Run); err != nil {
		return nil, err
	}
	r, err := l.core.visible(l.viewer, l.topics.Run)
	if err != nil {
		return nil, err
	}
	return l.core.since(ctx, r, &l.known)
}

// Watches tells whether the one run is among those.
func (l *Listener) Watches(ids []string) bool {
	return l.topics.Run != "" && slices.Contains(ids, l.topics.Run)
}
